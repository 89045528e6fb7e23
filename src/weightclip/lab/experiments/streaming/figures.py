"""Figures of streaming runs: 3, 4 and 10 of the paper, sensitivities, and the picture of a run. Input: tidy tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from weightclip._ranges import ByLayer, Graded, graded, parse_kappa
from weightclip.lab.analysis.best import display_setting, experiment_runs
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.selection import best_runs, score_settings, select
from weightclip.lab.analysis.setups import columns_of, has_several, main_setup
from weightclip.lab.analysis.statistics import sensitivity
from weightclip.lab.callbacks import ignore
from weightclip.lab.experiments.streaming.config import NAME, PAPER_METHODS
from weightclip.lab.experiments.streaming.metrics import METRICS
from weightclip.lab.experiments.streaming.published_curves import PERIOD, authors_curves, compare_with_authors
from weightclip.lab.plotting.captions import BARS, caption, seed_count_text, seeds_caption, styles_of, with_kappas
from weightclip.lab.plotting.figure import Drawing, Figure
from weightclip.lab.plotting.panels import (
    WIDTH,
    add_legend,
    draw_curve,
    draw_logs,
    draw_panel,
    draw_runs,
    format_unit,
    panels,
    set_count_axis,
)
from weightclip.lab.plotting.style import Style, style_of
from weightclip.lab.records.schema import CRITERIA, DEFAULT, FRACTION, Criterion, Metric
from weightclip.lab.text import kappa_text, settings_text

PANELS = ("accuracy", "loss", "plasticity", "weight_l2")
DIAGNOSTICS = ("loss", "plasticity", "gradient_l2", "weight_l2")
PLASTICITY = ("accuracy", "plasticity", "weight_l2")
NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
PARAMETERS = {"lr": "Step size $\\alpha$", "decay": "Decay $\\lambda$", "kappa": "Clipping parameter $\\kappa$"}

DATA = {"mnist": "MNIST", "emnist": "EMNIST", "mini-imagenet": "mini-ImageNet", "cifar10": "CIFAR-10"}

INPUT_PERMUTED = ("input-permuted-mnist",)
LABEL_PERMUTED = ("label-permuted-emnist", "label-permuted-mini-imagenet")
"""The paper's problems."""

ONE_VALUE = "results: got one value of each setting, expected several of lr, decay or kappa"

PAIRS = 2
"""Tasks averaged per point, as in the paper's figures."""

COLUMNS = ("problem", "method", "metric", "task", "mean", "low", "high", "seeds", "cut_short")


def figure_3(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw the accuracy by task, with a panel for each problem."""
    problems = _problems(table)
    runs, notes = _select_runs(table, problems, criterion)
    data, styles = _curves(runs, ("accuracy",)), styles_of(runs)
    with panels(1, len(problems), WIDTH, 2.0) as (picture, (row,)):
        for axes, problem in zip(row, problems, strict=True):
            _draw_panel(axes, data, problem, "accuracy", styles)
            axes.set_title(_title(runs, problem))
        row[0].set_ylabel(METRICS["accuracy"].label)
        add_legend(picture, styles.values(), _caption(data, runs))
    return Drawing(picture, data, (*notes, *_gaps(data)))


def figure_4(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw loss, plasticity, gradient norm and weight norm by task on input-permuted MNIST."""
    return _diagnostics(table, _require_problems(table, INPUT_PERMUTED), criterion)


def figure_10(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw the same metrics on the label-permuted problems, with a row for each."""
    return _diagnostics(table, _require_problems(table, LABEL_PERMUTED), criterion)


def figure_plasticity(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw accuracy, plasticity and weight norm by task on input-permuted MNIST."""
    return _diagnostics(table, _require_problems(table, INPUT_PERMUTED), criterion, PLASTICITY)


def _diagnostics(
    table: pl.DataFrame, problems: Sequence[str], criterion: Criterion, metrics: Sequence[str] = DIAGNOSTICS
) -> Drawing:
    expected = PAPER_METHODS if metrics == DIAGNOSTICS else ()  # other pictures show a few methods
    runs, notes = _select_runs(_with_diagnostics(table), problems, criterion, expected)
    data, styles = _curves(runs, metrics), styles_of(runs)
    with panels(len(problems), len(metrics), WIDTH, 0.2 + 1.55 * len(problems)) as (picture, rows):
        for row, problem in zip(rows, problems, strict=True):
            for axes, metric in zip(row, metrics, strict=True):
                _draw_panel(axes, data, problem, metric, styles)
            row[0].set_ylabel(_title(runs, problem, separator="\n"))
        for axes, metric in zip(rows[0], metrics, strict=True):
            axes.set_title(METRICS[metric].label)
        add_legend(picture, styles.values(), _caption(data, runs))
    return Drawing(picture, data, (*notes, *_gaps(data)))


def draw_sensitivity(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw the score by step size, decay and kappa, with the best other settings; a row for each problem."""
    notes: list[str] = []
    runs = main_setup(table.filter(pl.col("problem").is_in(_problems(table))), notes.append)
    data = _sensitivities(runs, criterion)
    problems = [name for name in _problems(table) if name in data["problem"]]
    parameters = [name for name in PARAMETERS if name in data["parameter"]]
    with panels(len(problems), len(parameters), WIDTH, 0.2 + 1.7 * len(problems)) as (picture, rows):
        for row, problem in zip(rows, problems, strict=True):
            for axes, parameter in zip(row, parameters, strict=True):
                part = data.filter(problem=problem, parameter=parameter)
                draw_panel(axes, part, "value", METRICS["accuracy"], bars=True)
                _scale(axes, parameter, part["value"].unique().to_list())
            row[0].set_ylabel(_title(runs, problem, separator="\n"))
        styles = map(style_of, data["method"].unique().sort().cast(pl.String))
        best = f"Accuracy, {CRITERIA[criterion]}, at the best other settings; {seeds_caption(data, BARS)}"
        add_legend(picture, styles, caption(best, runs=runs, name=_data_name, kappas=False))
    return Drawing(picture, data, tuple(notes))


def _sensitivities(runs: pl.DataFrame, criterion: Criterion) -> pl.DataFrame:
    """A table of methods with several values: problem, method, metric, parameter, value, mean, low, high, seeds."""
    score, error = pl.col("score"), pl.col("error").fill_null(0.0)
    found = [
        sensitivity(_ordered(runs), parameter, criterion=criterion)
        .filter(pl.col(parameter).is_finite())  # an infinite kappa cannot be drawn
        .filter(pl.len().over("problem", "method") > 1)
        .select(
            "problem",
            "method",
            pl.lit("accuracy").alias("metric"),
            pl.lit(parameter).alias("parameter"),
            pl.col(parameter).alias("value"),
            score.alias("mean"),
            (score - error).alias("low"),
            (score + error).alias("high"),
            "seeds",
        )
        for parameter in PARAMETERS
        if parameter in columns_of(runs).settings
    ]
    data = pl.concat(found)
    if data.is_empty():
        raise ValueError(ONE_VALUE)
    return data


def _scale(axes: Axes, parameter: str, values: list[float]) -> None:
    """Put a tick at each value. The scale is logarithmic except for kappa, and includes 0."""
    axes.set_xlabel(PARAMETERS[parameter])
    axes.margins(x=0.05)
    if parameter != "kappa":
        smallest = min((value for value in values if value > 0), default=1.0)
        axes.set_xscale("symlog", linthresh=smallest)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_authors_comparison(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw accuracy, loss and weight norm of runs and of the authors' logs on input-permuted MNIST."""
    notes: list[str] = []
    data = compare_with_authors(table, notes.append)
    rows = data.select("method", "kappa").unique(maintain_order=True).iter_rows()
    styles = {method: with_kappas(style_of(method), filter(None, [kappa_text(kappa)])) for method, kappa in rows}
    metrics = data["metric"].unique(maintain_order=True).to_list()
    with panels(1, len(metrics), WIDTH, 1.9) as (picture, (row,)):
        for axes, metric in zip(row, metrics, strict=True):
            for method, style in styles.items():
                curve = data.filter(method=method, metric=metric)
                draw_curve(axes, curve, "task", style)
                draw_logs(axes, curve, "task", style)
            axes.set_title(METRICS[metric].label)
            format_unit(axes, METRICS[metric])
            set_count_axis(axes, f"Task of {PERIOD:,} samples")
        row[0].set_ylabel("Input-permuted\nMNIST")
        theirs = f"white: the authors' logs, {seed_count_text(authors_curves()['seeds'])}, accuracy ± standard error"
        add_legend(picture, styles.values(), f"lines: {_seeds_by_task(data)}\n{theirs}")
    return Drawing(picture, data, tuple(notes))


def _seeds_by_task(data: pl.DataFrame) -> str:
    """The number of seeds; if some runs are longer, by task: `mean of 6 seeds to task 20, then 2 seeds`."""
    tasks = data.select("task", "seeds").unique().sort("task")
    levels = tasks.group_by("seeds").agg(pl.col("task").max()).sort("task")
    if len(levels) == 1 or tasks["task"].is_duplicated().any() or not tasks["seeds"].is_sorted(descending=True):
        return seeds_caption(data)
    texts = [f"{seed_count_text([seeds])} to task {task}" for seeds, task in levels.rows()]
    texts[-1] = seed_count_text(levels["seeds"][-1:])
    return f"mean of {', then '.join(texts)}, standard error shaded"


def _problems(table: pl.DataFrame) -> list[str]:
    """The paper's problems in the table or, if there are none, all problems of this experiment."""
    available = _available_problems(table)
    return [name for name in INPUT_PERMUTED + LABEL_PERMUTED if name in available] or available


def _require_problems(table: pl.DataFrame, names: Sequence[str]) -> list[str]:
    available = _available_problems(table)
    found = [name for name in names if name in available]
    if not found:
        raise ValueError(f"results: got {', '.join(available)}, expected runs of {' or '.join(names)}")
    return found


def _available_problems(table: pl.DataFrame) -> list[str]:
    """All problems of this experiment in the table."""
    found: list[str] = experiment_runs(table, NAME)["problem"].unique().sort().to_list()
    return found


def _with_diagnostics(table: pl.DataFrame) -> pl.DataFrame:
    measured = table.drop_nulls(DIAGNOSTICS) if set(DIAGNOSTICS) <= set(table.columns) else table.clear()
    if measured.is_empty():
        raise ValueError("results: got no runs with diagnostics, expected at least one")
    return measured


def _select_runs(
    table: pl.DataFrame, problems: Sequence[str], criterion: Criterion, expected: Sequence[str] = PAPER_METHODS
) -> tuple[pl.DataFrame, list[str]]:
    """The runs to draw, in the main setup of each problem and the best setting of each method, and notes."""
    notes: list[str] = []
    runs = main_setup(table.filter(pl.col("problem").is_in(problems)), notes.append)
    selected = select(_ordered(runs), criterion=criterion)
    for problem in problems:
        rows = selected.filter(problem=problem)
        several = rows.filter(pl.col("compared") + pl.col("incomplete") > 1)
        if len(several):
            best = (
                f"{row['method']} ({settings_text(display_setting(row, runs))})"
                for row in several.iter_rows(named=True)
            )
            notes.append(f"{problem}: best of several settings by {criterion}: {', '.join(best)}")
        missing = [method for method in expected if method not in rows["method"]]
        if missing:
            notes.append(f"{problem}: no results for {', '.join(missing)}")
    return best_runs(runs, criterion=criterion), notes


def _ordered(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs with `method` as an enum: the paper's methods first, in its order."""
    order = columns_of(runs).schema.ordered_methods(runs["method"])
    return runs.with_columns(pl.col("method").cast(pl.Enum(order)))


def _caption(data: pl.DataFrame, runs: pl.DataFrame) -> str:
    """The caption of curves by task."""
    return caption(f"{seeds_caption(data)}; a point is the mean of two tasks", runs=runs, name=_data_name)


def _curves(runs: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """The curves of the metrics, with the columns `COLUMNS`."""
    found = [
        curves(_ordered(runs), metric, every=PAIRS).with_columns(pl.lit(metric).alias("metric")) for metric in metrics
    ]
    return pl.concat(found).select(COLUMNS)


def _draw_panel(axes: Axes, data: pl.DataFrame, problem: str, metric: str, styles: Mapping[str, Style]) -> None:
    draw_panel(axes, data.filter(problem=problem, metric=metric), "task", METRICS[metric], styles)
    set_count_axis(axes, "Task")


def _title(runs: pl.DataFrame, problem: str, separator: str = " ") -> str:
    """The title of a problem: `label-permuted-emnist` -> Label-permuted EMNIST. Unofficial data is marked."""
    stand_in = not runs.filter(problem=problem)["official"].all()
    changes, _, data = problem.partition("-permuted-")
    name = f"{changes.capitalize()}-permuted{separator}{DATA[data]}" if data in DATA else problem
    return name + "\n(stand-in data)" * stand_in


def _data_name(problem: str) -> str:
    """The name of a problem in a caption."""
    return DATA.get(problem.partition("-permuted-")[2], problem)


def _gaps(data: pl.DataFrame) -> list[str]:
    """Notes on lines with values that are not finite."""
    broken = data.filter(~pl.col("mean").is_finite()).select("problem", "method").unique(maintain_order=True)
    return [
        f"{problem}: the line of {method} has gaps where values are not finite"
        for problem, method in broken.iter_rows()
    ]


def draw_run(
    tables: Mapping[str, pl.DataFrame], path: str | Path, title: str = "", kappas: Mapping[str, float] = NO_NUMBERS
) -> None:
    """Draw accuracy, loss, plasticity and weight norm by task as a PNG; see `weightclip.lab.plotting.panels`."""
    texts = {method: kappa_text(kappa) for method, kappa in kappas.items()}
    draw_runs(tables, [METRICS[name] for name in PANELS], "task", Path(path), title, kappas=texts)


ONE, GRADED = "one κ for all layers", str(graded())
"""Lines for a single κ, and for a range per unit with its default arguments; other graded variants are not drawn."""

STYLES = {
    ONE: Style(ONE, "#000000", "--", "", 3),
    "hidden κ = 1": Style("hidden κ = 1", "#0072B2", "-", "s", 3),
    "hidden κ = 5": Style("hidden κ = 5", "#E69F00", "-", "^", 3),
    "hidden not clipped": Style("hidden not clipped", "#D55E00", "-", "o", 4),
    GRADED: Style(GRADED, "#009E73", ":", "", 3),
}
OTHER_COLOR = "#777777"


@dataclass(frozen=True)
class _Point:
    """A setting: its line in the figure, and the κ of its output layer; None for a horizontal line."""

    line: str
    output: float | None


def figure_ranges(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw a panel for each problem and optimizer; `graded()` is a horizontal line."""
    notes: list[str] = []
    runs = experiment_runs(table, NAME)
    check_ranges(runs)
    data = _data(main_setup(runs, notes.append), criterion)
    problems = data["problem"].unique(maintain_order=True).to_list()
    methods = sorted(data["method"].unique().to_list(), reverse=True)
    with panels(len(methods), len(problems), WIDTH, 0.2 + 1.75 * len(methods)) as (picture, rows):
        for (i, method), (j, problem) in product(enumerate(methods), enumerate(problems)):
            part = data.filter(problem=problem, method=method)
            if part.is_empty():
                rows[i][j].set_axis_off()
                continue
            _draw(rows[i][j], part)
            if i == 0:
                rows[i][j].set_title(_title(runs, problem))
            if i == len(methods) - 1:
                rows[i][j].set_xlabel("κ of the output layer")
            if j == 0:
                rows[i][j].set_ylabel(f"{style_of(method).label}\nAccuracy")
        drawn = data["line"].unique(maintain_order=True).to_list()
        order = [*(name for name in STYLES if name in drawn), *(name for name in drawn if name not in STYLES)]
        about = f"Accuracy, {CRITERIA[criterion]}; {seeds_caption(data)}"
        text = caption(about, runs=runs, name=_data_name, kappas=False)
        add_legend(picture, map(_style, order), text)
    return Drawing(picture, data, (*notes, *_not_drawn(runs)))


def check_ranges(table: pl.DataFrame) -> None:
    """Raise a ValueError for a table without ranges by layer."""
    if "kappa_rule" not in table.columns or table["kappa_rule"].null_count() == len(table):
        raise ValueError("results: got one kappa for all layers, expected runs with ranges such as hidden=5,output=1")


def _data(runs: pl.DataFrame, criterion: Criterion) -> pl.DataFrame:
    """The plotted data: problem, method, line, rule, output, mean, low, high, seeds."""
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
        if parsed == graded():
            yield _Point(GRADED, None)
        return
    ranges = dict(parsed.ranges)
    if set(ranges) <= {"hidden", "output"} and "output" in ranges:
        hidden = ranges.get("hidden", math.inf)
        yield _Point(f"hidden κ = {hidden:g}" if hidden < math.inf else "hidden not clipped", ranges["output"])


def _not_drawn(runs: pl.DataFrame) -> list[str]:
    """A note on graded variants other than the default."""
    rules = runs["kappa_rule"].drop_nulls().unique().sort()
    others = [rule for rule in rules if isinstance(kappa := parse_kappa(rule), Graded) and kappa != graded()]
    return [f"graded ranges that are not drawn: {'; '.join(others)}"] if others else []


def _draw(axes: Axes, data: pl.DataFrame) -> None:
    for (line,), points in data.group_by("line", maintain_order=True):
        style = _style(str(line))
        if line == GRADED:
            axes.axhline(points["mean"].item(), color=style.color, linestyle=style.line, label=style.label)
            continue
        x, mean, low, high = (points[name].to_list() for name in ("output", "mean", "low", "high"))
        axes.plot(
            x, mean, color=style.color, linestyle=style.line, marker=style.marker, markersize=3, label=style.label
        )
        axes.fill_between(x, low, high, color=style.color, alpha=0.18, linewidth=0)
    format_unit(axes, Metric("accuracy", "Accuracy", "", unit=FRACTION))
    ticks = data["output"].drop_nulls().unique().sort().to_list()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _style(line: str) -> Style:
    return STYLES.get(line, Style(line, OTHER_COLOR, "-.", "P", 3))


def _check_input_permuted(table: pl.DataFrame) -> None:
    _require_problems(_with_diagnostics(table), INPUT_PERMUTED)


def _check_label_permuted(table: pl.DataFrame) -> None:
    _require_problems(_with_diagnostics(table), LABEL_PERMUTED)


def _check_authors(table: pl.DataFrame) -> None:
    compare_with_authors(table, ignore)


def _check_searched(table: pl.DataFrame) -> None:
    if not any(has_several(table, ("problem", "method"), name) for name in PARAMETERS if name in table.columns):
        raise ValueError(ONE_VALUE)


FIGURES = (
    Figure("streaming", "3", "Accuracy by task on the three streaming problems", figure_3, NAME),
    Figure(
        "streaming-diagnostics",
        "4",
        "Loss, plasticity and norms on input-permuted MNIST",
        figure_4,
        NAME,
        _check_input_permuted,
    ),
    Figure(
        "label-permuted-diagnostics",
        "10",
        "Loss, plasticity and norms on label-permuted EMNIST and mini-ImageNet",
        figure_10,
        NAME,
        _check_label_permuted,
    ),
    Figure(
        "loss-of-plasticity",
        "",
        "Accuracy, plasticity and weight norm on input-permuted MNIST",
        figure_plasticity,
        NAME,
        _check_input_permuted,
    ),
    Figure(
        "streaming-authors",
        "",
        "Accuracy, loss and weight norm compared with the authors' logs",
        draw_authors_comparison,
        NAME,
        _check_authors,
    ),
    Figure(
        "streaming-sensitivity",
        "",
        "Accuracy by step size, decay and kappa",
        draw_sensitivity,
        NAME,
        _check_searched,
    ),
    Figure(
        "streaming-ranges",
        "",
        "Accuracy by the clipping ranges of hidden and output layers",
        figure_ranges,
        NAME,
        check_ranges,
    ),
)
