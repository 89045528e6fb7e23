"""What a report says, gathered from results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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
from weightclip.lab.report.text import seeds_text, time_text
from weightclip.lab.results.loading import load
from weightclip.lab.results.metrics import Metric
from weightclip.lab.results.setups import where

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SetupContent:
    """What the report says of one setup."""

    setup: Setup
    runs: tuple[Runs, ...]
    best: tuple[Best, ...]
    trends: tuple[Trend, ...]
    time: str


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
    figures: tuple[Command, ...]


@dataclass(frozen=True)
class Content:
    """What a report says.

    Args:
        command: the one for the same table of best settings in a terminal.
        parts: an experiment each.
        facts: numbers that sum it all up, by what they are.
        data, software, sweeps, failures: where it comes from.
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
    parts = tuple(_part(part, paths, chosen) for part in table.partition_by("experiment", maintain_order=True))
    return Content(
        parts=parts,
        facts=_facts(table, sum(failed.runs for failed in failures)),
        data=tuple(find_data(table)),
        software=tuple(find_software(paths, identities)),
        sweeps=tuple(find_sweeps(stores, done)),
        failures=tuple(failures),
        commands=(
            Command("This report", _command("report", paths, chosen)),
            Command("The table of best settings", _command("best", paths, chosen)),
        ),
        notes=tuple(notes),
    )


def _part(table: pl.DataFrame, paths: Sequence[str | Path], chosen: Mapping[str, str]) -> Part:
    experiment = find_experiment(table["experiment"][0])
    setups = find_setups(table)
    return Part(
        name=experiment.name,
        along=experiment.along,
        score=score_metric(setups[0]),
        setups=tuple(_setup_content(setup) for setup in setups),
        curves=curves_figure(setups),
        sensitivity=tuple(sensitivity_figures(setups)),
        figures=tuple(
            Command(
                f"Figure {figure.number} of the paper: {figure.title}" if figure.number else figure.title,
                _command(f"figure {figure.name}", paths, chosen),
            )
            for figure in experiment.figures()
            if figure.needs_results
        ),
    )


def _setup_content(setup: Setup) -> SetupContent:
    seconds = setup.table.unique("identity")["seconds"].sum()
    return SetupContent(
        setup,
        tuple(runs_table(setup)),
        tuple(best_table(setup)),
        tuple(trend_table(setup)),
        time_text(seconds),
    )


def _facts(table: pl.DataFrame, failed: int) -> dict[str, str]:
    runs = table.unique("identity")
    counts = {
        "runs": len(runs),
        "problems": runs["problem"].n_unique(),
        "methods": runs["method"].n_unique(),
        "failed": failed,
    }
    facts = {name: f"{count:,}" for name, count in counts.items()}
    return {**facts, "seeds": seeds_text(runs["seed"].drop_nulls()), "computing time": time_text(runs["seconds"].sum())}


def _command(name: str, paths: Sequence[str | Path], chosen: Mapping[str, str]) -> str:
    choice = [word for pair in chosen.items() for word in ("--where", "=".join(pair))]
    return f"weightclip {name} {shlex.join([*map(str, paths), *choice])}"
