"""How high runs come, and how far they fall from there: collapse in numbers."""

from __future__ import annotations

import polars as pl

from weightclip.checks import check_count
from weightclip.lab.results.curves import cut
from weightclip.lab.results.setups import Columns, by_experiment, check_metric

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
        at = pl.col("samples" if "samples" in runs.columns else columns.along)
        run = (*columns.setting, "seed", "identity")
        means = (
            runs.sort("identity", columns.along, maintain_order=True)
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
