"""Checks of arguments: the message names the argument, the value given and what is accepted."""

from __future__ import annotations

import math
from numbers import Real


def check_number(argument: str, value: object, *, zero: bool = False, infinite: bool = False) -> float:
    """`value` as a float; a ValueError unless it is a positive number (or zero, or infinite, where allowed)."""
    if not isinstance(value, bool) and isinstance(value, Real):
        number = float(value)
        if (number > 0 or (zero and number == 0)) and (infinite or number < math.inf):
            return number
    raise ValueError(f"{argument}: got {value!r}, expected {'a number of at least 0' if zero else 'a positive number'}")


def check_count(argument: str, value: object) -> int:
    """`value` as an int; a ValueError unless it is a whole number of at least 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError(f"{argument}: got {value!r}, expected a whole number of at least 1")


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    """`value`; a ValueError unless it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{argument}: got {value!r}, expected one of {choices}")
    return value
