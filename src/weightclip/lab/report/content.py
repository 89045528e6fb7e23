"""The content of a report, collected from results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import polars as pl

from weightclip.lab.analysis.setups import where
from weightclip.lab.callbacks import Event, ignore
from weightclip.lab.records.schema import CRITERIA, DEFAULT, Criterion, Metric
from weightclip.lab.records.table import NoTableError, load_any, no_records
from weightclip.lab.report.charts import Chart, curves_chart, sensitivity_charts
from weightclip.lab.report.findings import finding
from weightclip.lab.report.provenance import (
    Data,
    Failed,
    Software,
    Sweep,
    find_data,
    find_failures,
    find_software,
    find_sweeps,
)
from weightclip.lab.report.tables import (
    Across,
    Best,
    Runs,
    Setup,
    Trend,
    across_table,
    best_rows,
    best_table,
    find_setups,
    runs_table,
    score_metric,
    trend_table,
)
from weightclip.lab.text import seeds_text, time_text

if TYPE_CHECKING:
    from weightclip.lab.plotting.figure import Figure

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SetupContent:
    """The content for one setup."""

    setup: Setup
    runs: tuple[Runs, ...]
    time: str
    finding: str
    best: tuple[Best, ...]
    trends: tuple[Trend, ...]


@dataclass(frozen=True)
class Command:
    """A command and a description of its output."""

    title: str
    command: str


@dataclass(frozen=True)
class ExperimentContent:
    """The content for one experiment."""

    name: str
    x_column: str
    score: Metric
    setups: tuple[SetupContent, ...]
    across: tuple[Across, ...]
    curves: Chart
    sensitivity: tuple[Chart, ...]

    @property
    def figures(self) -> tuple[Chart, ...]:
        """All charts, in the order of the page."""
        return (self.curves, *self.sensitivity)


@dataclass(frozen=True)
class Content:
    """The content of a report.

    Args:
        parts: one part per experiment; empty if no run has a record.
        criterion: criterion for best settings, as text.
        facts: name -> summary number.
        data, software, sweeps, failures: provenance of the results.
        commands: commands that use the same results.
        notes: messages for the reader, such as skipped files.
    """

    parts: tuple[ExperimentContent, ...]
    criterion: str
    facts: Mapping[str, str]
    data: tuple[Data, ...]
    software: tuple[Software, ...]
    sweeps: tuple[Sweep, ...]
    failures: tuple[Failed, ...]
    commands: tuple[Command, ...]
    notes: tuple[str, ...]

    @property
    def findings(self) -> list[str]:
        """One sentence for each setup."""
        return [one.finding for part in self.parts for one in part.setups if one.finding]

    @property
    def labels(self) -> dict[str, str]:
        """The facts with singular or plural names: `run` or `runs`."""
        return {_label(name, value): value for name, value in self.facts.items()}

    @property
    def summary(self) -> str:
        """The facts in one line."""
        return ", ".join(
            f"{label} {value}" if label.startswith("seed") else f"{value} {label}"
            for label, value in self.labels.items()
        )


def gather(
    *paths: str | Path,
    chosen: Mapping[str, str] = NOTHING,
    criterion: Criterion = DEFAULT,
    figures: Iterable[Figure] = (),
) -> Content:
    """Collect the content of a report on the results under the paths. Stores without records give only failures.

    Args:
        paths: see `weightclip.lab.load`.
        chosen: configuration values that select runs; see `weightclip.lab.analysis.where`.
        criterion: criterion for best settings; see `weightclip.lab.analysis.select`.
        figures: figures whose commands are listed if the results are sufficient.
    """
    notes: list[str] = []
    all_runs = load_any(paths, on_event=notes.append)
    stores = [path for path in paths if Path(path).is_dir()]
    done = all_runs["identity"].unique()
    failures, sweeps = find_failures(stores, done), find_sweeps(stores, done)
    if all_runs.is_empty() and not failures and not sweeps:
        raise no_records(paths)
    table = where(all_runs, chosen) if len(all_runs) else all_runs
    experiments = [
        part for _, part in table.sort("experiment", maintain_order=True).group_by("experiment", maintain_order=True)
    ]
    return Content(
        parts=tuple(_part(part, criterion, notes.append) for part in experiments),
        criterion=CRITERIA[criterion],
        facts=_facts(table, sum(failed.runs for failed in failures)),
        data=tuple(find_data(table)),
        software=tuple(find_software(paths, table["identity"].unique())),
        sweeps=tuple(sweeps),
        failures=tuple(failures),
        commands=tuple(
            Command(title, _command(name, paths, chosen, criterion))
            for title, name in _commands(table, figures, cache(partial(_additional_table, paths, chosen)))
        ),
        notes=tuple(notes),
    )


def _part(table: pl.DataFrame, criterion: Criterion, on_event: Event) -> ExperimentContent:
    setups = find_setups(table)
    return ExperimentContent(
        name=setups[0].columns.schema.experiment,
        x_column=setups[0].columns.x_column,
        score=score_metric(setups[0]),
        setups=tuple(_setup_content(setup, criterion) for setup in setups),
        across=tuple(across_table(setups, criterion, on_event)),
        curves=curves_chart(setups, criterion),
        sensitivity=tuple(sensitivity_charts(setups, criterion)),
    )


def _setup_content(setup: Setup, criterion: Criterion) -> SetupContent:
    rows = best_rows(setup, criterion)
    return SetupContent(
        setup,
        runs=tuple(runs_table(setup)),
        time=_time(setup.table.unique("identity")),
        finding=finding(setup, rows, criterion),
        best=tuple(best_table(setup, rows)),
        trends=tuple(trend_table(setup, rows)),
    )


def _facts(table: pl.DataFrame, failed: int) -> dict[str, str]:
    if table.is_empty():
        return {"runs": "0", "failed": f"{failed:,}"}
    runs = table.unique("identity")
    return {
        "runs": f"{len(runs):,}",
        "problems": f"{runs['problem'].n_unique():,}",
        "methods": f"{runs['method'].n_unique():,}",
        "seeds": seeds_text(runs["seed"].drop_nulls()),
        "computing time": _time(runs),
        "failed": f"{failed:,}",
    }


def _time(runs: pl.DataFrame) -> str:
    return time_text(float(runs["seconds"].sum()))


def _label(name: str, value: str) -> str:
    one = value.isdecimal() if name == "seeds" else value == "1"  # seeds are a list, not a number
    return name.removesuffix("s") if one else name


def _commands(
    table: pl.DataFrame, figures: Iterable[Figure], additional: Callable[[str], pl.DataFrame]
) -> Iterator[tuple[str, str]]:
    """Titles and names of the commands that use the same results."""
    yield "This report", "report"
    if table.is_empty():
        return
    yield "Best settings", "best"
    for figure in figures:
        source = table if figure.table is None else additional(figure.table)
        if figure.can_be_drawn(source):
            number = f" (figure {figure.number} of the paper)" if figure.number else ""
            yield f"{figure.title}{number}", f"figure {figure.name}"


def _additional_table(paths: Sequence[str | Path], chosen: Mapping[str, str], name: str) -> pl.DataFrame:
    """An additional table of the selected runs, or their main table. Messages on skipped files are not repeated."""
    try:
        found = load_any(paths, name, on_event=ignore)
    except NoTableError:
        found = load_any(paths, on_event=ignore)  # the figure reports what is missing
    return where(found, chosen) if len(found) else found


def _command(name: str, paths: Sequence[str | Path], chosen: Mapping[str, str], criterion: Criterion) -> str:
    choice = [word for pair in chosen.items() for word in ("--where", "=".join(pair))]
    if criterion != DEFAULT:
        choice += ["--criterion", criterion]
    return f"weightclip {name} {shlex.join([*map(str, paths), *choice])}"
