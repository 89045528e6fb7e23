"""Figures of streaming runs. They read tables only."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from weightclip.lab.files import write_whole
from weightclip.lab.results.metrics import METRICS
from weightclip.lab.results.style import RC, Style, style_of

PANELS = ("accuracy", "loss", "plasticity", "weight_l2")


def draw_run(tables: Mapping[str, pl.DataFrame], path: str | Path, title: str = "") -> None:
    """Accuracy, loss, plasticity and weight norm by task, as a PNG.

    Lines are means over seeds, with the standard error shaded where there are several. A table without one of these
    columns (diagnostics off) leaves its panel out.

    Args:
        tables: method -> its rows, of one or more seeds, as `run` returns them.
        path: of the picture, which is written whole or not at all.
        title: above the panels.
    """
    panels = [name for name in PANELS if any(name in table.columns for table in tables.values())]
    with rc_context(RC):
        figure = Figure(figsize=(3.1 * len(panels), 2.9), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for method, table in tables.items():
                if name in table.columns:
                    _draw_line(axes, _by_task(table, name), style_of(method))
            _label(axes, name)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)), handlelength=3)
        if title:
            figure.suptitle(title, fontsize=11)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    write_whole(Path(path), buffer.getbuffer())


def _by_task(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Task -> the mean over seeds and its standard error (0 with a single seed)."""
    value = pl.col(name)
    error = (value.std() / value.count().sqrt()).fill_null(0.0)
    return table.group_by("task").agg(value.mean().alias("mean"), error.alias("error")).sort("task")


def _draw_line(axes: Axes, curve: pl.DataFrame, style: Style) -> None:
    task, mean, error = (curve[column].to_numpy() for column in ("task", "mean", "error"))
    marker = "o" if len(task) == 1 else ""  # a line through one point is invisible
    axes.plot(task, mean, color=style.colour, linestyle=style.line, marker=marker, markersize=4, label=style.label)
    if error.any():
        axes.fill_between(task, mean - error, mean + error, color=style.colour, alpha=0.2, linewidth=0)


def _label(axes: Axes, name: str) -> None:
    axes.set_title(METRICS[name].label)
    axes.set_xlabel("Task")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if METRICS[name].unit == "share":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
