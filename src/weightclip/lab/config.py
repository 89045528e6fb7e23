"""Configurations: the options of the command line are made from the fields of a dataclass."""

from __future__ import annotations

METHOD, PROBLEM, ALGORITHM, OUTPUT = "method", "problem", "algorithm", "output"
GROUPS = (METHOD, PROBLEM, ALGORITHM, OUTPUT)
"""How `--help` groups the fields."""


def option(help_text: str, group: str = ALGORITHM, metavar: str = "") -> dict[str, str]:
    """The metadata of a field: its line of help, the group it is listed in, and the name of its value."""
    return {"help": help_text, "group": group, "metavar": metavar}
