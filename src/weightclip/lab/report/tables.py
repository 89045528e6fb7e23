"""Tables of the report: runs, best settings and trends of a setup; methods over all problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weightclip.lab.analysis.best import best_settings, display_setting, paper_setting, setting_notes
from weightclip.lab.analysis.setups import Columns, columns_of
from weightclip.lab.analysis.statistics import across_problems, is_comparable
from weightclip.lab.callbacks import Event
from weightclip.lab.records.schema import Criterion, Metric
from weightclip.lab.text import (
    NOTHING,
    change_text,
    error_text,
    metric_text,
    seeds_text,
    settings_text,
    time_text,
    value_text,
)


@dataclass(frozen=True)
class Runs:
    """The runs of a method: number, seeds, settings and time."""

    method: str
    runs: int
    seeds: str
    settings: int
    tried: str
    time: str


@dataclass(frozen=True)
class Best:
    """The best setting of a method, and the paper's setting (None if there is none) with its score in these results."""

    method: str
    setting: str
    score: str
    seeds: int
    compared: int
    paper: str | None
    paper_score: str
    same: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Trend:
    """The slope of a method over the last half of a run, with its interval."""

    method: str
    slope: str
    interval: str
    verdict: str
    seeds: int


@dataclass(frozen=True)
class Across:
    """The interquartile mean of a method over problems, with its interval and the values of the other axes."""

    method: str
    at: str
    score: str
    interval: str
    problems: int
    runs: int


def score_metric(setup: Setup) -> Metric:
    """The metric that settings are selected by."""
    return setup.columns.schema.metric(setup.columns.schema.score)


def runs_table(setup: Setup) -> list[Runs]:
    """A row per method."""
    found = []
    for method in setup.methods:
        rows = setup.table.filter(pl.col("method") == method)
        runs = rows.unique("identity", maintain_order=True)
        names = display_setting(runs.row(0, named=True), setup.table)
        found.append(
            Runs(
                method,
                len(runs),
                seeds_text(runs["seed"].drop_nulls()),
                runs.select(setup.columns.settings).n_unique(),
                "; ".join(_values_text(name, runs[name]) for name in names),
                time_text(float(runs["seconds"].sum())),
            )
        )
    return found


BestRow = Mapping[str, Any]
"""A row of `best_settings`."""


def best_table(setup: Setup, rows: Iterable[BestRow]) -> list[Best]:
    """A row per method; `rows` is the result of `best_rows`."""
    metric = score_metric(setup)
    found = []
    for row in rows:
        paper = paper_setting(row)
        found.append(
            Best(
                row["method"],
                settings_text(display_setting(row, setup.table)),
                error_text(row["score"], row["error"], metric),
                row["seeds"],
                row["compared"],
                None if paper is None else settings_text(paper),
                metric_text(row["paper_score"], metric),
                bool(row["same"]),
                tuple(setting_notes(row)),
            )
        )
    return found


def trend_table(setup: Setup, rows: Iterable[BestRow]) -> list[Trend]:
    """A row per method, at its best setting; `rows` is the result of `best_rows`."""
    metric = score_metric(setup)
    found = []
    for row in rows:
        slope, low, high = (change_text(row[name], metric) for name in ("slope", "low", "high"))
        interval = NOTHING if row["verdict"] is None else f"{low} to {high}"
        found.append(Trend(row["method"], slope, interval, row["verdict"] or NOTHING, row["seeds"]))
    return found


def across_table(setups: Sequence[Setup], criterion: Criterion, on_event: Event) -> list[Across]:
    """A row per method over the problems of an experiment; empty if a mean over them is not meaningful."""
    table, metric = pl.concat([setup.table for setup in setups]), score_metric(setups[0])
    if not is_comparable(table, metric):
        return []
    axes = setups[0].columns.axes

    def report(line: str) -> None:
        on_event(f"over problems, {line}")

    return [
        Across(
            row["method"],
            settings_text({axis: row[axis] for axis in axes}),
            metric_text(row["iqm"], metric),
            f"{metric_text(row['low'], metric)} to {metric_text(row['high'], metric)}",
            row["problems"],
            row["runs"],
        )
        for row in across_problems(table, criterion=criterion, on_event=report).iter_rows(named=True)
    ]


def best_rows(setup: Setup, criterion: Criterion) -> list[BestRow]:
    """The rows of `best_settings`, in the order of `setup.methods`."""
    found = {row["method"]: row for row in best_settings(setup.table, criterion=criterion).iter_rows(named=True)}
    return [found[method] for method in setup.methods]


def _values_text(name: str, column: pl.Series) -> str:
    return f"{name.rpartition('.')[2]} {', '.join(map(value_text, column.unique().sort()))}"


_CHECKSUM = "checksum"


@dataclass(frozen=True)
class Setup:
    """The runs of one setup.

    Args:
        name: the problem, and the values that distinguish it from other setups of the problem.
        problem: name of the problem.
        stand_in: whether the data is known to be unofficial.
        table: rows of the tidy table.
        columns: columns of the table.
        methods: methods, the paper's first in its order.
        configuration: the other configured values, as text.
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
        """The name, with a mark for stand-in data."""
        return f"{self.name} (stand-in data)" if self.stand_in else self.name


def find_setups(table: pl.DataFrame) -> list[Setup]:
    """The setups in one experiment's tidy table, by problem and then by the length of runs, longest first."""
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
