"""Checks of arguments: the message names the argument, the value given and what is accepted."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real

LISTED = 50
"""Names at most in a message that suggests one of them."""


def check_number(argument: str, value: object, *, zero: bool = False, infinite: bool = False) -> float:
    """`value` as a float; a ValueError unless it is a positive number (or zero, or infinite, where allowed)."""
    number = _as_float(value)
    if (number > 0 or (zero and number == 0)) and (infinite or number < math.inf):
        return number
    raise ValueError(f"{argument}: got {value!r}, expected {'a number of at least 0' if zero else 'a positive number'}")


def check_share(argument: str, value: object) -> float:
    """`value` as a float; a ValueError unless it is a number from 0 to 1."""
    number = _as_float(value)
    if 0 <= number <= 1:
        return number
    raise ValueError(f"{argument}: got {value!r}, expected a number from 0 to 1")


def check_finite(argument: str, value: object) -> float:
    """`value` as a float; a ValueError unless it is a finite number."""
    number = _as_float(value)
    if math.isfinite(number):
        return number
    raise ValueError(f"{argument}: got {value!r}, expected a finite number")


def check_count(argument: str, value: object, least: int = 1) -> int:
    """`value` as an int; a ValueError unless it is a whole number of at least 1, or another `least`."""
    if not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least:
        return int(value)
    raise ValueError(f"{argument}: got {value!r}, expected a whole number of at least {least}")


def check_truth(argument: str, value: object) -> bool:
    """`value`; a ValueError unless it is true or false."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"{argument}: got {value!r}, expected True or False")


def check_seed(seed: object) -> int:
    """`seed` as an int; a ValueError unless it is a whole number that every generator takes."""
    if not isinstance(seed, bool) and isinstance(seed, Integral) and 0 <= int(seed) < 2**63:
        return int(seed)
    raise ValueError(f"seed: got {seed!r}, expected a whole number from 0 to 2**63 - 1")


def as_number(value: object) -> float | None:
    """`value` as a float: a real number, or a tensor or array without dimensions; None for anything else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def _as_float(value: object) -> float:
    """NaN for what is not a number, or too large a one."""
    try:
        number = as_number(value)
    except OverflowError:
        return math.nan
    return math.nan if number is None else number


def check_name(argument: str, value: str, choices: Iterable[str]) -> str:
    """`value`; a ValueError that suggests the nearest name unless it is one of `choices`."""
    choices = tuple(choices)
    if value in choices:
        return value
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = f"{len(choices)} names" if near and len(choices) > LISTED else ", ".join(choices)
    raise ValueError(f"{argument}: got {value!r}, expected one of {listed}{hint}")
