"""Panels of curves, shared by all figures. A curve is a table with the columns mean, low and high."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from weightclip.lab.analysis.setups import NOT_THE_PAPERS
from weightclip.lab.files import write_whole
from weightclip.lab.plotting.captions import KAPPA, seeds_caption, with_kappas
from weightclip.lab.plotting.style import MARKERS, OTHER_MARKER, RC, Style, style_of
from weightclip.lab.records.columns import CUT_SHORT, cut_short, deviations_text, plain_value
from weightclip.lab.records.record import Record
from weightclip.lab.records.schema import FRACTION, Metric
from weightclip.lab.text import count_text, kappa_text, settings_text

WIDTH = 6.75
"""Text width of a page, in inches."""

NUM_MARKERS = 6
"""Approximate number of markers on a curve."""

CHARACTERS = 16
"""Characters of a caption per inch."""

KAPPA_LABEL = "Clipping parameter $\\kappa$"

LOG_SCALE_RATIO = 6.0
"""Ratio between the medians of two methods from which an axis is logarithmic."""


NO_STYLES: Mapping[str, Style] = MappingProxyType({})
NO_KAPPAS: Mapping[str, str] = MappingProxyType({})


def lighter(color: str, fraction: float) -> str:
    """Blend a color with a fraction of white."""
    red, green, blue = (part + fraction * (1 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))


@contextmanager
def panels(rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Picture, list[list[Axes]]]]:
    """A picture with rows x columns empty panels, width x height inches without its legend, in the common style."""
    with rc_context(RC):
        picture = Picture(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(picture)
        yield picture, picture.subplots(rows, columns, squeeze=False).tolist()


def draw_curve(axes: Axes, curve: pl.DataFrame, x_column: str, style: Style, bars: bool = False) -> None:
    """Draw the mean as a line and low to high, where they differ, as a shade or as error bars.

    Values that are not finite leave a gap. Tasks that were cut short are open circles.
    """
    x, mean, low, high = (_finite(curve[column]) for column in (x_column, "mean", "low", "high"))
    axes.plot(
        x,
        mean,
        color=style.color,
        linestyle=style.line,
        linewidth=style.width,
        marker=style.marker or ("o" if len(x) == 1 else ""),  # a line through one point is invisible
        markersize=2.7,
        markevery=_marker_spacing(len(x), style.marker),
        label=style.label,
        zorder=style.order,
    )
    if CUT_SHORT in curve.columns and (short := curve[CUT_SHORT].to_numpy()).any():
        axes.plot(
            x[short],
            mean[short],
            color=style.color,
            linestyle="",
            marker="o",
            markersize=4.5,
            markerfacecolor="white",
            zorder=style.order + 1,
        )
    if bars:
        error = np.where(high > low, [mean - low, high - mean], np.nan)
        axes.errorbar(x, mean, error, fmt="none", ecolor=style.color, capsize=2, elinewidth=0.8, zorder=style.order)
    elif np.any(high > low):
        axes.fill_between(x, low, high, color=style.color, alpha=0.18, linewidth=0, zorder=style.order - 2)


def draw_logs(axes: Axes, curve: pl.DataFrame, x_column: str, style: Style) -> None:
    """Draw the columns `authors` and `authors_error` of a curve as white diamonds with error bars."""
    logs = curve.drop_nulls("authors")
    axes.errorbar(
        logs[x_column],
        logs["authors"],
        _finite(logs["authors_error"]),
        color=style.color,
        linestyle="",
        marker="D",
        markersize=3.5,
        markerfacecolor="white",
        capsize=2,
        zorder=style.order + 1,
    )


def draw_panel(
    axes: Axes,
    curves: pl.DataFrame,
    x_column: str,
    metric: Metric,
    styles: Mapping[str, Style] = NO_STYLES,
    bars: bool = False,
) -> None:
    """Draw a line for each method. The axis is logarithmic if one method would flatten the others.

    Args:
        axes: panel.
        curves: columns method, mean, low, high, and the one named by `x_column`.
        x_column: column of the horizontal axis.
        metric: drawn metric.
        styles: method -> style (default: `style_of`).
        bars: draw low to high as error bars.
    """
    for (method,), curve in curves.group_by("method", maintain_order=True):
        draw_curve(axes, curve, x_column, styles.get(str(method)) or style_of(str(method)), bars)
    format_unit(axes, metric)
    if metric.unit != FRACTION and needs_log_scale(curves):
        _use_log_scale(axes)


def format_unit(axes: Axes, metric: Metric) -> None:
    """Show fractions as percentages."""
    if metric.unit == FRACTION:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:g}%"))


def needs_log_scale(curves: pl.DataFrame) -> bool:
    """Whether the medians of two methods differ by more than the factor `LOG_SCALE_RATIO`."""
    finite = curves.filter(pl.col("mean").is_finite())
    typical = finite.group_by("method").agg(pl.col("mean").median())["mean"].to_numpy()
    return bool(len(typical) and (finite["mean"] > 0).all() and typical.max() > LOG_SCALE_RATIO * typical.min())


def _use_log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 1000 * low:  # powers of ten would give only two or three ticks
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def set_count_axis(axes: Axes, label: str) -> None:
    """Label a horizontal axis of tasks or epochs, with integer ticks. Call it after drawing."""
    axes.set_xlabel(label)
    low, high = axes.get_xlim()
    if high - low < 1:  # a single point: otherwise all ticks would be fractions
        middle = round((low + high) / 2)
        axes.set_xlim(middle - 1, middle + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10]))


def set_kappa_axis(axes: Axes, ticks: Iterable[float]) -> None:
    """Format a logarithmic horizontal axis of kappa with these ticks."""
    axes.set_xscale("log")
    values = sorted(set(ticks))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def set_steps_axis(axes: Axes) -> None:
    """Format a horizontal axis of steps in thousands and millions: `500k`, `2.5M`."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: count_text(steps)))


def add_legend(picture: Picture, styles: Iterable[Style], title: str = "") -> None:
    """Add a legend of all lines below the panels, in the order of `styles`. The picture grows by its height."""
    drawn: dict[str, Artist] = {}
    for axes in picture.axes:
        drawn |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels = [style.label for style in styles]
    for rows in range(1 if len(labels) < 5 else 2, len(labels) + 1):  # two as in the paper: one column per regularizer
        legend = picture.legend(
            [drawn[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=-(-len(labels) // rows),
            handlelength=2.8,
            columnspacing=1.4,
            title=wrapped(title, picture.get_figwidth()),
        )
        legend.get_title().set_multialignment("center")
        extent = legend.get_window_extent()
        if extent.width <= picture.bbox.width or rows == len(labels):
            picture.set_figheight(picture.get_figheight() + extent.height / picture.dpi)
            return
        legend.remove()  # too wide: try more rows


def wrapped(text: str, width: float) -> str:
    """Break the lines of a caption that are longer than `width` inches, after punctuation if possible."""
    return "\n".join(_wrapped_line(line, int(CHARACTERS * width)) for line in text.splitlines())


def _wrapped_line(line: str, limit: int) -> str:
    glue = "\N{NO-BREAK SPACE}"
    parts = textwrap.wrap(re.sub(r"(?<![,;:]) ", glue, line), limit, break_long_words=False)
    fitting = parts if max(map(len, parts)) <= limit else textwrap.wrap(line, limit)
    return "\n".join(fitting).replace(glue, " ")


def _marker_spacing(points: int, marker: str) -> tuple[int, int]:
    """The first point with a marker and the distance to the next one, staggered between markers."""
    markers = [*MARKERS.values(), OTHER_MARKER]
    distance = max(1, points // NUM_MARKERS)
    return distance * markers.index(marker) // len(markers), distance


def _finite(values: pl.Series) -> NDArray[Any]:
    array = values.cast(pl.Float64).to_numpy()
    return np.where(np.isfinite(array), array, np.nan)


SAMPLES = "samples"
"""Column whose values are in thousands and millions."""


def draw_records(records: Sequence[Record], path: Path) -> None:
    """Draw runs that differ only in their seeds as a PNG, with the panels of their schema, if it has any."""
    schema, config = records[0].schema, records[0].config
    if not schema.panels:
        return
    method, table = config["method"], pl.concat([record.table for record in records], how="diagonal_relaxed")
    axes = {name: config[name] for name in schema.axes if name != "method" and name in config}
    settings = {name: config.get(name) for name in schema.settings if not isinstance(config.get(name), Mapping)}
    length = {schema.unit: records[0].table["samples"].to_list()[-1]} if "samples" in records[0].table.columns else {}
    name = ", ".join(filter(None, (config["problem"], settings_text(axes))))
    deviations = deviations_text(records[0].deviations, list(schema.fields))
    remark = deviations and f"{NOT_THE_PAPERS}: {deviations}"
    metrics = [schema.metric(name) for name in schema.panels]
    title = "\n".join(filter(None, (f"{name}: {settings_text({**settings, **length})}", remark)))
    kappas = {method: kappa_text(*(plain_value(settings.get(name)) for name in KAPPA))}
    x_column = schema.plot_column or schema.x_column
    draw_runs({method: table}, metrics, x_column, path, title, schema.plot_label, kappas)


def draw_runs(
    tables: Mapping[str, pl.DataFrame],
    metrics: Sequence[Metric],
    x_column: str,
    path: Path,
    title: str = "",
    label: str = "",
    kappas: Mapping[str, str] = NO_KAPPAS,
) -> None:
    """Draw runs that differ only in method and seed as a PNG.

    Lines are means over seeds, with the standard error shaded if there are several. A metric that no table has is
    skipped.

    Args:
        tables: method -> table of one or more seeds.
        metrics: metrics to draw, one panel each.
        x_column: column of the horizontal axis.
        path: path of the picture, which is written atomically.
        title: title above the panels.
        label: label of the horizontal axis (default: the name of the column).
        kappas: method -> kappa as text, for the legend.
    """
    displayed = [metric for metric in metrics if any(metric.name in table.columns for table in tables.values())]
    styles = {method: with_kappas(style_of(method), filter(None, [kappas.get(method)])) for method in tables}
    rows = 1 if len(displayed) < 4 else 2
    columns = -(-len(displayed) // rows)
    with panels(rows, columns, WIDTH * max(columns, 2) / 3, 1.75 * rows) as (picture, found):
        all_axes = [axes for row in found for axes in row]
        for axes, metric in zip(all_axes, displayed, strict=False):
            for method, table in tables.items():
                if metric.name in table.columns:
                    draw_curve(axes, _means(table, x_column, metric.name), x_column, styles[method])
            axes.set_title(metric.label)
            format_unit(axes, metric)
            if x_column == SAMPLES:
                set_steps_axis(axes)
                axes.set_xlabel(label)
            else:
                set_count_axis(axes, label or x_column.capitalize())
        for axes in all_axes[len(displayed) :]:
            axes.set_axis_off()
        short = [bool(table.select(cut_short(table)).to_series().any()) for table in tables.values()]
        seeds = pl.DataFrame({"seeds": [table["seed"].n_unique() for table in tables.values()], CUT_SHORT: short})
        add_legend(picture, styles.values(), seeds_caption(seeds))
        if title:
            heading = wrapped(title, picture.get_figwidth())
            picture.suptitle(heading, fontsize="medium")
            picture.set_figheight(picture.get_figheight() + 0.15 * len(heading.splitlines()))
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png", dpi=180)
    write_whole(path, buffer.getbuffer())


def _means(table: pl.DataFrame, x_column: str, name: str) -> pl.DataFrame:
    """The mean over seeds, and one standard error below and above it (0 for a single seed)."""
    value = pl.col(name)
    mean, error = value.mean(), (value.std() / value.count().sqrt()).fill_null(0.0)
    short = cut_short(table).any()
    return table.group_by(x_column).agg(short, mean.alias("mean"), low=mean - error, high=mean + error).sort(x_column)
