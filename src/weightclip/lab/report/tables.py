"""Tables of the report on one setup: what was run, the best settings beside the paper's, and trends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weightclip.lab.plugins import find_experiment
from weightclip.lab.report.setups import Setup
from weightclip.lab.report.text import (
    NOTHING,
    count_text,
    list_text,
    metric_text,
    seeds_text,
    settings_text,
    time_text,
    value_text,
)
from weightclip.lab.results.metrics import METRICS, Metric
from weightclip.lab.results.selection import best_runs, select
from weightclip.lab.results.statistics import trend

OTHER = "settings."
"""Settings with this prefix are told only where they vary."""


@dataclass(frozen=True)
class Runs:
    """The runs of a method: how many, of which seeds and settings, and the time they took."""

    method: str
    runs: int
    seeds: str
    settings: int
    tried: str
    time: str


@dataclass(frozen=True)
class Best:
    """A method's best setting, and the paper's (None where the paper has none)."""

    method: str
    setting: str
    score: str
    seeds: int
    compared: int
    paper: str | None
    same: bool
    notes: str


@dataclass(frozen=True)
class Trend:
    """A method's slope over the last half of a run, with its interval."""

    method: str
    slope: str
    interval: str
    verdict: str
    seeds: int


def score_metric(setup: Setup) -> Metric:
    """What settings are selected by."""
    return metric_of(setup.columns.score)


def metric_of(name: str) -> Metric:
    """The definition of a score; other packages' experiments have scores that are not defined here."""
    return METRICS.get(name, Metric(name, name, ""))


def runs_table(setup: Setup) -> list[Runs]:
    """A row per method."""
    found = []
    for method in setup.methods:
        rows = setup.table.filter(pl.col("method") == method)
        runs = rows.unique("identity", maintain_order=True)
        names = shown_settings(setup, method)
        found.append(
            Runs(
                method,
                len(runs),
                seeds_text(runs["seed"].drop_nulls()),
                runs.select(setup.columns.settings).n_unique(),
                "; ".join(_tried(name, runs[name]) for name in names),
                time_text(runs["seconds"].sum()),
            )
        )
    return found


def best_table(setup: Setup) -> list[Best]:
    """A row per method, by the paper's criterion."""
    metric, paper = score_metric(setup), _paper(setup)
    chosen = {row["method"]: row for row in select(setup.table).iter_rows(named=True)}
    found = []
    for method in setup.methods:
        row = chosen[method]
        theirs = paper.get(method)
        found.append(
            Best(
                method,
                settings_text({name: row[name] for name in shown_settings(setup, method)}),
                _with_error(row["score"], row["error"], metric),
                row["seeds"],
                row["compared"],
                None if theirs is None else settings_text(theirs),
                theirs is not None and all(row.get(name) == value for name, value in theirs.items()),
                "; ".join(_notes(row)),
            )
        )
    return found


def trend_table(setup: Setup) -> list[Trend]:
    """A row per method, at its best setting."""
    metric = score_metric(setup)
    slopes = {row["method"]: row for row in trend(best_runs(setup.table)).iter_rows(named=True)}
    found = []
    for method in setup.methods:
        row = slopes[method]
        ends = [metric_text(row[end], metric, sign=True) for end in ("low", "high")]
        found.append(
            Trend(
                method,
                metric_text(row["slope"], metric, sign=True),
                NOTHING if NOTHING in ends else f"{ends[0]} to {ends[1]}",
                row["verdict"] or NOTHING,
                row["seeds"],
            )
        )
    return found


def shown_settings(setup: Setup, method: str) -> list[str]:
    """A method's settings worth telling: the named ones, and others that vary."""
    experiment = find_experiment(setup.table["experiment"][0])
    rows = setup.table.filter(pl.col("method") == method)
    names = [name for name in setup.columns.settings if rows[name].is_not_null().any()]
    told = [name for name in names if not name.startswith(OTHER) or rows[name].n_unique() > 1]
    fields = list(experiment.setting_fields)
    return sorted(told, key=lambda name: fields.index(field) if (field := name.partition(".")[0]) in fields else -1)


def _tried(name: str, column: pl.Series) -> str:
    return f"{name.removeprefix(OTHER)} {', '.join(map(value_text, column.unique().sort()))}"


def _paper(setup: Setup) -> Mapping[str, Mapping[str, Any]]:
    best = find_experiment(setup.table["experiment"][0]).presets().get("best", {})
    found: Mapping[str, Mapping[str, Any]] = best.get(setup.problem, {})
    return found


def _with_error(value: float | None, error: float | None, metric: Metric) -> str:
    text = metric_text(value, metric)
    if text == NOTHING or error is None or math.isnan(error):
        return text
    return f"{text} ± {metric_text(error, metric)}"


def _notes(row: Mapping[str, Any]) -> Sequence[str]:
    found = []
    if row["edges"]:
        found.append(f"{list_text(row['edges'].split(','))} at the edge of what was tried")
    if row["ties"]:
        found.append(f"tied with {count_text(row['ties'], 'other setting')}")
    if row["incomplete"]:
        found.append(f"{count_text(row['incomplete'], 'setting')} with fewer seeds left out")
    return found
