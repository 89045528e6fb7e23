"""What a report says, gathered from results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import polars as pl

from weightclip.lab.plugins import find_experiment
from weightclip.lab.report.figures import Figure, curves_figure, sensitivity_figures
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
from weightclip.lab.report.setups import Setup, find_setups
from weightclip.lab.report.tables import Best, Runs, Trend, best_table, runs_table, score_metric, trend_table
from weightclip.lab.results.loading import load
from weightclip.lab.results.metrics import Metric
from weightclip.lab.results.setups import where
from weightclip.lab.results.text import seeds_text, time_text

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SetupContent:
    """What the report says of one setup."""

    setup: Setup
    runs: tuple[Runs, ...]
    time: str
    best: tuple[Best, ...]
    trends: tuple[Trend, ...]


@dataclass(frozen=True)
class Command:
    """A command, and what it gives."""

    title: str
    command: str


@dataclass(frozen=True)
class Part:
    """What the report says of one experiment."""

    name: str
    along: str
    score: Metric
    setups: tuple[SetupContent, ...]
    curves: Figure
    sensitivity: tuple[Figure, ...]


@dataclass(frozen=True)
class Content:
    """What a report says.

    Args:
        parts: an experiment each.
        facts: numbers that sum it all up, by what they are.
        data, software, sweeps, failures: where it comes from.
        commands: what else can be made from the same results.
        notes: lines that a reader should know: files that were left out.
    """

    parts: tuple[Part, ...]
    facts: Mapping[str, str]
    data: tuple[Data, ...]
    software: tuple[Software, ...]
    sweeps: tuple[Sweep, ...]
    failures: tuple[Failed, ...]
    commands: tuple[Command, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """In a line."""
        return ", ".join(
            f"{name} {value}" if name == "seeds" else f"{value} {name}" for name, value in self.facts.items()
        )


def gather(*paths: str | Path, chosen: Mapping[str, str] = NOTHING) -> Content:
    """Everything that the results under the paths say.

    Args:
        paths: as `weightclip.lab.results.load` takes them.
        chosen: of runs with these values in their configuration alone, as `weightclip.lab.results.where` takes them.
    """
    notes: list[str] = []
    everything = load(*paths, on_event=notes.append)
    table = where(everything, chosen)
    stores = [path for path in paths if Path(path).is_dir()]
    identities = table["identity"].unique()
    done = everything["identity"].unique()
    failures = find_failures(stores, done)
    parts = tuple(_part(part) for part in table.sort("experiment", maintain_order=True).partition_by("experiment"))
    return Content(
        parts=parts,
        facts=_facts(table, sum(failed.runs for failed in failures)),
        data=tuple(find_data(table)),
        software=tuple(find_software(paths, identities)),
        sweeps=tuple(find_sweeps(stores, done)),
        failures=tuple(failures),
        commands=tuple(
            Command(title, _command(name, paths, chosen)) for title, name in _commands(part.name for part in parts)
        ),
        notes=tuple(notes),
    )


def _part(table: pl.DataFrame) -> Part:
    setups = find_setups(table)
    return Part(
        name=setups[0].experiment.name,
        along=setups[0].experiment.along,
        score=score_metric(setups[0]),
        setups=tuple(_setup_content(setup) for setup in setups),
        curves=curves_figure(setups),
        sensitivity=tuple(sensitivity_figures(setups)),
    )


def _setup_content(setup: Setup) -> SetupContent:
    return SetupContent(
        setup,
        runs=tuple(runs_table(setup)),
        time=_time(setup.table.unique("identity")),
        best=tuple(best_table(setup)),
        trends=tuple(trend_table(setup)),
    )


def _facts(table: pl.DataFrame, failed: int) -> dict[str, str]:
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


def _commands(experiments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What else can be made from the same results, and the command's name."""
    yield "This report", "report"
    yield "The best settings", "best"
    for figure in (figure for name in experiments for figure in find_experiment(name).figures()):
        if figure.needs_results:
            number = f" (figure {figure.number} of the paper)" if figure.number else ""
            yield f"{figure.title}{number}", f"figure {figure.name}"


def _command(name: str, paths: Sequence[str | Path], chosen: Mapping[str, str]) -> str:
    choice = [word for pair in chosen.items() for word in ("--where", "=".join(pair))]
    return f"weightclip {name} {shlex.join([*map(str, paths), *choice])}"
