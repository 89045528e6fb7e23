"""Choosing tensors by name: exact names and glob patterns."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

Patterns = str | Iterable[str]


def as_list(patterns: Patterns | None) -> list[str]:
    """One pattern, several or none, as a list."""
    return [] if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)


def unwanted(
    include: Patterns | None, exclude: Patterns | None, names: Sequence[str]
) -> Callable[[Iterable[str]], str | None]:
    """A function of a tensor's names -> the reason why it is left alone by name, or None.

    `names` are those of all tensors: a pattern that matches none of them is a ValueError.
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


def check_pattern(argument: str, pattern: str, names: Sequence[str]) -> None:
    """Raise unless `pattern` matches one of `names`."""
    if not isinstance(pattern, str):
        raise TypeError(f"{argument}: got {pattern!r}, expected a name or a glob pattern")
    if not any(fnmatchcase(name, pattern) for name in names):
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
        raise ValueError(f"{argument}: {pattern!r} matches no parameter; there are {', '.join(near)}, ...")
