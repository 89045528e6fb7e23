"""Configurations: the options of the command line are made from the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weightclip._ranges import ByLayer, Graded, parse_kappa, read_kappa

METHOD, PROBLEM, ALGORITHM, OUTPUT = "method", "problem", "algorithm", "output"
GROUPS = (METHOD, PROBLEM, ALGORITHM, OUTPUT)
"""How `--help` groups the fields."""


KAPPA = "KAPPA"
"""The name of values that are a number or a rule of ranges, as text."""


def option(help_text: str, group: str = ALGORITHM, metavar: str = "") -> dict[str, str]:
    """The metadata of a field: its line of help, the group it is listed in, and the name of its value."""
    return {"help": help_text, "group": group, "metavar": metavar}


def split_kappa(kappa: Any, rule: str | None) -> tuple[Any, str | None]:
    """A kappa as the fields `kappa` and `kappa_rule`: a number and None, or None and the rule as text.

    Args:
        kappa: a number, a rule of ranges (`weightclip.graded()`, a mapping), either of them as text, or None.
        rule: the text of a rule that was split before.
    """
    if kappa is None:
        return None, None if rule is None else str(parse_kappa(rule))
    if isinstance(kappa, str):
        kappa = parse_kappa(kappa)
    if isinstance(kappa, (Graded, ByLayer, Mapping)):
        return None, str(read_kappa(kappa)[1])
    return kappa, None
