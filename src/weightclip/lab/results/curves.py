"""Curves: a metric along the rows of runs, averaged over seeds. Figures, the report and others draw these."""

from __future__ import annotations

import polars as pl

from weightclip.checks import check_count
from weightclip.lab.results.setups import Columns, by_experiment, check_metric
from weightclip.lab.results.statistics import half_width
from weightclip.lab.results.tidy import CUT_SHORT, cut_short


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
        ends = [one for one in (columns.along, "samples") if one in part.columns]
        ordered = part.sort("identity", columns.along, maintain_order=True)
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
