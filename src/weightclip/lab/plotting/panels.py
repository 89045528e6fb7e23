"""Panels of curves: the drawing that all figures share. A curve is a table with columns mean, low and high."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from weightclip.lab.files import write_whole
from weightclip.lab.plotting.style import MARKERS, OTHER_MARKERS, RC, Style, style_of
from weightclip.lab.records.columns import CUT_SHORT, cut_short, deviations_text
from weightclip.lab.records.record import Record
from weightclip.lab.records.schema import FRACTION, Metric
from weightclip.lab.text import count_text, settings_text

WIDTH = 6.75
"""Of a page's text, in inches."""

MARKED = 6
"""Points of a curve with a marker."""

ONE = "one seed"

HIDING = 6.0
"""Where one method's values are so many times those of another, the other's line is flat."""


@contextmanager
def panels(rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Picture, list[list[Axes]]]]:
    """A picture of width x height inches with rows x columns empty panels, in the look of all figures."""
    with rc_context(RC):
        picture = Picture(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(picture)
        yield picture, picture.subplots(rows, columns, squeeze=False).tolist()


def draw_curve(axes: Axes, curve: pl.DataFrame, along: str, style: Style) -> None:
    """The mean as a line, low to high shaded where they differ; values that are not finite leave a gap.

    Points of tasks that were cut short are open circles.
    """
    x, mean, low, high = (_finite(curve[column]) for column in (along, "mean", "low", "high"))
    axes.plot(
        x,
        mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker or ("o" if len(x) == 1 else ""),  # a line through one point is invisible
        markersize=2.7,
        markevery=_marked(len(x), style.marker),
        label=style.label,
        zorder=style.order,
    )
    if CUT_SHORT in curve.columns and (short := curve[CUT_SHORT].to_numpy()).any():
        axes.plot(
            x[short],
            mean[short],
            color=style.colour,
            linestyle="",
            marker="o",
            markersize=4.5,
            markerfacecolor="white",
            zorder=style.order + 1,
        )
    if np.any(high > low):
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0, zorder=style.order - 2)


def draw_panel(axes: Axes, curves: pl.DataFrame, along: str, metric: Metric) -> None:
    """A metric's curves, a line for each method; a logarithmic axis where one of them would hide the others."""
    for (method,), curve in curves.group_by("method", maintain_order=True):
        draw_curve(axes, curve, along, style_of(str(method)))
    show_unit(axes, metric)
    if metric.unit != FRACTION and is_hiding(curves):
        _take_logarithms(axes)


def show_unit(axes: Axes, metric: Metric) -> None:
    """Shares as percentages."""
    if metric.unit == FRACTION:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))


def is_hiding(curves: pl.DataFrame) -> bool:
    """Whether the values of some methods are `HIDING` times those of others; medians count, not a first steep task."""
    finite = curves.filter(pl.col("mean").is_finite())
    typical = finite.group_by("method").agg(pl.col("mean").median())["mean"].to_numpy()
    return bool(len(typical) and (finite["mean"] > 0).all() and typical.max() > HIDING * typical.min())


def _take_logarithms(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 1000 * low:  # powers of ten alone would be two or three ticks
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def count_along(axes: Axes, label: str) -> None:
    """The horizontal axis of what is counted: tasks, epochs. To be called when all is drawn."""
    axes.set_xlabel(label)
    low, high = axes.get_xlim()
    if high - low < 1:  # whole numbers, where the axis of a single one would have fractions only
        middle = round((low + high) / 2)
        axes.set_xlim(middle - 1, middle + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10]))


def count_steps(axes: Axes) -> None:
    """The horizontal axis of what is counted in thousands and millions: `500k`, `2.5M`."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: count_text(steps)))


def add_legend(picture: Picture, styles: Iterable[Style], title: str = "") -> None:
    """What is drawn in any panel, in that order, below all panels."""
    drawn: dict[str, Artist] = {}
    for axes in picture.axes:
        drawn |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels = [style.label for style in styles]
    for rows in range(1 if len(labels) < 5 else 2, len(labels) + 1):  # two are the paper's: a column for each remedy
        legend = picture.legend(
            [drawn[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=-(-len(labels) // rows),
            handlelength=2.8,
            columnspacing=1.4,
            title=title,
        )
        legend.get_title().set_multialignment("center")
        if legend.get_window_extent().width <= picture.bbox.width or rows == len(labels):
            return
        legend.remove()  # it would be cut off: with more rows


def about_seeds(data: pl.DataFrame, shaded: str = "standard error") -> str:
    """How many seeds were averaged, and what is shaded, if anything is."""
    number = seeds_text(data["seeds"])
    shading = f", {shaded} shaded" if shaded else ""
    marked = "; open circle: task cut short" if CUT_SHORT in data.columns and data[CUT_SHORT].any() else ""
    return (number if number == ONE else f"mean of {number}{shading}") + marked


def seeds_text(numbers: Iterable[int]) -> str:
    """`one seed`, `3 seeds`, `2 to 5 seeds`: of numbers that may differ."""
    least, most = min(numbers), max(numbers)
    return ONE if most == 1 else f"{most} seeds" if least == most else f"{least} to {most} seeds"


def _marked(points: int, marker: str) -> tuple[int, int]:
    """The first marked point and the distance of the others: a few, at other places for each marker."""
    markers = [*MARKERS.values(), OTHER_MARKERS]
    between = max(1, points // MARKED)
    return between * markers.index(marker) // len(markers), between


def _finite(values: pl.Series) -> NDArray[Any]:
    array = values.cast(pl.Float64).to_numpy()
    return np.where(np.isfinite(array), array, np.nan)


SAMPLES = "samples"
"""A column that counts in thousands and millions."""


def draw_records(records: Sequence[Record], path: Path) -> None:
    """A PNG of runs that differ in their seeds alone, with the panels of their schema. Without panels, no picture."""
    schema, config = records[0].schema, records[0].config
    if not schema.panels:
        return
    tables = {config["method"]: pl.concat([record.table for record in records], how="diagonal_relaxed")}
    axes = {name: config[name] for name in schema.axes if name != "method" and name in config}
    settings = {name: config.get(name) for name in schema.settings if not isinstance(config.get(name), Mapping)}
    length = {schema.unit: records[0].table["samples"].to_list()[-1]} if "samples" in records[0].table.columns else {}
    shown = ", ".join(filter(None, (config["problem"], settings_text(axes))))
    deviations = deviations_text(records[0].deviations, list(schema.fields))
    remark = deviations and f"not the paper's setting: {deviations}"
    metrics = [schema.metric(name) for name in schema.panels]
    title = "\n".join(filter(None, (f"{shown}: {settings_text({**settings, **length})}", remark)))
    draw_runs(tables, metrics, schema.plot_column or schema.x_column, path, title, schema.plot_label)


def draw_runs(
    tables: Mapping[str, pl.DataFrame],
    metrics: Sequence[Metric],
    along: str,
    path: Path,
    title: str = "",
    label: str = "",
) -> None:
    """A PNG of runs that differ in method and seed alone.

    Lines are means over seeds, with the standard error shaded where there are several. A table without one of the
    columns leaves its panel out.

    Args:
        tables: method -> its rows, of one or more seeds.
        metrics: a panel each.
        along: the column that the rows follow, or `samples`.
        path: of the picture, which is written whole or not at all.
        title: above the panels.
        label: of the horizontal axis; default: that column's name.
    """
    shown = [metric for metric in metrics if any(metric.name in table.columns for table in tables.values())]
    with panels(1, len(shown), 2.6 * len(shown), 2.45) as (picture, (row,)):
        for axes, metric in zip(row, shown, strict=True):
            for method, table in tables.items():
                if metric.name in table.columns:
                    draw_curve(axes, _means(table, along, metric.name), along, style_of(method))
            axes.set_title(metric.label)
            show_unit(axes, metric)
            if along == SAMPLES:
                count_steps(axes)
                axes.set_xlabel(label)
            else:
                count_along(axes, label or along.capitalize())
        short = [bool(table.select(cut_short(table)).to_series().any()) for table in tables.values()]
        seeds = pl.DataFrame({"seeds": [table["seed"].n_unique() for table in tables.values()], CUT_SHORT: short})
        add_legend(picture, map(style_of, tables), about_seeds(seeds))
        if title:
            picture.suptitle(title)
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png", dpi=180)
    write_whole(path, buffer.getbuffer())


def _means(table: pl.DataFrame, along: str, name: str) -> pl.DataFrame:
    """The mean over seeds, and one standard error below and above it (0 with a single seed)."""
    value = pl.col(name)
    mean, error = value.mean(), (value.std() / value.count().sqrt()).fill_null(0.0)
    short = cut_short(table).any()
    return table.group_by(along).agg(short, mean.alias("mean"), low=mean - error, high=mean + error).sort(along)
