"""Figures of PPO runs: 5, 6, 7 and 11 of the paper. Input: tidy tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from weightclip._text import counted
from weightclip.lab.analysis.best import chosen_runs, experiment_runs
from weightclip.lab.analysis.curves import PARTS, curves, peaks
from weightclip.lab.analysis.setups import columns_of, remarks
from weightclip.lab.analysis.statistics import mean_and_error
from weightclip.lab.experiments.ppo.config import ENVIRONMENTS, FIGURE_7, NAME
from weightclip.lab.experiments.ppo.metrics import METRICS, SCHEMA
from weightclip.lab.plotting.captions import caption, seed_count_text, seeds_caption, styles_of
from weightclip.lab.plotting.figure import Drawing, Figure
from weightclip.lab.plotting.panels import WIDTH, add_legend, draw_curve, draw_panel, panels, set_steps_axis
from weightclip.lab.records.schema import DEFAULT, Criterion
from weightclip.lab.text import count_text, error_text

POINTS = 100
"""Maximum number of points per curve; each is the mean over an equal part of the run."""

SEED_COLUMNS = ("env", "method", "seed", "samples", "mean")
COLUMNS = ("env", "method", "metric", "iteration", "samples", "mean", "low", "high", "seeds")


def draw_metrics(
    table: pl.DataFrame, criterion: Criterion = DEFAULT, *, metrics: Sequence[str], envs: Sequence[str] = ()
) -> Drawing:
    """Draw metrics by steps, with a row for each metric and a column for each environment, or each of `envs`."""
    runs, notes = chosen_runs(_within(table, envs), NAME, criterion)
    notes += [*_stops(runs), *(_falls(runs) if "return" in metrics else ()), *remarks(runs)]
    data, styles = _curves(runs, metrics), styles_of(runs)
    x_column, label = SCHEMA.plot_column, SCHEMA.plot_label
    displayed = _envs(data)
    # The panels of a single row are slightly taller than wide.
    height = 1.9 if len(metrics) == 1 else 0.2 + 1.5 * len(metrics)
    with panels(len(metrics), len(displayed), max(WIDTH / 2, WIDTH * len(displayed) / 4), height) as (picture, rows):
        for row, metric in zip(rows, metrics, strict=True):
            for axes, env in zip(row, displayed, strict=True):
                draw_panel(axes, data.filter(env=env, metric=metric), x_column, METRICS[metric], styles)
                set_steps_axis(axes)
            row[0].set_ylabel(METRICS[metric].label)
        for axes, env in zip(rows[0], displayed, strict=True):
            axes.set_title(env)
        for axes in rows[-1]:
            axes.set_xlabel(label)
        add_legend(picture, styles.values(), caption(seeds_caption(data), runs=runs, panel="env"))
    return Drawing(picture, data, tuple(notes))


def draw_seeds(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw the return of each seed by steps as a thin line, with a panel for each environment."""
    runs, notes = chosen_runs(table, NAME, criterion)
    styles = styles_of(runs)
    found = [
        curves(part, "return", points=PARTS).with_columns(seed=pl.lit(part["seed"][0]))
        for part in runs.with_columns(pl.col("return").fill_nan(None)).partition_by("seed", maintain_order=True)
    ]
    data = pl.concat(found).select(SEED_COLUMNS)
    displayed = _envs(data)
    with panels(1, len(displayed), max(WIDTH / 2, WIDTH * len(displayed) / 4), 1.9) as (picture, (row,)):
        for axes, env in zip(row, displayed, strict=True):
            for method, style in styles.items():
                thin = replace(style, marker="", width=0.7)
                for curve in data.filter(env=env, method=method).partition_by("seed"):
                    draw_curve(axes, curve.with_columns(low="mean", high="mean"), "samples", thin)
            axes.set_title(env)
            axes.set_xlabel(SCHEMA.plot_label)
            set_steps_axis(axes)
        row[0].set_ylabel(METRICS["return"].label)
        seeds = data.group_by("env", "method").agg(pl.col("seed").n_unique())["seed"]
        about = f"a line for each seed, {seed_count_text(seeds)}; a point is the mean over a twentieth of the run"
        add_legend(picture, styles.values(), caption(about, runs=runs, panel="env"))
    return Drawing(picture, data, (*notes, *_stops(runs), *_falls(runs), *remarks(runs)))


def _envs(data: pl.DataFrame) -> list[str]:
    """The environments in a table, the paper's first."""
    return sorted(set(data["env"]), key=lambda env: ((*ENVIRONMENTS, env).index(env), env))


def _within(table: pl.DataFrame, envs: Sequence[str]) -> pl.DataFrame:
    """The runs in `envs`, or all runs if it is empty. Raise a ValueError if there are none."""
    if not envs:
        return table
    runs = experiment_runs(table, NAME)
    found = runs.filter(pl.col("env").is_in(envs))
    if found.is_empty():
        available = ", ".join(runs["env"].unique().sort())
        raise ValueError(f"results: got runs in {available}, expected runs in {' or '.join(envs)}")
    return found


def _stops(runs: pl.DataFrame) -> list[str]:
    """Notes on seeds that stopped. Means exclude them after that."""
    by_run = runs.sort("identity", "iteration").group_by("identity", "env", "method", maintain_order=True)
    # The weights or the update of a stopped run are NaN in its last iteration.
    broken = by_run.agg(pl.any_horizontal(pl.col("weight_l2", "approx_kl").last().is_nan()).alias("stopped")).group_by(
        "env", "method", maintain_order=True
    )
    counts = broken.agg(pl.col("stopped").sum(), pl.len().alias("seeds")).filter(pl.col("stopped") > 0)
    return [
        f"{env}: {method}: {stopped} of {counted(seeds, 'seed')} stopped early; means exclude them after that"
        for env, method, stopped, seeds in counts.iter_rows()
    ]


def _falls(runs: pl.DataFrame) -> list[str]:
    """Notes on the highest return of each method and how far below it the run ends, as means over seeds."""
    found = []
    for (env, method), part in peaks(runs, "return").group_by("env", "method", maintain_order=True):
        with_peak, with_end = part.drop_nulls("peak"), part.drop_nulls("end")
        if with_peak.is_empty():
            continue
        highest, fall = (
            error_text(*mean_and_error(part_runs[name]), METRICS["return"]) if len(part_runs) else ""
            for part_runs, name in ((with_peak, "peak"), (with_end, "fall"))
        )
        at = sorted(with_peak["at"].cast(pl.Float64).round_sig_figs(2).to_list())
        steps = " to ".join(dict.fromkeys(map(count_text, (at[0], at[-1]))))
        stopped = f" ({len(with_end)} of {counted(len(part), 'seed')})" if len(with_end) < len(part) else ""
        end = f"ends {fall} below that{stopped}" if fall else "no seed reaches the end"
        found.append(f"{env}: {method}: return at most {highest}, after {steps} steps; {end}")
    return found


def _curves(runs: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """The curves of the metrics with the columns `COLUMNS`, the paper's methods first."""
    order = columns_of(runs).schema.ordered_methods(runs["method"])
    runs = runs.with_columns(pl.col("method").cast(pl.Enum(order)), pl.col(metrics).fill_nan(None))
    found = [
        curves(runs, metric, points=POINTS).with_columns(pl.lit(metric).alias("metric")).select(COLUMNS)
        for metric in metrics
    ]
    return pl.concat(found)


RETURN, KL, DIAGNOSTICS = ("return",), ("approx_kl",), ("weight_l2", "saturated")

FIGURES = (
    Figure("policy-return", "5", "Returns of PPO", partial(draw_metrics, metrics=RETURN), NAME),
    Figure(
        "policy-kl",
        "6",
        "Approximate KL between the current and the old policy",
        partial(draw_metrics, metrics=KL),
        NAME,
    ),
    Figure(
        "policy-diagnostics",
        "11",
        "Weight norm and saturated units",
        partial(draw_metrics, metrics=DIAGNOSTICS),
        NAME,
    ),
    Figure(
        "policy-diagnostics-two",
        "7",
        "Weight norm and saturated units in Walker2d and Humanoid",
        partial(draw_metrics, metrics=DIAGNOSTICS, envs=FIGURE_7),
        NAME,
        partial(_within, envs=FIGURE_7),
    ),
    Figure("policy-seeds", "", "Returns of each seed", draw_seeds, NAME),
)
