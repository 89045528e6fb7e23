"""Selection: the best setting of each method, by the paper's criterion or by the last rows.

`auc`: the area under the curve of the score, that is its mean over a run's rows, each weighted by its samples; `final`:
the mean over the last rows. Both are averaged over seeds; what is not a number is the worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl

from weightclip.checks import check_choice, check_number
from weightclip.lab.experiment import Experiment
from weightclip.lab.results.setups import Columns, by_experiment, check_metric

Criterion = Literal["auc", "final"]
CRITERIA = ("auc", "final")


def score_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = "auc", last: float = 0.1
) -> pl.DataFrame:
    """A row per run: its setup, method, settings, seed and identity, its `rows`, and its `score`.

    Args:
        table: a tidy one.
        metric: a column of it; default: the experiment's own score.
        criterion: "auc" or "final".
        last: the rows that count for "final": a share of them, at least one row, or, from 1 on, their number.
    """
    check_choice("criterion", criterion, CRITERIA)
    check_number("last", last)

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        name = check_metric(part, metric, columns)
        about = (*columns.setting, "seed", "identity")
        value = pl.col(name).cast(pl.Float64).fill_null(float("nan"))
        if criterion == "auc":
            weight = _weight(part)
            scored = (value * weight).sum() / weight.sum()
        else:
            rows = pl.len() * last if last < 1 else pl.lit(last)
            scored = value.tail(rows.round().cast(pl.Int64).clip(1)).mean()
        ordered = part.sort("identity", columns.along, maintain_order=True)
        return ordered.group_by(about, maintain_order=True).agg(pl.len().alias("rows"), scored.alias("score"))

    return by_experiment(table, score)


def score_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = "auc", last: float = 0.1
) -> pl.DataFrame:
    """A row per setup, method and setting: the mean `score` over runs, its standard `error` and the `seeds`.

    Of a single run the error is null.
    """

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        runs = score_runs(part, metric, criterion, last)
        value = pl.col("score")
        return (
            runs.group_by(columns.setting, maintain_order=True)
            .agg(value.mean(), (value.std() / pl.len().sqrt()).alias("error"), pl.len().alias("seeds"))
            .sort(columns.setting, nulls_last=True)
        )

    return by_experiment(table, score)


def select(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = "auc", last: float = 0.1
) -> pl.DataFrame:
    """A row per setup and method: its best setting, with `score`, `error` and `seeds`, and how it was found.

    Only settings with as many seeds as the best-covered one of that method compete: `compared` is their number,
    `incomplete` that of the others. `ties` counts others with just that score (the one with the smallest settings is
    taken). `edges` names settings, such as "lr,kappa", whose chosen value is the smallest or the largest of several
    that were tried, unless it cannot go further (0, infinity).
    """

    def choose(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        scored = score_settings(part, metric, criterion, last)
        return best_of(scored, (*columns.setup, "method"), columns, check_metric(part, metric, columns))

    return by_experiment(table, choose)


def best_of(scored: pl.DataFrame, group: Sequence[str], columns: Columns, metric: str) -> pl.DataFrame:
    """Of each group of `score_settings`'s rows the best one, with the columns that `select` adds."""
    value = pl.col("score").fill_nan(None)
    lower = _direction(columns.experiment, metric) == "lower"
    complete = scored.filter(pl.col("seeds") == pl.col("seeds").max().over(group))
    ordered = complete.sort(value, descending=not lower, nulls_last=True, maintain_order=True)
    found = ordered.group_by(group, maintain_order=True).agg(
        pl.all().first(),
        pl.len().alias("compared"),
        (value.eq_missing(value.first()).sum() - 1).alias("ties"),
        _edges(ordered, columns.settings),
    )
    counted = scored.group_by(group).agg(pl.len().alias("_all"))
    found = found.join(counted, on=list(group), nulls_equal=True, maintain_order="left")
    found = found.with_columns((pl.col("_all") - pl.col("compared")).alias("incomplete")).drop("_all")
    return found.select(*scored.columns, "compared", "incomplete", "ties", "edges").sort(group, nulls_last=True)


def best_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = "auc", last: float = 0.1
) -> pl.DataFrame:
    """The rows of the table that belong to the selected settings."""

    def keep(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        chosen = select(part, metric, criterion, last)
        return part.join(chosen, on=columns.setting, how="semi", nulls_equal=True, maintain_order="left")

    return by_experiment(table, keep)


def _weight(table: pl.DataFrame) -> pl.Expr:
    """A row's samples; `samples` counts from the run's beginning."""
    if "samples" not in table.columns:
        return pl.lit(1.0).repeat_by(pl.len()).explode()
    return pl.col("samples").diff().fill_null(pl.col("samples"))


def _direction(experiment: Experiment[Any], metric: str) -> str:
    """Which values are better."""
    direction = experiment.metric(metric).direction
    if not direction:
        known = ", ".join(name for name, one in experiment.metrics().items() if one.direction)
        raise ValueError(f"metric: got {metric!r}, expected one whose values are better or worse: {known}")
    return direction


def _edges(table: pl.DataFrame, settings: Sequence[str]) -> pl.Expr:
    at_edge: list[Any] = [pl.lit("")]
    for name in (one for one in settings if table[one].dtype.is_numeric()):
        value, chosen = pl.col(name), pl.col(name).first()
        at_end = ((chosen == value.min()) & (chosen != 0)) | ((chosen == value.max()) & chosen.is_finite())
        at_edge.append(pl.when((value.n_unique() > 1) & at_end).then(pl.lit(name)))
    return pl.concat_list(at_edge[1:]).list.drop_nulls().list.join(",").alias("edges")
