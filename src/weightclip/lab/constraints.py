"""Constraints of configuration fields, in their annotations: `Annotated[int, AtLeast(1)]`.

`check` returns the value as a plain object of the field's type and raises a ValueError that names the field, the value
and the accepted values. 1 and 1.0 are therefore the same value of a float or integer field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from weightclip._validation import as_float, check_count, check_name, check_seed


@runtime_checkable
class Constraint(Protocol):
    """Accepted values of a field."""

    def check(self, name: str, value: Any, kind: type) -> Any:
        """Return `value` as a `kind` (int, float or str), or raise a ValueError."""


@dataclass(frozen=True)
class AtLeast:
    """Finite numbers of at least `least`."""

    least: int

    def check(self, name: str, value: Any, kind: type) -> Any:
        if kind is int:
            return check_count(name, _whole(value), self.least)
        number = as_float(value)
        return _accepted(name, value, number, self.least <= number < math.inf, f"a number of at least {self.least}")


@dataclass(frozen=True)
class Positive:
    """Numbers above 0."""

    infinite: bool = False

    def check(self, name: str, value: Any, kind: type) -> Any:
        number = as_float(value)
        return _accepted(name, value, number, number > 0 and (self.infinite or number < math.inf), "a positive number")


@dataclass(frozen=True)
class Between:
    """Numbers from `low` to `high`; `high` itself is excluded with `below`."""

    low: int
    high: int
    below: bool = False

    def check(self, name: str, value: Any, kind: type) -> Any:
        number = as_float(value)
        inside = self.low <= number <= self.high and not (self.below and number == self.high)
        if kind is int:
            expected = f"a whole number from {self.low} to {self.high}"
            return int(_accepted(name, value, number, inside and number.is_integer(), expected))
        expected = f"of at least {self.low} and below {self.high}" if self.below else f"from {self.low} to {self.high}"
        return _accepted(name, value, number, inside, f"a number {expected}")


@dataclass(frozen=True)
class Finite:
    """Finite numbers."""

    def check(self, name: str, value: Any, kind: type) -> Any:
        number = as_float(value)
        return _accepted(name, value, number, math.isfinite(number), "a finite number")


@dataclass(frozen=True)
class Seed:
    """Whole numbers that every random generator accepts."""

    def check(self, name: str, value: Any, kind: type) -> int:
        return check_seed(value)


@dataclass(frozen=True, init=False)
class OneOf:
    """One of a few names or numbers."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def check(self, name: str, value: Any, kind: type) -> Any:
        if kind is str:
            return check_name(name, value, self.values)
        if not isinstance(value, bool) and value in self.values:
            return kind(value)
        raise ValueError(f"{name}: got {value!r}, expected {' or '.join(map(str, self.values))}")


@dataclass(frozen=True)
class FilePath:
    """The path of a file."""

    def check(self, name: str, value: Any, kind: type) -> str:
        return str(value)


def _whole(value: Any) -> Any:
    """Return a float without fraction as an int: TOML files and tables may hold 2048.0."""
    number = as_float(value)
    return int(number) if isinstance(value, float) and number.is_integer() else value


def _accepted(name: str, value: Any, number: float, is_accepted: bool, expected: str) -> float:
    if is_accepted:
        return number
    raise ValueError(f"{name}: got {value!r}, expected {expected}")
