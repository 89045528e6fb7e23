"""Statistics over seeds: means with errors and intervals, the interquartile mean, sensitivity, and the trend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from weightclip._renamed import accept_old_arguments
from weightclip._validation import check_count, check_name
from weightclip.lab.analysis.selection import best_of, best_runs, score_runs
from weightclip.lab.analysis.setups import Columns, by_experiment, check_metric, log, main_setup
from weightclip.lab.callbacks import Event
from weightclip.lab.records.columns import whole_rows
from weightclip.lab.records.schema import DEFAULT, FRACTION, LAST_FRACTION, Criterion, Metric

FLAT = 0.01
"""Maximum slope that is called flat, for fractions: change per 100 rows."""

LEAST_ROWS = 3
"""Minimum number of rows in a line whose slope has an interval: the line fits any two rows exactly."""


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval."""

    value: float
    low: float
    high: float


def mean_and_error(values: ArrayLike) -> tuple[float, float]:
    """The mean and its standard error, s / sqrt(n); NaN for the error of a single value."""
    found = _values("values", values)
    error = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return float(found.mean()), float(error)


def interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """The mean and its Student interval; the paper's Atari figures use the level 0.9."""
    mean, error = mean_and_error(values)
    width = error * float(_quantile(np.array(np.size(values)), level))
    return Estimate(mean, mean - width, mean + width)


def iqm(values_by_task: Sequence[ArrayLike], level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Estimate:
    """The interquartile mean over all runs of all tasks, and its stratified bootstrap interval (percentiles).

    Args:
        values_by_task: scores of at least two runs for each task (such as a game), on a common scale.
        level: confidence level of the interval.
        resamples: number of bootstrap resamples; runs are resampled within each task.
        seed: seed of the resampling.
    """
    from scipy.stats import bootstrap, trim_mean  # type: ignore[import-untyped]

    _check_level(level)
    tasks = [_values("values_by_task", values) for values in values_by_task]
    if not tasks or min(map(len, tasks)) < 2:
        raise ValueError(f"values_by_task: got {[len(task) for task in tasks]} runs, expected at least 2 per task")

    def statistic(*samples: NDArray[Any], axis: int = -1) -> Any:
        return trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    found = bootstrap(
        tasks,
        statistic,
        n_resamples=check_count("resamples", resamples),
        vectorized=True,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(float(statistic(*tasks)), float(found.low), float(found.high))


def half_width(deviation: pl.Series, seeds: pl.Series, level: float | None = None) -> pl.Series:
    """s / sqrt(n), times Student's quantile if a level is given; null for a single seed."""
    error = deviation / seeds.sqrt()
    return error if level is None else error * pl.Series(_quantile(seeds.to_numpy(), level)).fill_nan(None)


def sensitivity(
    table: pl.DataFrame,
    parameter: str,
    metric: str | None = None,
    criterion: Criterion = DEFAULT,
    last: float = LAST_FRACTION,
) -> pl.DataFrame:
    """Return a row per setup, method and value of the parameter: the best score over the other settings (`select`).

    Methods without the parameter are skipped.
    """

    def choose(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        check_name("parameter", parameter, columns.settings)
        runs = score_runs(part, metric, criterion, last).filter(pl.col(parameter).is_not_null())
        group = (*columns.setup, "method", parameter)
        return best_of(runs, group, columns, check_metric(part, metric, columns))

    return by_experiment(table, choose)


@accept_old_arguments
def trend(
    table: pl.DataFrame,
    metric: str | None = None,
    fraction: float = 0.5,
    level: float = 0.95,
    band: float | None = None,
) -> pl.DataFrame:
    """Return a row per setup, method and setting: the mean `slope` over seeds, its Student interval and a `verdict`.

    The slope of a run is that of the least-squares line through the last rows, in units of the metric per 100 rows. The
    interval assumes normally distributed slopes; with two or three seeds it is wide. A last task that was cut short is
    excluded. The verdict is "rising" or "falling" if the interval excludes 0, "flat" if it contains 0 and lies within
    the band, and otherwise "not decided". Interval and verdict are null for a single seed and for lines through fewer
    than three rows.

    Args:
        table: tidy table.
        metric: column of the table (default: the score of the experiment).
        fraction: fraction of the rows, at the end of the run.
        level: confidence level of the interval from `low` to `high`.
        band: maximum absolute slope that is called flat, in units of the metric per 100 rows (default: `FLAT`, one
            percentage point, for fractions; 0 for other metrics, whose scale is unknown).
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: got {fraction!r}, expected a number above 0 and at most 1")

    def fit(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        name = check_metric(part, metric, columns)
        value = pl.col(name).cast(pl.Float64).fill_null(math.nan)
        ordered = whole_rows(part).sort("identity", columns.x_column, maintain_order=True)
        rows = (pl.len() * fraction).ceil().cast(pl.Int64)
        x, y = pl.int_range(pl.len()).tail(rows).cast(pl.Float64), value.tail(rows)
        slopes = ordered.group_by((*columns.setting, "identity"), maintain_order=True).agg(
            (100 * pl.cov(x, y) / x.var()).alias("slope"), rows.alias("_rows")
        )
        slope = pl.col("slope")
        found = (
            slopes.group_by(columns.setting, maintain_order=True)
            .agg(slope.mean(), slope.std().alias("_std"), pl.len().alias("seeds"), pl.col("_rows").min())
            .sort(columns.setting, nulls_last=True)
        )
        width = half_width(found["_std"], found["seeds"], level)
        is_enough = pl.col("_rows") >= LEAST_ROWS
        low, high = (pl.when(is_enough).then((slope + end).fill_nan(None)) for end in (-width, width))
        verdict = _verdict(low, high, _band(columns.schema.metric(name)) if band is None else band)
        return found.select(
            *columns.setting, slope, low.alias("low"), high.alias("high"), "seeds", verdict.alias("verdict")
        )

    return by_experiment(table, fit)


def _verdict(low: pl.Expr, high: pl.Expr, band: float) -> pl.Expr:
    return (
        pl.when(low > 0)
        .then(pl.lit("rising"))
        .when(high < 0)
        .then(pl.lit("falling"))
        .when((low >= -band) & (high <= band))
        .then(pl.lit("flat"))
        .when(low.is_not_null())
        .then(pl.lit("not decided"))
    )


def _band(metric: Metric) -> float:
    return FLAT if metric.unit == FRACTION else 0.0


def _values(name: str, values: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{name}: got an array of shape {found.shape}, expected a vector with at least one number")
    return found


def _quantile(n: NDArray[Any], level: float) -> NDArray[np.float64]:
    """Quantile of Student's distribution for n values: half an interval in standard errors; NaN for n = 1."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return np.asarray(np.where(n > 1, stdtrit(np.maximum(n - 1, 1), (1 + _check_level(level)) / 2), math.nan))


def _check_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level: got {level!r}, expected a number between 0 and 1, such as 0.95")
    return level


UNKNOWN = Estimate(math.nan, math.nan, math.nan)
NUMBERS = {"iqm": pl.Float64, "low": pl.Float64, "high": pl.Float64, "problems": pl.Int64, "runs": pl.Int64}


def is_comparable(table: pl.DataFrame, metric: Metric) -> bool:
    """Whether a mean over problems is meaningful: there are several, with the metric on a common scale."""
    return table["problem"].n_unique() > 1 and metric.unit == FRACTION


def across_problems(
    table: pl.DataFrame,
    metric: str | None = None,
    criterion: Criterion = DEFAULT,
    last: float = LAST_FRACTION,
    level: float = 0.95,
    on_event: Event = log,
) -> pl.DataFrame:
    """Return a row per method and value of the other axes: `iqm` over problems, with its interval `low` to `high`.

    The function `iqm` is applied with problems as tasks, to the scores of all runs of the main setup at the method's
    best setting on each problem. Only problems on which every method has at least two seeds are included; `problems`
    and `runs` are their numbers. With fewer than two such problems, the result has no rows. A NaN score makes all three
    values NaN.

    Args:
        table: tidy table.
        metric: column of the table, on a common scale for all problems (default: the score of the experiment).
        criterion: see `score_runs`.
        last: see `score_runs`.
        level: confidence level of the interval.
        on_event: called with a message for each problem with skipped setups.
    """

    def average(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        key = ("experiment", *columns.axes, "method")
        num_methods = pl.struct(key).n_unique()
        scores = score_runs(best_runs(part, metric, criterion, last), metric, criterion, last)
        several = scores.filter(pl.len().over(*key, "problem") > 1)
        common = several.filter(num_methods.over("problem") == scores.select(num_methods).item())
        if common["problem"].n_unique() < 2:
            common = common.clear()
        common = common.sort("problem", "seed", maintain_order=True)  # the bootstrap depends on the order
        rows = []
        for names, runs in common.group_by(key, maintain_order=True):
            by_problem = [one["score"].to_numpy() for one in runs.partition_by("problem", maintain_order=True)]
            found = iqm(by_problem, level) if runs["score"].is_finite().all() else UNKNOWN
            rows.append((*names, found.value, found.low, found.high, len(by_problem), len(runs)))
        kinds = {name: part.schema[name] for name in key} | NUMBERS
        order = pl.Enum(columns.schema.ordered_methods(part["method"].cast(pl.String)))
        return pl.DataFrame(rows, schema=kinds, orient="row").sort(*columns.axes, pl.col("method").cast(order))

    return by_experiment(main_setup(table, on_event), average)
