"""Charts of the report: Vega-Lite lines by method, with menus for problem and metric and a clickable legend."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from types import MappingProxyType
from typing import Any

import altair as alt
import polars as pl
import vl_convert

from weightclip.lab.analysis.best import display_setting
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.selection import best_runs
from weightclip.lab.analysis.statistics import sensitivity
from weightclip.lab.plotting.captions import ONE_SEED, by_panel, kappas_of, seed_count_text
from weightclip.lab.plotting.style import COLORS, style_of
from weightclip.lab.records.columns import LAST
from weightclip.lab.records.schema import CRITERIA, FRACTION, Criterion, Metric
from weightclip.lab.report.tables import Setup, all_methods, score_metric
from weightclip.lab.text import list_text, settings_text, value_text

SETUP, LABEL, NOTE = "setup", "label", "note"
"""Columns of a chart's data: setup, label of the method, and additional text of the tooltip."""

DIGITS = 5
LABEL_WIDTH = 7
"""Approximate width of a character of the legend, in pixels."""

NO_LABELS: Mapping[str, str] = MappingProxyType({})

MAX_MARKED_POINTS = 25
"""Maximum number of points of a line that are drawn with markers."""

TEXT_COLOR = "currentColor"
"""The text color of the page, so that charts follow its light or dark mode."""

_DASHES = {"-": [1, 0], "--": [6, 4], "-.": [8, 3, 2, 3]}


@cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed for a script element, which defines `vegaEmbed` globally."""
    major, minor, *_ = alt.SCHEMA_VERSION.removeprefix("v").split(".")
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", f"{major}.{minor}"))


def color_of(method: str) -> str:
    """The color of a method on the page: the text color instead of black."""
    color = style_of(method).color
    return TEXT_COLOR if color == COLORS[""] else color


def dashes_of(method: str) -> list[int]:
    """The line style of a method as lengths of dashes and gaps."""
    return _DASHES[style_of(method).line]


def line_chart(
    data: pl.DataFrame,
    x: str,
    setups: Sequence[str],
    metrics: Sequence[Metric],
    methods: Sequence[str],
    height: int = 380,
    labels: Mapping[str, str] = NO_LABELS,
) -> dict[str, Any]:
    """A Vega-Lite chart with a line and a band for each method.

    Hovering shows the values of all methods at a point. Clicking a method in the legend toggles it. Menus with one
    choice are omitted.

    Args:
        data: columns `SETUP`, `LABEL`, the one named by `x`, and for each metric NAME: `NAME`, `NAME low`, `NAME high`;
            optionally `NOTE`. Text values of `x` keep their order.
        x: name of the horizontal axis and of its column.
        setups: values of `SETUP` in the menu.
        metrics: metrics in the menu.
        methods: methods in the order of the legend.
        height: height of the plot in pixels.
        labels: method -> label (default: the label of its style).
    """
    named = {labels.get(method, style_of(method).label): method for method in methods}
    visible = alt.selection_point(
        name="shown",
        fields=[LABEL],
        bind="legend",
        toggle="true",
        clear=False,
        empty=False,
        value=[{LABEL: label} for label in named],
    )
    base = (
        alt.Chart(_inline(data))
        .transform_filter(f"datum.{SETUP} === {SETUP}")
        .transform_filter(visible)
        .transform_calculate(mean="datum[metric]", low="datum[metric + ' low']", high="datum[metric + ' high']")
    )
    chart = (
        alt.layer(*_layers(base, data, x, named))
        .add_params(
            visible,
            _choice(SETUP, "Problem", setups, setups),
            _choice("metric", "Metric", [metric.name for metric in metrics], [metric.label for metric in metrics]),
            alt.param(name="labels", value={metric.name: _axis_label(metric) for metric in metrics}),
            alt.param(name="fraction", value={metric.name: metric.unit == FRACTION for metric in metrics}),
        )
        .properties(
            description=f"{', '.join(metric.label for metric in metrics)} by {x}, a line for each method",
            width="container",
            height=height,
            # The menu shows the name of the selected metric.
            title=alt.TitleParams(text=alt.ExprRef("labels[metric]"), subtitle=setups[0] if len(setups) == 1 else ""),
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
    )
    spec: dict[str, Any] = chart.to_dict() | {"config": _LOOK}
    return spec


def _layers(base: alt.Chart, data: pl.DataFrame, x: str, named: Mapping[str, str]) -> Iterator[alt.Chart]:
    """Bands, lines and, at the pointer, dots and a rule with a tooltip of all values."""
    x_column, color = _horizontal(data, x), _color(named)
    hover = alt.selection_point(
        name="hover", fields=[x], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    yield base.mark_area(fillOpacity=0.16, aria=False).encode(x_column, _vertical("low"), alt.Y2("high"), color)
    points = {"size": 30} if data[x].n_unique() <= MAX_MARKED_POINTS else False
    yield base.mark_line(strokeWidth=1.75, point=points).encode(x_column, _vertical("mean"), color, _dash(named))
    yield base.mark_circle(size=50, aria=False).encode(x_column, _vertical("mean"), color, opacity=_only(hover, 1))
    yield (
        base.transform_filter("isValid(datum.mean)")
        .transform_calculate(text=_value_text(NOTE in data.columns))
        .transform_pivot(LABEL, groupby=[x], value="text", op="max")
        .mark_rule(color=TEXT_COLOR, tooltip=alt.TooltipContent(content="data"), aria=False)
        .encode(x_column, opacity=_only(hover, 0.4))
        .add_params(hover)
    )


def _only(hover: alt.Parameter, opacity: float) -> Any:
    return alt.when(hover).then(alt.value(opacity)).otherwise(alt.value(0))


def _inline(data: pl.DataFrame) -> alt.InlineData:
    """The data as CSV, which is a third of the size of JSON."""
    numbers = pl.selectors.float()
    rounded = data.with_columns(pl.when(numbers.is_finite()).then(numbers.round_sig_figs(DIGITS)).name.keep())
    kinds = {name: "number" if kind.is_numeric() else "string" for name, kind in data.schema.items()}
    return alt.InlineData(values=rounded.write_csv(), format=alt.CsvDataFormat(type="csv", parse=kinds))


def _horizontal(data: pl.DataFrame, x: str) -> alt.X:
    if data.schema[x].is_numeric():
        whole = "datum.value % 1 ? '' : datum.label"  # tasks are integers
        many = alt.ExprRef("max(2, width / 90)")
        axis = alt.Axis(grid=False, tickMinStep=1, tickCount=many, format="~s", labelExpr=whole)
        return alt.X(x, type="quantitative", title=x, scale=alt.Scale(nice=False), axis=axis)
    scale = alt.Scale(domain=data[x].unique(maintain_order=True).to_list())
    return alt.X(x, type="ordinal", title=x, sort=None, scale=scale, axis=alt.Axis(grid=False, labelAngle=0))


def _vertical(field: str) -> alt.Y:
    axis = alt.Axis(labelExpr="fraction[metric] ? format(datum.value, '~%') : datum.label", tickCount=6, minExtent=44)
    return alt.Y(field, type="quantitative", title=None, scale=alt.Scale(zero=False), axis=axis)


def _value_text(notes: bool) -> str:
    """A Vega expression for a value with its error and note: `78.9% ± 0.2% (note)`."""
    mean = "format(datum.mean, fraction[metric] ? '.2%' : '.4~g')"
    error = "' ± ' + format((datum.high - datum.low) / 2, fraction[metric] ? '.2%' : '.2~g')"
    text = f"{mean} + (datum.high > datum.low ? {error} : '')"
    return f"{text} + (datum.{NOTE} ? ' (' + datum.{NOTE} + ')' : '')" if notes else text


def _axis_label(metric: Metric) -> str:
    return f"{metric.label} ({metric.unit})" if metric.unit not in ("", FRACTION) else metric.label


def _choice(name: str, title: str, options: Sequence[str], labels: Sequence[str]) -> alt.Parameter:
    if len(options) == 1:
        return alt.param(name=name, value=options[0])
    return alt.param(
        name=name,
        value=options[0],
        bind=alt.binding_select(options=list(options), labels=list(labels), name=f"{title} "),
    )


def _legend(labels: Iterable[str]) -> alt.Legend:
    """The legend, identical for color and dashes so that they are merged into one.

    The number of columns depends on the container, because `width` still shrinks during layout; `width` is in the
    expression so that it is recomputed when the window changes.
    """
    entry = 60 + LABEL_WIDTH * max(map(len, labels), default=0)
    return alt.Legend(
        title=None,
        orient="bottom",
        columns=alt.ExprRef(f"max(1, floor(containerSize()[0] / {entry})) + 0 * width"),
        symbolType="stroke",
        symbolSize=500,
        symbolStrokeWidth=2,
        labelLimit=300,
    )


def _color(named: Mapping[str, str]) -> alt.Color:
    scale = alt.Scale(domain=list(named), range=[color_of(method) for method in named.values()])
    return alt.Color(LABEL, type="nominal", scale=scale, legend=_legend(named))


def _dash(named: Mapping[str, str]) -> alt.StrokeDash:
    scale = alt.Scale(domain=list(named), range=[dashes_of(method) for method in named.values()])
    return alt.StrokeDash(LABEL, type="nominal", scale=scale, legend=_legend(named))


_LOOK: Mapping[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "line": {"invalid": "break-paths-filter-domains"},
    "area": {"invalid": "break-paths-filter-domains"},
    "title": {
        "color": TEXT_COLOR,
        "anchor": "start",
        "frame": "group",
        "fontSize": 14,
        "fontWeight": 600,
        "offset": 14,
        "subtitleColor": TEXT_COLOR,
        "subtitleFontSize": 12,
        "subtitlePadding": 5,
    },
    "axis": {
        "labelColor": TEXT_COLOR,
        "titleColor": TEXT_COLOR,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "labelOpacity": 0.75,
        "titleOpacity": 0.75,
        "gridColor": TEXT_COLOR,
        "gridOpacity": 0.1,
        "domainColor": TEXT_COLOR,
        "domainOpacity": 0.35,
        "tickColor": TEXT_COLOR,
        "tickOpacity": 0.35,
    },
    "axisY": {"domain": False, "ticks": False, "labelPadding": 8},
    "legend": {"labelColor": TEXT_COLOR, "labelFontSize": 12, "rowPadding": 6, "columnPadding": 16, "offset": 18},
}


MAX_FULL_ROWS, MAX_POINTS = 50, 200
"""Curves of up to `MAX_FULL_ROWS` rows are drawn in full; longer ones have at most `MAX_POINTS` points, each a mean."""


@dataclass(frozen=True)
class Chart:
    """A chart with its title and anchor on the page, caption and metrics."""

    title: str
    anchor: str
    spec: dict[str, Any]
    caption: str
    metrics: tuple[Metric, ...]


def curves_chart(setups: Sequence[Setup], criterion: Criterion) -> Chart:
    """A chart of every metric by task, epoch or step, at the best setting of each method."""
    x_column = setups[0].columns.x_column
    x = x_column.capitalize()
    metrics = _metrics(setups)
    best = [best_runs(setup.table, criterion=criterion) for setup in setups]
    named = [part.with_columns(pl.lit(setup.name).alias(SETUP)) for setup, part in zip(setups, best, strict=True)]
    kappas = kappas_of(pl.concat(named, how="diagonal_relaxed"), SETUP)
    methods = all_methods(setups)
    labels = {method: _with_kappas(style_of(method).label, kappas.get(method, {})) for method in methods}
    wide = [_wide(setup, part, x, metrics, labels) for setup, part in zip(setups, best, strict=True)]
    data = pl.concat(wide, how="diagonal_relaxed")
    spec = line_chart(data, x, [setup.label for setup in setups], metrics, methods, labels=labels)
    seeds = [number for part in best for number in part.group_by("method").agg(pl.col("seed").n_unique())["seed"]]
    several = {method: texts for method, texts in kappas.items() if len(texts) > 1}
    notes = [f"{style_of(method).label}: {by_panel(several[method])}." for method in methods if method in several]
    number = seed_count_text(seeds)
    averaged = "One seed." if number == ONE_SEED else f"Mean of {number}."
    caption = (averaged, *notes, *_averaging_notes(setups, x_column))
    return Chart("Curves", _anchor("curves", setups[0]), spec, " ".join(caption), tuple(metrics))


def _with_kappas(label: str, kappas: Iterable[str]) -> str:
    """The label of a method with its kappa, or with its kappas in different setups."""
    return ", ".join(filter(None, (label, " or ".join(kappas).replace(" or κ = ", " or "))))


def _anchor(*names: str | Setup) -> str:
    """An anchor of the page made of names and of the name of an experiment."""
    words = [name.columns.schema.experiment if isinstance(name, Setup) else name for name in names]
    return re.sub(r"\W+", "-", "-".join(words))


def sensitivity_charts(setups: Sequence[Setup], criterion: Criterion) -> list[Chart]:
    """A chart for each setting with several values: the best score over the other settings, by its value."""
    return [_sensitivity(setups, parameter, criterion) for parameter in _varied(setups)]


def _sensitivity(setups: Sequence[Setup], parameter: str, criterion: Criterion) -> Chart:
    varied_setups = [setup for setup in setups if parameter in _varied([setup])]
    x = parameter.rpartition(".")[2]
    found = [part for setup in varied_setups for part in _scores(setup, parameter, x, criterion)]
    data = pl.concat(found).sort(x, maintain_order=True)
    data = data.with_columns(pl.col(x).map_elements(value_text, return_dtype=pl.String))
    score = score_metric(setups[0])
    score = replace(score, label=f"{score.label}, {CRITERIA[criterion]}")
    drawn = set(data[LABEL])
    methods = [method for method in all_methods(varied_setups) if style_of(method).label in drawn]
    spec = line_chart(data, x, [setup.label for setup in varied_setups], [score], methods, height=300)
    caption = ": ".join(filter(None, (x, _help(setups[0], parameter))))
    return Chart(f"Sensitivity to {x}", _anchor("sensitivity", setups[0], x), spec, caption, (score,))


def _help(setup: Setup, parameter: str) -> str:
    return setup.columns.schema.fields.get(parameter, "")


def _metrics(setups: Sequence[Setup]) -> list[Metric]:
    """The metrics with values in any setup, the score first."""
    schema = setups[0].columns.schema
    tables = [setup.table for setup in setups]
    measured = tables[0].columns[tables[0].columns.index(LAST[-1]) + 1 :]
    measured_names = [name for name in measured if any(table[name].is_not_null().any() for table in tables)]
    others = [name for name in measured_names if name != schema.score and schema.metric(name).help]
    return [schema.metric(name) for name in (schema.score, *others)]


def _rows_per_point(setup: Setup) -> int:
    rows = len(setup.table) // setup.table["identity"].n_unique()
    return 1 if rows <= MAX_FULL_ROWS else max(2, math.ceil(rows / MAX_POINTS))


def _averaging_notes(setups: Sequence[Setup], x_column: str) -> Iterator[str]:
    by_every: dict[int, list[str]] = {}
    for setup in setups:
        by_every.setdefault(_rows_per_point(setup), []).append(setup.name)
    for every, names in by_every.items():
        if every > 1:
            yield f"A point is the mean of {every} {x_column}s in {list_text(names)}."


def _wide(
    setup: Setup, best: pl.DataFrame, x: str, metrics: Sequence[Metric], labels: Mapping[str, str]
) -> pl.DataFrame:
    """The curves of all metrics in the format of `line_chart`."""
    key = ["method", setup.columns.x_column]
    drawn = [
        curves(best, metric.name, every=_rows_per_point(setup)).select(
            *key,
            pl.col("mean").alias(metric.name),
            pl.col("low").alias(f"{metric.name} low"),
            pl.col("high").alias(f"{metric.name} high"),
        )
        for metric in metrics
    ]
    table = reduce(lambda left, right: left.join(right, on=key, how="left", maintain_order="left"), drawn)
    return table.select(
        pl.lit(setup.label).alias(SETUP),
        pl.col("method").replace_strict(labels, return_dtype=pl.String).alias(LABEL),
        pl.col(setup.columns.x_column).alias(x),
        pl.exclude(key),
    )


def _label() -> pl.Expr:
    return pl.col("method").map_elements(lambda name: style_of(name).label, return_dtype=pl.String).alias(LABEL)


def _varied(setups: Sequence[Setup]) -> list[str]:
    """Settings of which some method has several values, in the order of the experiment."""
    names: dict[str, None] = {}
    for setup in setups:
        for method in setup.methods:
            rows = setup.table.filter(pl.col("method") == method)
            displayed = display_setting(rows.row(0, named=True), setup.table)
            names |= dict.fromkeys(name for name in displayed if name != "rules" and rows[name].n_unique() > 1)
    order = setups[0].columns.schema.settings
    return sorted(names, key=lambda name: order.index(name.partition(".")[0]))


def _scores(setup: Setup, parameter: str, x: str, criterion: Criterion) -> Iterator[pl.DataFrame]:
    """The scores of each method with several values, in the format of `line_chart`."""
    score = setup.columns.schema.score
    found = sensitivity(setup.table, parameter, criterion=criterion)
    for _, rows in found.group_by("method", maintain_order=True):
        if len(rows) > 1:
            displayed = (display_setting(row, setup.table) for row in rows.iter_rows(named=True))
            notes = [settings_text({**setting, parameter: None}) for setting in displayed]
            error = pl.col("error").fill_null(0.0)
            yield rows.select(
                pl.lit(setup.label).alias(SETUP),
                _label(),
                pl.col(parameter).alias(x),
                pl.col("score").alias(score),
                (pl.col("score") - error).alias(f"{score} low"),
                (pl.col("score") + error).alias(f"{score} high"),
                pl.Series(NOTE, notes, dtype=pl.String),
            )
