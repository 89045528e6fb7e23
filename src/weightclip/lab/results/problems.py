"""Methods across problems: the interquartile mean of their scores, with its stratified bootstrap interval."""

from __future__ import annotations

import math

import polars as pl

from weightclip.lab.experiment import Event
from weightclip.lab.results.criteria import DEFAULT, LAST, Criterion
from weightclip.lab.results.metrics import SHARE, Metric
from weightclip.lab.results.selection import best_runs, score_runs
from weightclip.lab.results.setups import Columns, by_experiment, log, main_setup, ordered_methods
from weightclip.lab.results.statistics import Estimate, iqm

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
NUMBERS = {"iqm": pl.Float64, "low": pl.Float64, "high": pl.Float64, "problems": pl.Int64, "runs": pl.Int64}


def is_telling(table: pl.DataFrame, metric: Metric) -> bool:
    """Whether a mean over problems says something: there are several, and they have the metric on one scale."""
    return table["problem"].n_unique() > 1 and metric.unit == SHARE


def across_problems(
    table: pl.DataFrame,
    metric: str | None = None,
    criterion: Criterion = DEFAULT,
    last: float = LAST,
    level: float = 0.95,
    on_event: Event = log,
) -> pl.DataFrame:
    """A row per method, and value of the experiment's other axes: `iqm`, with its interval from `low` to `high`.

    They are those of `weightclip.lab.results.iqm`, with problems as its tasks. What is averaged are the scores of all
    runs at the method's best setting on each problem (of the main setup), over the problems of which every method has
    at least two seeds; `problems` and `runs` count them. There are no rows where these are fewer than two problems. A
    score that is not a number makes all three NaN.

    Args:
        table: a tidy one.
        metric: a column of it, on a scale that problems share; default: the experiment's own score.
        criterion: as `score_runs` takes it.
        last: as `score_runs` takes it.
        level: of the interval.
        on_event: called with a line for each problem of which setups are left out.
    """

    def average(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        key = ("experiment", *columns.axes, "method")
        everyone = pl.struct(key).n_unique()
        scores = score_runs(best_runs(part, metric, criterion, last), metric, criterion, last)
        several = scores.filter(pl.len().over(*key, "problem") > 1)
        common = several.filter(everyone.over("problem") == scores.select(everyone).item())
        if common["problem"].n_unique() < 2:
            common = common.clear()
        common = common.sort("problem", "seed", maintain_order=True)  # the bootstrap draws by place
        rows = []
        for names, runs in common.group_by(key, maintain_order=True):
            by_problem = [one["score"].to_numpy() for one in runs.partition_by("problem", maintain_order=True)]
            found = iqm(by_problem, level) if runs["score"].is_finite().all() else UNKNOWN
            rows.append((*names, found.value, found.low, found.high, len(by_problem), len(runs)))
        kinds = {name: part.schema[name] for name in key} | NUMBERS
        order = pl.Enum(ordered_methods(part["method"].cast(pl.String), columns.experiment))
        return pl.DataFrame(rows, schema=kinds, orient="row").sort(*columns.axes, pl.col("method").cast(order))

    return by_experiment(main_setup(table, on_event), average)
