"""The authors' curves of input-permuted MNIST with a period of 50,000, and a comparison with them.

`published_curves.csv` has the means of their logs over 30 seeds for Adam and Adam + WC, with the standard error of the
accuracy, for tasks 1 to 11 and every tenth task up to 91.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import polars as pl

from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.setups import main_setup
from weightclip.lab.callbacks import Event, ignore
from weightclip.lab.experiments.streaming.config import NAME
from weightclip.lab.records.columns import whole_rows

PROBLEM, PERIOD = "input-permuted-mnist", 50_000
METRICS = ("accuracy", "loss", "weight_l2")
_SETTING = ("method", "lr", "kappa")
_KEY = (*_SETTING, "task")


@cache
def authors_curves() -> pl.DataFrame:
    """The columns method, lr, kappa, task, metric, authors, authors_error (null for all but accuracy), seeds."""
    found = pl.read_csv((files(__package__) / "published_curves.csv").read_bytes())
    errors = {"accuracy": pl.col("accuracy_se")}
    parts = [
        found.select(
            "method",
            "lr",
            pl.col("kappa").cast(pl.Float64),
            "task",
            pl.lit(metric).alias("metric"),
            pl.col(f"{metric}_mean").alias("authors"),
            errors.get(metric, pl.lit(None, pl.Float64)).alias("authors_error"),
            "seeds",
        )
        for metric in METRICS
    ]
    return pl.concat(parts)


def compare_with_authors(runs: pl.DataFrame, on_note: Event = ignore) -> pl.DataFrame:
    """Accuracy, loss and weight norm of runs and of the authors' logs, by method and task.

    Runs of different lengths are averaged: a task does not depend on the tasks after it.

    Args:
        runs: a tidy table with runs at the authors' period and settings on the official data.
        on_note: called with a note on runs that are skipped because of their setup.

    Returns:
        method, lr, kappa, task, metric, mean, low, high, seeds, authors, authors_error, difference (mean - authors).
    """
    theirs = authors_curves()
    selected = runs.filter(experiment=NAME, problem=PROBLEM)
    if {"period", *_SETTING} <= set(runs.columns) and not selected.is_empty():
        at_period = selected.filter(pl.col("period") == PERIOD, pl.col("official"))
        numbers = at_period.with_columns(pl.col("lr", "kappa").cast(pl.Float64))
        selected = numbers.join(theirs, _SETTING, how="semi", nulls_equal=True)
    else:
        selected = selected.clear()
    if selected.is_empty():
        raise ValueError(
            f"results: got no runs of {PROBLEM} with period {PERIOD:,} and the authors' settings on the official data, "
            "expected at least one"
        )
    same_length = selected.with_columns(pl.col("steps").max(), pl.lit(None, pl.String).alias("deviations"))
    whole = whole_rows(main_setup(same_length, on_note)).unique((*_KEY, "seed"), keep="first", maintain_order=True)
    found = [
        curves(whole, metric).select(*_KEY, pl.lit(metric).alias("metric"), "mean", "low", "high", "seeds")
        for metric in METRICS
    ]
    joined = pl.concat(found).join(theirs.drop("seeds"), (*_KEY, "metric"), how="left", nulls_equal=True)
    return joined.with_columns((pl.col("mean") - pl.col("authors")).alias("difference"))
