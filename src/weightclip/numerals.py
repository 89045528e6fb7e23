"""Numbers as people write them: `50k`, `1M`, `1e-3`."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def read_count(text: str) -> int:
    """A whole number; a ValueError or ArithmeticError for anything else.

    Examples:
        >>> read_count("50k"), read_count("1.5M"), read_count("2_500")
        (50000, 1500000, 2500)
    """
    digits, unit = re.fullmatch(r"(.*?)([a-zA-Z]?)", text.strip()).groups()  # type: ignore[union-attr]
    exact = Decimal(digits) * _UNITS.get(unit.lower(), Decimal("NaN"))
    if not abs(exact) < 2**63 or exact != exact.to_integral_value():  # also for NaN
        raise ValueError(text)
    return int(exact)


def counted(number: int, noun: str) -> str:
    """A number of things.

    Examples:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
