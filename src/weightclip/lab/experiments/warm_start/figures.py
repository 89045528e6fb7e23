"""Figures of warm-starting runs: 2 of the paper, and sensitivity to kappa. Input: tidy tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from matplotlib.axes import Axes

from weightclip.lab.analysis.best import chosen_runs, experiment_runs
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.setups import SINGLE_KAPPA, check_several_kappas, main_setup, remarks
from weightclip.lab.analysis.statistics import sensitivity
from weightclip.lab.callbacks import ignore
from weightclip.lab.experiments.warm_start.config import NAME, STAGES
from weightclip.lab.experiments.warm_start.metrics import METRICS, SCHEMA
from weightclip.lab.experiments.warm_start.published_curves import authors_curves, compare_with_authors
from weightclip.lab.plotting.captions import BARS, caption, seed_count_text, seeds_caption, styles_of, with_kappas
from weightclip.lab.plotting.figure import Drawing, Figure
from weightclip.lab.plotting.panels import (
    KAPPA_LABEL,
    WIDTH,
    add_legend,
    draw_curve,
    draw_logs,
    format_unit,
    lighter,
    panels,
    set_count_axis,
    set_kappa_axis,
)
from weightclip.lab.plotting.style import Style, style_of
from weightclip.lab.records.schema import CRITERIA, Criterion
from weightclip.lab.text import kappa_text

PANELS = ("test_accuracy", "gap", "weight_l2")
COLUMNS = ("method", "stages", "metric", "epoch", "passes", "mean", "low", "high", "seeds")


def figure_2(table: pl.DataFrame, criterion: Criterion = "auc") -> Drawing:
    """Draw test accuracy, generalization gap and weight norm by passes over all images. One-stage runs are paler.

    A dotted line marks the switch to the second half of the images.
    """
    runs, notes = chosen_runs(table, NAME, criterion)
    data = pl.concat([_curves(runs, metric) for metric in PANELS])
    base = styles_of(runs)
    styles = {line: _style(base[line[0]], line[1]) for line in _lines(data)}
    with panels(1, len(PANELS), WIDTH, 1.9) as (picture, (row,)):
        for axes, metric in zip(row, PANELS, strict=True):
            for (method, stages), style in styles.items():
                curve = data.filter(method=method, stages=stages, metric=metric)
                draw_curve(axes, curve, "passes", style)
            _mark_switch(axes, runs, "switch" if axes is row[0] else "")
            axes.set_title(METRICS[metric].label)
            format_unit(axes, METRICS[metric])
            set_count_axis(axes, "Passes over all images")
        add_legend(picture, styles.values(), caption(seeds_caption(data), runs=runs))
    return Drawing(picture, data, (*notes, *remarks(runs)))


def draw_sensitivity(table: pl.DataFrame, criterion: Criterion = "auc") -> Drawing:
    """Draw the score by kappa, for clipping after every step and clipping once."""
    notes: list[str] = []
    runs = main_setup(experiment_runs(table, NAME), notes.append)
    score, error = pl.col("score"), pl.col("error").fill_null(0.0)
    data = (
        sensitivity(runs, "kappa", criterion=criterion)
        .filter(pl.col("kappa").is_finite())
        .filter(pl.len().over("method", "stages") > 1)
        .select("method", "stages", "kappa", score.alias("mean"), low=score - error, high=score + error, seeds="seeds")
    )
    if data.is_empty():
        raise ValueError(SINGLE_KAPPA)
    with panels(1, 1, WIDTH / 2, 2.0) as (picture, ((axes,),)):
        lines = _lines(data)
        for method, stages in lines:
            style = _style(style_of(method), stages)
            draw_curve(axes, data.filter(method=method, stages=stages), "kappa", style, bars=True)
        set_kappa_axis(axes, data["kappa"])
        axes.set_xlabel(KAPPA_LABEL)
        axes.set_ylabel(METRICS["test_accuracy"].label)
        format_unit(axes, METRICS["test_accuracy"])
        about = f"{CRITERIA[criterion]}; {seeds_caption(data, BARS)}"
        styles = [_style(style_of(method), stages) for method, stages in lines]
        add_legend(picture, styles, caption(about, runs=runs, kappas=False))
    return Drawing(picture, data, (*notes, *remarks(runs)))


def draw_authors_comparison(table: pl.DataFrame, criterion: Criterion = "auc") -> Drawing:
    """Draw the test accuracy of runs and of the authors' logs, with a panel for each number of stages."""
    notes: list[str] = []
    data = compare_with_authors(table, notes.append)
    schedules = [stages for stages in STAGES if stages in data["stages"]]
    with panels(1, len(schedules), WIDTH * len(schedules) / 2, 2.0) as (picture, (row,)):
        styles: dict[str, Style] = {}
        for axes, stages in zip(row, schedules, strict=True):
            groups = data.filter(stages=stages).group_by("method", "kappa", maintain_order=True)
            for (method, kappa), curve in groups:
                style = with_kappas(style_of(str(method)), filter(None, [kappa_text(kappa)]))
                styles[style.label] = style
                draw_curve(axes, curve, "epoch", style)
                draw_logs(axes, curve, "epoch", style)
            axes.set_title(STAGES[stages].capitalize())
            format_unit(axes, METRICS["test_accuracy"])
            set_count_axis(axes, "Epoch")
        row[0].set_ylabel(METRICS["test_accuracy"].label)
        theirs = f"white: the authors' logs, {seed_count_text(authors_curves()['seeds'])} ± standard error"
        add_legend(picture, styles.values(), f"lines: {seeds_caption(data)}\n{theirs}")
    return Drawing(picture, data, tuple(notes))


def _curves(runs: pl.DataFrame, metric: str) -> pl.DataFrame:
    """The curves of a metric, with the columns `COLUMNS`."""
    passes = pl.col("samples") / pl.col("images")
    return curves(runs, metric).with_columns(passes.alias("passes"), pl.lit(metric).alias("metric")).select(COLUMNS)


def _lines(data: pl.DataFrame) -> list[tuple[str, int]]:
    """The methods and stages in the data, in the paper's order."""
    lines = set(data.select("method", "stages").iter_rows())
    methods: Sequence[str] = SCHEMA.ordered_methods(method for method, _ in lines)
    return [(method, stages) for method in methods for stages in STAGES if (method, stages) in lines]


def _mark_switch(axes: Axes, runs: pl.DataFrame, label: str) -> None:
    """Mark the end of the first of two stages, if there are runs with two."""
    first = runs.filter(stages=2, stage=1)
    if first.is_empty():
        return
    switch = first.select((pl.col("samples") / pl.col("images")).max()).item()
    axes.axvline(switch, color="#777777", linestyle=":", linewidth=0.9, zorder=1)
    axes.annotate(label, (switch, 0), (3, 3), ("data", "axes fraction"), "offset points", color="#555555", size=7)


def _style(style: Style, stages: int) -> Style:
    one = stages == 1
    return replace(
        style,
        label=f"{style.label}, {STAGES[stages]}",
        color=lighter(style.color, 0.5) if one else style.color,
        marker="" if one else style.marker,
    )


def _check_kappas(table: pl.DataFrame) -> None:
    check_several_kappas(table, ("method", "stages"))


def _check_authors(table: pl.DataFrame) -> None:
    compare_with_authors(table, ignore)


FIGURES = (
    Figure("warm-start", "2", "Warm starting on CIFAR-10 in one and two stages", figure_2, NAME),
    Figure(
        "warm-start-authors",
        "",
        "Test accuracy compared with the authors' logs",
        draw_authors_comparison,
        NAME,
        _check_authors,
    ),
    Figure("warm-start-sensitivity", "", "Test accuracy by kappa", draw_sensitivity, NAME, _check_kappas),
)
