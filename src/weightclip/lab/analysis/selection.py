"""Selection of the best setting of each method, by the paper's criterion or by the last rows (Table 2 of the paper).

`auc` is the area under the curve of the score: the mean over the rows of a run, weighted by their samples. `final` is
the mean over the last rows. Both are averaged over seeds; NaN is the worst score.

Settings are compared on the same seeds: those that more than half of the method's settings have. A single setting with
more or fewer seeds therefore does not change the comparison of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from weightclip._validation import check_name, check_number
from weightclip.lab.analysis.setups import (
    Columns,
    by_experiment,
    check_metric,
)
from weightclip.lab.records.columns import whole_rows
from weightclip.lab.records.schema import CRITERIA, DEFAULT, LAST_FRACTION, Criterion, Schema


def score_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return a row per run: setup, method, settings, seed, identity, number of `rows`, and `score`.

    Args:
        table: tidy table.
        metric: column of the table (default: the score of the experiment). Rows with null are ignored; NaN makes the
            score NaN.
        criterion: "auc" or "final".
        last: rows that "final" averages: a fraction below 1 (at least one row), or a number of rows.
    """
    check_name("criterion", criterion, tuple(CRITERIA))
    check_number("last", last)

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        name = check_metric(part, metric, columns)
        about = (*columns.setting, "seed", "identity")
        value = pl.col(name).cast(pl.Float64)
        if criterion == "auc":
            weight = _weight(part) * value.is_not_null()
            scored = (value * weight).sum() / weight.sum()
        else:
            rows = pl.len() * last if last < 1 else pl.lit(last)
            scored = value.tail(rows.round().cast(pl.Int64).clip(1)).mean().fill_null(float("nan"))
        counted = part if criterion == "auc" else whole_rows(part)  # "auc" weights rows by their samples
        ordered = counted.sort("identity", columns.x_column, maintain_order=True)
        return ordered.group_by(about, maintain_order=True).agg(pl.len().alias("rows"), scored.alias("score"))

    return by_experiment(table, score)


def score_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return a row per setup, method and setting: the mean `score` over runs, its standard `error` and `seeds`.

    The error of a single run is null.
    """

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        return averaged(score_runs(part, metric, criterion, last), columns)

    return by_experiment(table, score)


def select(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """Return the best setting per setup and method, with `score`, `error`, `seeds` and details of the selection.

    Settings are compared on the seeds that more than half of the method's settings have. `compared` is the number of
    settings that have all of these seeds, `incomplete` the number of the others, which are excluded. If no setting has
    all of them, the settings with the most seeds are compared on their own seeds. `shared` is the number of common
    seeds (0: different seeds); it is null if all compared settings have the same seeds. `score`, `error` and `seeds`
    cover all seeds of the selected setting.

    `ties` is the number of other settings with the same score (the smallest values are selected). `edges` lists
    settings, such as "lr,kappa", whose selected value is the smallest or largest of those tried, except 0 and infinity.
    """

    def choose(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        runs = score_runs(part, metric, criterion, last)
        return best_of(runs, (*columns.setup, "method"), columns, check_metric(part, metric, columns))

    return by_experiment(table, choose)


def best_of(runs: pl.DataFrame, group: Sequence[str], columns: Columns, metric: str) -> pl.DataFrame:
    """The best setting of each group of rows of `score_runs`, with the columns of `select`."""
    lower = _direction(columns.schema, metric) == "lower"
    value = pl.col("_score").fill_nan(None)
    compared = _compared(runs, group, columns)
    ordered = compared.sort(value, descending=not lower, nulls_last=True, maintain_order=True)
    found = ordered.group_by(group, maintain_order=True).agg(
        pl.all().first(),
        pl.len().alias("compared"),
        (value.eq_missing(value.first()).sum() - 1).alias("ties"),
        _edges(ordered, columns.settings),
    )
    settings = averaged(runs, columns)
    tried = settings.group_by(group).agg(pl.len().alias("_tried"))
    found = found.join(settings, on=columns.setting, nulls_equal=True, maintain_order="left")
    found = found.join(tried, on=list(group), nulls_equal=True, maintain_order="left")
    found = found.with_columns((pl.col("_tried") - pl.col("compared")).alias("incomplete"))
    added = ("compared", "incomplete", "shared", "ties", "edges")
    return found.select(*settings.columns, *added).sort(group, nulls_last=True)


def averaged(runs: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The result of `score_settings`, computed from `score_runs`."""
    value = pl.col("score")
    return (
        runs.group_by(columns.setting, maintain_order=True)
        .agg(value.mean(), (value.std() / pl.len().sqrt()).alias("error"), pl.len().alias("seeds"))
        .sort(columns.setting, nulls_last=True)
    )


def _compared(runs: pl.DataFrame, group: Sequence[str], columns: Columns) -> pl.DataFrame:
    """A row per compared setting of each group: its `_score` on the common seeds, and `shared`."""
    setting, seed, common = pl.struct(columns.setting), pl.col("seed"), pl.col("_common")
    runs = runs.with_columns(
        _common=2 * setting.n_unique().over(*group, "seed") > setting.n_unique().over(group),
        _seeds=seed.n_unique().over(columns.setting),
    )
    runs = runs.with_columns(
        _shared=seed.filter(common).n_unique().over(group),
        _own=seed.filter(common).n_unique().over(columns.setting),
    )
    runs = runs.with_columns(_complete=(pl.col("_own") == pl.col("_shared")) & (pl.col("_shared") > 0))
    runs = runs.with_columns(_any=pl.col("_complete").any().over(group))
    has_most_seeds = pl.col("_seeds") == pl.col("_seeds").max().over(group)
    compared = runs.filter(pl.when("_any").then("_complete").otherwise(has_most_seeds))
    same = (seed.n_unique().over(group) == pl.col("_seeds")).all().over(group)
    shared = pl.when(~same).then(pl.when("_any").then("_shared").otherwise(0))
    counted = compared.with_columns(shared=shared).filter(common | ~pl.col("_any"))
    return (
        counted.group_by(columns.setting, maintain_order=True)
        .agg(pl.col("score").mean().alias("_score"), pl.col("shared").first())
        .sort(columns.setting, nulls_last=True)
    )


def best_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """The rows of the table that belong to the selected settings."""

    def keep(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        return runs_at(part, select(part, metric, criterion, last), columns)

    return by_experiment(table, keep)


def runs_at(table: pl.DataFrame, chosen: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The rows of the table that have the settings in `chosen`, a result of `select`."""
    return table.join(chosen, on=columns.setting, how="semi", nulls_equal=True, maintain_order="left")


def _weight(table: pl.DataFrame) -> pl.Expr:
    """The number of samples of a row; `samples` counts from the start of the run."""
    if "samples" not in table.columns:
        return pl.lit(1.0).repeat_by(pl.len()).explode()
    return pl.col("samples").diff().fill_null(pl.col("samples"))


def _direction(schema: Schema, metric: str) -> str:
    """Which values of a metric are better."""
    direction = schema.metric(metric).direction
    if not direction:
        known = ", ".join(name for name, one in schema.metrics.items() if one.direction)
        raise ValueError(f"metric: got {metric!r}, expected a metric with a direction: {known}")
    return direction


def _edges(table: pl.DataFrame, settings: Sequence[str]) -> pl.Expr:
    at_edge: list[Any] = [pl.lit("")]
    for name in (one for one in settings if table[one].dtype.is_numeric()):
        value, chosen = pl.col(name), pl.col(name).first()
        at_end = ((chosen == value.min()) & (chosen != 0)) | ((chosen == value.max()) & chosen.is_finite())
        at_edge.append(pl.when((value.drop_nulls().n_unique() > 1) & at_end).then(pl.lit(name)))
    return pl.concat_list(at_edge[1:]).list.drop_nulls().list.join(",").alias("edges")
