"""Human-readable text: counts (`50k`, `3 runs`) and aligned tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def read_count(text: str) -> int:
    """Parse an integer with an optional unit; any other text raises a ValueError or ArithmeticError.

    Examples:
        >>> read_count("50k"), read_count("1.5M"), read_count("2_500")
        (50000, 1500000, 2500)
    """
    digits, unit = re.fullmatch(r"(.*?)([a-zA-Z]?)", text.strip()).groups()  # type: ignore[union-attr]
    exact = Decimal(digits) * _UNITS.get(unit.lower(), Decimal("NaN"))
    if not abs(exact) < 2**63 or exact != exact.to_integral_value():  # also rejects NaN
        raise ValueError(text)
    return int(exact)


def counted(number: int, noun: str) -> str:
    """Format a number with its noun.

    Examples:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_table(rows: Iterable[Sequence[str]]) -> list[str]:
    """One line per row, with aligned columns.

    Examples:
        >>> format_table([("a", "bcd", "e"), ("fg", "h", "i")])
        ['a   bcd  e', 'fg  h    i']
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
