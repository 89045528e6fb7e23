"""Curves: a metric by task, epoch or step, averaged over seeds, for figures and the report."""

from __future__ import annotations

import polars as pl

from weightclip._validation import check_count
from weightclip.lab.analysis.setups import Columns, by_experiment, check_metric
from weightclip.lab.analysis.statistics import half_width
from weightclip.lab.records.columns import CUT_SHORT, cut_short


def cut(parts: int) -> pl.Expr:
    """The part of the run that a row is in: 0 to parts - 1. Part sizes differ by at most one row. Rows are in order."""
    return pl.int_range(pl.len()).over("identity") * parts // pl.len().over("identity")


def curves(
    table: pl.DataFrame,
    metric: str | None = None,
    every: int = 1,
    level: float | None = None,
    points: int | None = None,
) -> pl.DataFrame:
    """Return a row per setup, method, setting and point of the curve, with `mean`, `low`, `high` and `seeds`.

    Further columns are the x column (`task`) and, if the table has it, `samples`, both at the last row of the point.
    For a single seed, `low` and `high` equal the mean. `cut_short` marks points with a task that was cut short by the
    end of the run.

    Args:
        table: tidy table; each setting of a method has its own curve (see `best_runs`).
        metric: column of the table (default: the score of the experiment).
        every: number of rows that are averaged into one point; the paper's figures use 2.
        level: confidence level of the Student interval from `low` to `high` (default: mean ± one standard error).
        points: maximum number of points, each the mean over an equal part of the run; replaces `every`.
    """
    check_count("every", every)
    point = pl.int_range(pl.len()).over("identity") // every if points is None else cut(check_count("points", points))

    def average(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        name = check_metric(part, metric, columns)
        x_columns = [one for one in (columns.x_column, "samples") if one in part.columns]
        ordered = part.sort("identity", columns.x_column, maintain_order=True)
        binned = ordered.group_by((*columns.setting, "identity", point.alias("_point")), maintain_order=True).agg(
            pl.col(x_columns).last(), pl.col(name).cast(pl.Float64).mean().alias("mean"), cut_short(part).any()
        )
        value = pl.col("mean")
        averaged = (
            binned.group_by((*columns.setting, "_point"), maintain_order=True)
            .agg(
                pl.col(x_columns).max(),
                value.mean(),
                value.std().alias("_std"),
                value.count().alias("seeds"),
                pl.col(CUT_SHORT).any(),
            )
            .sort((*columns.setting, "_point"), nulls_last=True)
        )
        width = half_width(averaged["_std"], averaged["seeds"], level).fill_null(0.0)
        low, high = (value - width).alias("low"), (value + width).alias("high")
        return averaged.select(*columns.setting, *x_columns, value, low, high, "seeds", CUT_SHORT)

    return by_experiment(table, average)


PARTS = 20
"""Default number of parts of a run. Averaging within parts avoids a maximum over noisy single rows."""


def peaks(table: pl.DataFrame, metric: str | None = None, parts: int = PARTS) -> pl.DataFrame:
    """Return a row per run with its setup, method, setting and seed, and `peak`, `at`, `end` and `fall`.

    Each run is divided into parts of equal length. `peak` is the highest mean of a part, `at` the samples (or the x
    column) at the end of that part, `end` the mean of the last part, and `fall` = peak - end, at least 0. `end` and
    `fall` are null for a run that stopped before its last part.

    Args:
        table: tidy table.
        metric: column of the table where higher is better (default: the score of the experiment).
        parts: number of parts of a run, at most the number of its rows.
    """
    check_count("parts", parts)

    def find(runs: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        value = pl.col(check_metric(runs, metric, columns)).cast(pl.Float64).fill_nan(None)
        at = pl.col("samples" if "samples" in runs.columns else columns.x_column)
        run = (*columns.setting, "seed", "identity")
        means = (
            runs.sort("identity", columns.x_column, maintain_order=True)
            .with_columns(cut(parts).alias("_part"))
            .group_by((*run, "_part"), maintain_order=True)
            .agg(value.mean().alias("_mean"), at.last().alias("_at"))
        )
        mean = pl.col("_mean")
        found = means.group_by(run, maintain_order=True).agg(
            mean.max().alias("peak"),
            pl.col("_at").get(mean.arg_max()).alias("at"),
            mean.last().alias("end"),
        )
        fall = (pl.col("peak") - pl.col("end")).alias("fall")
        return found.with_columns(fall).sort(*columns.setting, "seed", nulls_last=True)

    return by_experiment(table, find)
