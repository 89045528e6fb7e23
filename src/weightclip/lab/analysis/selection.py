"""Selection: the best setting of each method, by the paper's criterion or by the last rows.

`auc`: the area under the curve of the score, that is its mean over a run's rows, each weighted by its samples; `final`:
the mean over the last rows. Both are averaged over seeds; what is not a number is the worst.

Settings are compared on the same seeds: those that more than half of a method's settings have. So neither a setting
with further seeds nor one that was only tried out decides what the others are compared on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from weightclip._validation import check_name, check_number
from weightclip.lab.analysis.setups import Columns, by_experiment, check_metric
from weightclip.lab.records.columns import whole_rows
from weightclip.lab.records.schema import CRITERIA, DEFAULT, LAST_FRACTION, Criterion, Schema


def score_runs(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """A row per run: its setup, method, settings, seed and identity, its `rows`, and its `score`.

    Args:
        table: a tidy one.
        metric: a column of it; default: the experiment's own score. Rows where it is null do not count, as there was
            nothing to measure; where it is NaN, so is the score.
        criterion: "auc" or "final".
        last: the rows that count for "final": a share of them, at least one row, or, from 1 on, their number.
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
        counted = part if criterion == "auc" else whole_rows(part)  # the area weights rows by their samples
        ordered = counted.sort("identity", columns.x_column, maintain_order=True)
        return ordered.group_by(about, maintain_order=True).agg(pl.len().alias("rows"), scored.alias("score"))

    return by_experiment(table, score)


def score_settings(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """A row per setup, method and setting: the mean `score` over runs, its standard `error` and the `seeds`.

    Of a single run the error is null.
    """

    def score(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        return averaged(score_runs(part, metric, criterion, last), columns)

    return by_experiment(table, score)


def select(
    table: pl.DataFrame, metric: str | None = None, criterion: Criterion = DEFAULT, last: float = LAST_FRACTION
) -> pl.DataFrame:
    """A row per setup and method: its best setting, with `score`, `error` and `seeds`, and how it was found.

    Settings compete on the seeds that more than half of the method's settings have, if they have all of these:
    `compared` is their number, `incomplete` that of the others. Where no setting has them, those with the most seeds
    compete, on whatever seeds these are. `shared` is the number of seeds that were compared on (0: on different ones);
    it is null where all that compete have the same seeds. `score`, `error` and `seeds` are over all seeds of the
    chosen setting.

    `ties` counts others that were just as good (the one with the smallest settings is taken). `edges` names settings,
    such as "lr,kappa", whose chosen value is the smallest or the largest of several that were tried, unless it cannot
    go further (0, infinity).
    """

    def choose(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        runs = score_runs(part, metric, criterion, last)
        return best_of(runs, (*columns.setup, "method"), columns, check_metric(part, metric, columns))

    return by_experiment(table, choose)


def best_of(runs: pl.DataFrame, group: Sequence[str], columns: Columns, metric: str) -> pl.DataFrame:
    """Of each group of `score_runs`'s rows the best setting, with the columns that `select` adds."""
    lower = _direction(columns.schema, metric) == "lower"
    value = pl.col("_score").fill_nan(None)
    competing = _compared(runs, group, columns)
    ordered = competing.sort(value, descending=not lower, nulls_last=True, maintain_order=True)
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
    """`score_settings`, from `score_runs`."""
    value = pl.col("score")
    return (
        runs.group_by(columns.setting, maintain_order=True)
        .agg(value.mean(), (value.std() / pl.len().sqrt()).alias("error"), pl.len().alias("seeds"))
        .sort(columns.setting, nulls_last=True)
    )


def _compared(runs: pl.DataFrame, group: Sequence[str], columns: Columns) -> pl.DataFrame:
    """A row per setting that competes in its group: its `_score` on the seeds that count there, and `shared`."""
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
    most = pl.col("_seeds") == pl.col("_seeds").max().over(group)
    competing = runs.filter(pl.when("_any").then("_complete").otherwise(most))
    same = (seed.n_unique().over(group) == pl.col("_seeds")).all().over(group)
    shared = pl.when(~same).then(pl.when("_any").then("_shared").otherwise(0))
    counted = competing.with_columns(shared=shared).filter(common | ~pl.col("_any"))
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
        chosen = select(part, metric, criterion, last)
        return part.join(chosen, on=columns.setting, how="semi", nulls_equal=True, maintain_order="left")

    return by_experiment(table, keep)


def _weight(table: pl.DataFrame) -> pl.Expr:
    """A row's samples; `samples` counts from the run's beginning."""
    if "samples" not in table.columns:
        return pl.lit(1.0).repeat_by(pl.len()).explode()
    return pl.col("samples").diff().fill_null(pl.col("samples"))


def _direction(schema: Schema, metric: str) -> str:
    """Which values of a metric are better."""
    direction = schema.metric(metric).direction
    if not direction:
        known = ", ".join(name for name, one in schema.metrics.items() if one.direction)
        raise ValueError(f"metric: got {metric!r}, expected one whose values are better or worse: {known}")
    return direction


def _edges(table: pl.DataFrame, settings: Sequence[str]) -> pl.Expr:
    at_edge: list[Any] = [pl.lit("")]
    for name in (one for one in settings if table[one].dtype.is_numeric()):
        value, chosen = pl.col(name), pl.col(name).first()
        at_end = ((chosen == value.min()) & (chosen != 0)) | ((chosen == value.max()) & chosen.is_finite())
        at_edge.append(pl.when((value.drop_nulls().n_unique() > 1) & at_end).then(pl.lit(name)))
    return pl.concat_list(at_edge[1:]).list.drop_nulls().list.join(",").alias("edges")
