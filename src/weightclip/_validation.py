"""Argument checks: each message names the argument, the value given and what is accepted."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from weightclip._renamed import find_old_name

MAX_LISTED = 50
"""Largest number of accepted names that a message lists in full."""

Patterns = str | Iterable[str]
"""One or more tensor names or glob patterns."""


def check_number(argument: str, value: object, *, zero: bool = False, infinite: bool = False) -> float:
    """Return `value` as a float; raise a ValueError unless it is positive (`zero` and `infinite` allow these)."""
    number = as_float(value)
    if (number > 0 or (zero and number == 0)) and (infinite or number < math.inf):
        return number
    least = "a number of at least 0" if zero else "a positive number"
    finite = " below infinity" if number == math.inf else ""
    raise ValueError(f"{argument}: got {value!r}, expected {least}{finite}")


def check_count(argument: str, value: object, least: int = 1) -> int:
    """Return `value` as an int; raise a ValueError unless it is an integer of at least `least`."""
    if not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least:
        return int(value)
    raise ValueError(f"{argument}: got {value!r}, expected a whole number of at least {least}")


def check_truth(argument: str, value: object) -> bool:
    """Return `value`; raise a ValueError unless it is True or False."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"{argument}: got {value!r}, expected True or False")


def check_seed(seed: object) -> int:
    """Return `seed` as an int; raise a ValueError unless it is in [0, 2**63), which every generator accepts."""
    if not isinstance(seed, bool) and isinstance(seed, Integral) and 0 <= int(seed) < 2**63:
        return int(seed)
    raise ValueError(f"seed: got {seed!r}, expected a whole number from 0 to 2**63 - 1")


def check_name(argument: str, value: str, choices: Iterable[str]) -> str:
    """Return `value`; raise a ValueError with the closest name unless it is one of `choices`."""
    choices = tuple(choices)
    if value in choices:
        return value
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = f"{len(choices)} names" if near and len(choices) > MAX_LISTED else ", ".join(choices)
    raise ValueError(f"{argument}: got {value!r}, expected one of {listed}{hint}")


def as_number(value: object) -> float | None:
    """Convert a real number or a zero-dimensional tensor or array to a float; None for any other value."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def as_float(value: object) -> float:
    """`as_number`, with NaN for values that are not numbers or overflow."""
    try:
        number = as_number(value)
    except OverflowError:
        return math.nan
    return math.nan if number is None else number


def as_list(patterns: Patterns | None) -> list[str]:
    """One pattern, several or none, as a list."""
    return [] if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)


def name_filter(
    include: Patterns | None, exclude: Patterns | None, names: Sequence[str]
) -> Callable[[Iterable[str]], str | None]:
    """Return a function: names of a tensor -> the reason why `include` and `exclude` skip it, or None.

    `names` lists the names of all tensors. A pattern that matches none of them raises a ValueError.
    """
    included, excluded = as_list(include), as_list(exclude)
    for argument, patterns in (("include", included), ("exclude", excluded)):
        for pattern in patterns:
            check_pattern(argument, pattern, names)

    def reason(own: Iterable[str]) -> str | None:
        own = list(own)
        if any(fnmatchcase(name, pattern) for name in own for pattern in excluded):
            return "excluded by name"
        if include is not None and not any(fnmatchcase(name, pattern) for name in own for pattern in included):
            return "not among the included names"
        return None

    return reason


def check_pattern(argument: str, pattern: str, names: Sequence[str], keywords: Sequence[str] = ()) -> None:
    """Raise unless `pattern` matches one of `names`; the message may suggest one of `keywords` as well."""
    if not isinstance(pattern, str):
        raise TypeError(f"{argument}: got {pattern!r}, expected a name or a glob pattern")
    if not any(fnmatchcase(name, pattern) for name in names):
        near = difflib.get_close_matches(pattern, keywords) + (
            difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or [*names[:3]]
        )
        raise ValueError(f"{argument}: {pattern!r} matches no parameter; the closest are {', '.join(near)}")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return find_old_name(__name__, name)
