"""A run's own picture: a panel for each metric along its rows, a line for each method."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from weightclip.lab.files import write_whole
from weightclip.lab.results.metrics import Metric
from weightclip.lab.results.panels import (
    about_seeds,
    add_legend,
    count_along,
    count_steps,
    draw_curve,
    panels,
    show_unit,
)
from weightclip.lab.results.style import style_of
from weightclip.lab.results.tidy import CUT_SHORT, cut_short

SAMPLES = "samples"
"""A column that counts in thousands and millions."""


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
