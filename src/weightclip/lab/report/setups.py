"""The setups of an experiment's results, each with a name of its own: nothing in the report mixes two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weightclip.lab.analysis.setups import Columns, columns_of
from weightclip.lab.text import settings_text, value_text

_CHECKSUM = "checksum"


@dataclass(frozen=True)
class Setup:
    """The runs of one setup.

    Args:
        name: the problem, and what tells it from other setups of that problem.
        problem: the problem.
        stand_in: whether the data is known not to be the official one.
        table: its part of the tidy table.
        columns: what the table's columns are.
        methods: in the paper's order, then other ones.
        configuration: all else that was configured, as text.
    """

    name: str
    problem: str
    stand_in: bool
    table: pl.DataFrame
    columns: Columns
    methods: tuple[str, ...]
    configuration: str

    @property
    def label(self) -> str:
        """The name with a mark of stand-in data."""
        return f"{self.name} (stand-in data)" if self.stand_in else self.name


def find_setups(table: pl.DataFrame) -> list[Setup]:
    """The setups in one experiment's tidy table: by problem, those with the longest runs first."""
    columns = columns_of(table)
    problems = list(columns.schema.problems)
    configured = [name for name in columns.schema.fields if name in columns.setup[2:]]

    def order(part: pl.DataFrame) -> tuple[Any, ...]:
        problem, runs = part["problem"][0], part["identity"].n_unique()
        known = problems.index(problem) if problem in problems else len(problems)
        return known, problem, -len(part) / runs, part["official"][0] is False, -runs

    parts = sorted(table.partition_by(columns.setup, maintain_order=True), key=order)
    firsts = [part.row(0, named=True) for part in parts]
    found = []
    for part, first in zip(parts, firsts, strict=True):
        others = [other for other in firsts if other["problem"] == first["problem"]]
        differing = [name for name in columns.setup if len({other[name] for other in others}) > 1]
        found.append(
            Setup(
                name=", ".join((first["problem"], *(_field_text(name, first[name]) for name in differing))),
                problem=first["problem"],
                stand_in=first["official"] is False,
                table=part,
                columns=columns,
                methods=tuple(columns.schema.ordered_methods(part["method"].unique())),
                configuration=settings_text({name: first[name] for name in configured}),
            )
        )
    return found


def all_methods(setups: Sequence[Setup]) -> list[str]:
    """The methods of all setups, in the paper's order."""
    return setups[0].columns.schema.ordered_methods(method for setup in setups for method in setup.methods)


def _field_text(name: str, value: Any) -> str:
    if name == _CHECKSUM:
        return f"data {value_text(value)[:8]}"
    return f"{name} {value_text(value)}"
