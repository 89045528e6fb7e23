"""The interactive figures of an experiment: its curves, and how sensitive scores are to each setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import polars as pl

from weightclip.lab.analysis.best import told_setting
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.selection import best_runs
from weightclip.lab.analysis.statistics import sensitivity
from weightclip.lab.config import field_types
from weightclip.lab.plotting.style import style_of
from weightclip.lab.records.metrics import CRITERIA, Criterion, Metric
from weightclip.lab.records.tidy import LAST
from weightclip.lab.report.charts import LABEL, NOTE, SETUP, line_chart
from weightclip.lab.report.setups import Setup, all_methods
from weightclip.lab.report.tables import score_metric
from weightclip.lab.text import list_text, settings_text, value_text

SHORT, MOST = 50, 200
"""Curves of up to `SHORT` rows are drawn row by row; longer ones as at most `MOST` points, means of 2 rows or more."""


@dataclass(frozen=True)
class Figure:
    """A chart, what is below it, and the metrics in it."""

    spec: dict[str, Any]
    caption: str
    metrics: tuple[Metric, ...]


def curves_figure(setups: Sequence[Setup], criterion: Criterion) -> Figure:
    """Every metric along the rows of runs at each method's best setting."""
    along = setups[0].columns.along
    x = along.capitalize()
    metrics = _metrics(setups)
    data = pl.concat([_wide(setup, x, metrics, criterion) for setup in setups], how="diagonal_relaxed")
    spec = line_chart(data, x, [setup.label for setup in setups], metrics, all_methods(setups))
    return Figure(spec, " ".join(_thinned(setups, along)), tuple(metrics))


def sensitivity_figures(setups: Sequence[Setup], criterion: Criterion) -> list[Figure]:
    """For each setting of which several values were tried: the best score over the other settings by its value."""
    return [_sensitivity(setups, parameter, criterion) for parameter in _varied(setups)]


def _sensitivity(setups: Sequence[Setup], parameter: str, criterion: Criterion) -> Figure:
    among = [setup for setup in setups if parameter in _varied([setup])]
    x = parameter.rpartition(".")[2]
    found = [part for setup in among for part in _scores(setup, parameter, x, criterion)]
    data = pl.concat(found).sort(x, maintain_order=True)
    data = data.with_columns(pl.col(x).map_elements(value_text, return_dtype=pl.String))
    score = score_metric(setups[0])
    score = replace(score, label=f"{score.label}, {CRITERIA[criterion]}")
    drawn = set(data[LABEL])
    methods = [method for method in all_methods(among) if style_of(method).label in drawn]
    spec = line_chart(data, x, [setup.label for setup in among], [score], methods, height=300)
    return Figure(spec, ": ".join(filter(None, (x, _help(setups[0], parameter)))), (score,))


def _help(setup: Setup, parameter: str) -> str:
    known = {one.name: one.help.text for one in field_types(setup.experiment.config).values()}
    return str(known.get(parameter, ""))


def _metrics(setups: Sequence[Setup]) -> list[Metric]:
    """Those that any setup has values of, the score first."""
    experiment = setups[0].experiment
    tables = [setup.table for setup in setups]
    measured = tables[0].columns[tables[0].columns.index(LAST[-1]) + 1 :]
    there = [name for name in measured if any(table[name].is_not_null().any() for table in tables)]
    others = [name for name in there if name != experiment.score and experiment.metric(name).help]
    return [experiment.metric(name) for name in (experiment.score, *others)]


def _every(setup: Setup) -> int:
    rows = len(setup.table) // setup.table["identity"].n_unique()
    return 1 if rows <= SHORT else max(2, math.ceil(rows / MOST))


def _thinned(setups: Sequence[Setup], along: str) -> Iterator[str]:
    by_every: dict[int, list[str]] = {}
    for setup in setups:
        by_every.setdefault(_every(setup), []).append(setup.name)
    for every, names in by_every.items():
        if every > 1:
            yield f"A point is the mean of {every} {along}s in {list_text(names)}."


def _wide(setup: Setup, x: str, metrics: Sequence[Metric], criterion: Criterion) -> pl.DataFrame:
    """The curves of all metrics side by side, as `line_chart` takes them."""
    best, key = best_runs(setup.table, criterion=criterion), ["method", setup.columns.along]
    drawn = [
        curves(best, metric.name, every=_every(setup)).select(
            *key,
            pl.col("mean").alias(metric.name),
            pl.col("low").alias(f"{metric.name} low"),
            pl.col("high").alias(f"{metric.name} high"),
        )
        for metric in metrics
    ]
    table = reduce(lambda left, right: left.join(right, on=key, how="left", maintain_order="left"), drawn)
    return table.select(
        pl.lit(setup.label).alias(SETUP), _label(), pl.col(setup.columns.along).alias(x), pl.exclude(key)
    )


def _label() -> pl.Expr:
    return pl.col("method").map_elements(lambda name: style_of(name).label, return_dtype=pl.String).alias(LABEL)


def _varied(setups: Sequence[Setup]) -> list[str]:
    """Settings of which some method tried several values, in the order in which an experiment has them."""
    names: dict[str, None] = {}
    for setup in setups:
        for method in setup.methods:
            rows = setup.table.filter(pl.col("method") == method)
            told = told_setting(rows.row(0, named=True), setup.table)
            names |= dict.fromkeys(name for name in told if name != "rules" and rows[name].n_unique() > 1)
    order = setups[0].experiment.setting_fields
    return sorted(names, key=lambda name: order.index(name.partition(".")[0]))


def _scores(setup: Setup, parameter: str, x: str, criterion: Criterion) -> Iterator[pl.DataFrame]:
    """Of each method that tried several values, as `line_chart` takes them."""
    score = setup.columns.score
    found = sensitivity(setup.table, parameter, criterion=criterion)
    for _, rows in found.group_by("method", maintain_order=True):
        if len(rows) > 1:
            told = (told_setting(row, setup.table) for row in rows.iter_rows(named=True))
            notes = [settings_text({**setting, parameter: None}) for setting in told]
            error = pl.col("error").fill_null(0.0)
            yield rows.select(
                pl.lit(setup.label).alias(SETUP),
                _label(),
                pl.col(parameter).alias(x),
                pl.col("score").alias(score),
                (pl.col("score") - error).alias(f"{score} low"),
                (pl.col("score") + error).alias(f"{score} high"),
                pl.Series(NOTE, notes, dtype=pl.String),
            )
