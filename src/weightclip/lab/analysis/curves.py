"""Curves: a metric along the rows of runs, averaged over seeds. Figures, the report and others draw these."""

from __future__ import annotations

import polars as pl

from weightclip._validation import check_count
from weightclip.lab.analysis.setups import Columns, by_experiment, check_metric
from weightclip.lab.analysis.statistics import half_width
from weightclip.lab.records.columns import CUT_SHORT, cut_short


def cut(parts: int) -> pl.Expr:
    """Which of so many parts of its run a row is in, 0, 1, ...; they are equal but for a row. Rows are in order."""
    return pl.int_range(pl.len()).over("identity") * parts // pl.len().over("identity")


def curves(
    table: pl.DataFrame,
    metric: str | None = None,
    every: int = 1,
    level: float | None = None,
    points: int | None = None,
) -> pl.DataFrame:
    """A row per setup, method, setting and point of its curve: `mean`, `low`, `high` and `seeds`.

    Besides these there is what the rows follow (`task`) and, where the table has it, `samples`, both at the point's
    last row. With a single seed, `low` and `high` are the mean. `cut_short` marks points of
    tasks that the end of a run cut short.

    Args:
        table: a tidy one; of several settings of a method each has a curve of its own (see `best_runs`).
        metric: a column of it; default: the experiment's own score.
        every: rows that are averaged into one point first; the paper's figures take 2.
        level: of Student's interval between `low` and `high`; default: they are a standard error from the mean.
        points: instead of `every`, at most so many, each the mean of an equal part of a run.
    """
    check_count("every", every)
    point = pl.int_range(pl.len()).over("identity") // every if points is None else cut(check_count("points", points))

    def average(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        name = check_metric(part, metric, columns)
        ends = [one for one in (columns.x_column, "samples") if one in part.columns]
        ordered = part.sort("identity", columns.x_column, maintain_order=True)
        binned = ordered.group_by((*columns.setting, "identity", point.alias("_point")), maintain_order=True).agg(
            pl.col(ends).last(), pl.col(name).cast(pl.Float64).mean().alias("mean"), cut_short(part).any()
        )
        value = pl.col("mean")
        averaged = (
            binned.group_by((*columns.setting, "_point"), maintain_order=True)
            .agg(
                pl.col(ends).max(),
                value.mean(),
                value.std().alias("_std"),
                value.count().alias("seeds"),
                pl.col(CUT_SHORT).any(),
            )
            .sort((*columns.setting, "_point"), nulls_last=True)
        )
        width = half_width(averaged["_std"], averaged["seeds"], level).fill_null(0.0)
        low, high = (value - width).alias("low"), (value + width).alias("high")
        return averaged.select(*columns.setting, *ends, value, low, high, "seeds", CUT_SHORT)

    return by_experiment(table, average)


PARTS = 20
"""Of a run: a metric is averaged in each, as single rows are noisy, and the highest of many would be a lucky one."""


def peaks(table: pl.DataFrame, metric: str | None = None, parts: int = PARTS) -> pl.DataFrame:
    """A row per run, with its setup, method, setting and seed: `peak`, `at`, `end` and `fall`.

    Each run is cut into parts of equal length. `peak` is the highest mean of a part, `at` the samples (or whatever the
    rows follow) at that part's end, `end` the mean of the last part, and `fall` = peak - end, at least 0. A run without
    a value in its last part, because it stopped, has no `end` and no `fall`.

    Args:
        table: a tidy one.
        metric: a column of it, higher is better; default: the experiment's own score.
        parts: of a run; at most as many as it has rows.
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
