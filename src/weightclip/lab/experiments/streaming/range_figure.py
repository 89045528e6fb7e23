"""Where to clip: the score against the range of the output layer, a line for each range of the hidden layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from weightclip._ranges import ByLayer, parse_kappa
from weightclip.lab.analysis.best import own_runs
from weightclip.lab.analysis.selection import score_settings
from weightclip.lab.analysis.setups import main_setup
from weightclip.lab.experiments.streaming.config import NAME
from weightclip.lab.plotting.figure import Drawing
from weightclip.lab.plotting.panels import WIDTH, about_seeds, add_legend, panels, show_unit
from weightclip.lab.plotting.style import Style, style_of
from weightclip.lab.records.schema import CRITERIA, DEFAULT, FRACTION, Criterion, Metric

ONE, GRADED = "one κ for all layers", "graded, best of its variants"

STYLES = {
    ONE: Style(ONE, "#000000", "--", "", 3),
    "hidden κ = 1": Style("hidden κ = 1", "#0072B2", "-", "s", 3),
    "hidden κ = 5": Style("hidden κ = 5", "#E69F00", "-", "^", 3),
    "hidden not clipped": Style("hidden not clipped", "#D55E00", "-", "o", 4),
    GRADED: Style(GRADED, "#009E73", ":", "", 3),
}
OTHERS = "#777777"


@dataclass(frozen=True)
class _Point:
    """A setting: its line in the figure, and the κ of its output layer; None for a level line."""

    line: str
    output: float | None


def figure_ranges(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """A panel for each problem and optimizer; `graded` is a level line."""
    notes: list[str] = []
    own = own_runs(table, NAME)
    check_ranges(own)
    data = _data(main_setup(own, notes.append), criterion)
    problems = data["problem"].unique(maintain_order=True).to_list()
    methods = sorted(data["method"].unique().to_list(), reverse=True)
    with panels(len(methods), len(problems), WIDTH, 0.9 + 1.75 * len(methods)) as (picture, rows):
        for (i, method), (j, problem) in product(enumerate(methods), enumerate(problems)):
            shown = data.filter(problem=problem, method=method)
            if shown.is_empty():
                rows[i][j].set_axis_off()
                continue
            _draw(rows[i][j], shown)
            if i == 0:
                rows[i][j].set_title(problem)
            if i == len(methods) - 1:
                rows[i][j].set_xlabel("κ of the output layer")
            if j == 0:
                rows[i][j].set_ylabel(f"{style_of(method).label}\nAccuracy")
        drawn = data["line"].unique(maintain_order=True).to_list()
        order = [*(name for name in STYLES if name in drawn), *(name for name in drawn if name not in STYLES)]
        add_legend(picture, map(_style, order), f"Accuracy, {CRITERIA[criterion]}; {about_seeds(data)}")
    return Drawing(picture, data, tuple(notes))


def check_ranges(table: pl.DataFrame) -> None:
    """Raise a ValueError for a table without ranges."""
    if "kappa_rule" not in table.columns or table["kappa_rule"].null_count() == len(table):
        raise ValueError("results: got one kappa for all layers, expected runs with ranges such as hidden=5,output=1")


def _data(runs: pl.DataFrame, criterion: Criterion) -> pl.DataFrame:
    """problem, method, line, rule, output, mean, low, high, seeds."""
    scores = score_settings(runs, criterion=criterion)
    found = []
    for row in scores.iter_rows(named=True):
        for point in _points(row["kappa"], row["kappa_rule"]):
            error = row["error"] or 0.0
            found.append(
                {
                    **{name: row[name] for name in ("problem", "method")},
                    "line": point.line,
                    "rule": row["kappa_rule"] or f"{row['kappa']:g}",
                    "output": point.output,
                    "mean": row["score"],
                    "low": row["score"] - error,
                    "high": row["score"] + error,
                    "seeds": row["seeds"],
                }
            )
    return pl.DataFrame(found).sort("problem", "method", "line", "output", maintain_order=True)


def _points(kappa: float | None, rule: str | None) -> Iterator[_Point]:
    if rule is None:
        if kappa is not None and math.isfinite(kappa):
            yield _Point(ONE, kappa)
        return
    parsed = parse_kappa(rule)
    if not isinstance(parsed, ByLayer):
        yield _Point(GRADED, None)
        return
    ranges = dict(parsed.ranges)
    if set(ranges) <= {"hidden", "output"} and "output" in ranges:
        hidden = ranges.get("hidden", math.inf)
        yield _Point(f"hidden κ = {hidden:g}" if hidden < math.inf else "hidden not clipped", ranges["output"])


def _draw(axes: Axes, data: pl.DataFrame) -> None:
    for (line,), points in data.group_by("line", maintain_order=True):
        style = _style(str(line))
        if line == GRADED:
            axes.axhline(max(points["mean"]), color=style.colour, linestyle=style.line, label=style.label)
            continue
        x, mean, low, high = (points[name].to_list() for name in ("output", "mean", "low", "high"))
        axes.plot(
            x, mean, color=style.colour, linestyle=style.line, marker=style.marker, markersize=3, label=style.label
        )
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0)
    show_unit(axes, Metric("accuracy", "Accuracy", "", unit=FRACTION))
    ticks = data["output"].drop_nulls().unique().sort().to_list()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _style(line: str) -> Style:
    return STYLES.get(line, Style(line, OTHERS, "-.", "P", 3))
