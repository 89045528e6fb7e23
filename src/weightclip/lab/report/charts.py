"""Charts of the report: lines by method as Vega-Lite, with drop-downs for problem and metric and a legend to click."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt
import polars as pl
import vl_convert

from weightclip.lab.plotting.style import COLOURS, style_of
from weightclip.lab.records.schema import FRACTION, Metric

SETUP, LABEL, NOTE = "setup", "label", "note"
"""Columns of a chart's data: which setup, which method by its label, and what a tooltip adds to the value."""

DIGITS = 5
FEW = 25
"""So many points of a line are marked one by one."""

INK = "currentColor"
"""The colour of the page's text, so that charts follow it from light to dark."""

_DASHES = {"-": [1, 0], "--": [6, 4], "-.": [8, 3, 2, 3]}


@cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed, for one script element; `vegaEmbed` is global after it."""
    major, minor, *_ = alt.SCHEMA_VERSION.removeprefix("v").split(".")
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", f"{major}.{minor}"))


def colour_of(method: str) -> str:
    """A method's colour on the page: what is black in print has the colour of the text."""
    colour = style_of(method).colour
    return INK if colour == COLOURS[""] else colour


def dashes_of(method: str) -> list[int]:
    """A method's line as lengths of dashes and gaps."""
    return _DASHES[style_of(method).line]


def line_chart(
    data: pl.DataFrame,
    x: str,
    setups: Sequence[str],
    metrics: Sequence[Metric],
    methods: Sequence[str],
    height: int = 380,
) -> dict[str, Any]:
    """A Vega-Lite chart of one line for each method, with a band around it.

    Hovering shows the values of all methods at a place; a click in the legend hides or shows a method. Where there is
    one choice, there is no drop-down.

    Args:
        data: columns `SETUP`, `LABEL`, the one named by `x`, and for each metric NAME: `NAME`, `NAME low`, `NAME high`;
            `NOTE` if there is anything to add. Values of `x` that are text stay in the order in which they come.
        x: the name of the horizontal axis, and its column.
        setups: values of `SETUP` to choose from.
        metrics: to choose from.
        methods: in the legend's order.
        height: of the plot, in pixels.
    """
    shown = alt.selection_point(
        name="shown",
        fields=[LABEL],
        bind="legend",
        toggle="true",
        clear=False,
        empty=False,
        value=[{LABEL: label} for label in _labels(methods)],
    )
    base = (
        alt.Chart(_inline(data))
        .transform_filter(f"datum.{SETUP} === {SETUP}")
        .transform_filter(shown)
        .transform_calculate(mean="datum[metric]", low="datum[metric + ' low']", high="datum[metric + ' high']")
    )
    chart = (
        alt.layer(*_layers(base, data, x, methods))
        .add_params(
            shown,
            _choice(SETUP, "Problem", setups, setups),
            _choice("metric", "Metric", [metric.name for metric in metrics], [metric.label for metric in metrics]),
            alt.param(name="labels", value={metric.name: _axis_label(metric) for metric in metrics}),
            alt.param(name="fraction", value={metric.name: metric.unit == FRACTION for metric in metrics}),
        )
        .properties(
            description=f"{', '.join(metric.label for metric in metrics)} by {x}, a line for each method",
            width="container",
            height=height,
            # What is chosen in a drop-down is named there.
            title=alt.TitleParams(text=alt.ExprRef("labels[metric]"), subtitle=setups[0] if len(setups) == 1 else ""),
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
    )
    spec: dict[str, Any] = chart.to_dict() | {"config": _LOOK}
    return spec


def _layers(base: alt.Chart, data: pl.DataFrame, x: str, methods: Sequence[str]) -> Iterator[alt.Chart]:
    """Bands, lines, and, next to the pointer, dots and a ruler, whose tooltip has the values of all lines."""
    along, colour = _horizontal(data, x), _colour(methods)
    hover = alt.selection_point(
        name="hover", fields=[x], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    yield base.mark_area(fillOpacity=0.16, aria=False).encode(along, _vertical("low"), alt.Y2("high"), colour)
    points = {"size": 30} if data[x].n_unique() <= FEW else False
    yield base.mark_line(strokeWidth=1.75, point=points).encode(along, _vertical("mean"), colour, _dash(methods))
    yield base.mark_circle(size=50, aria=False).encode(along, _vertical("mean"), colour, opacity=_only(hover, 1))
    yield (
        base.transform_filter("isValid(datum.mean)")
        .transform_calculate(text=_value_text(NOTE in data.columns))
        .transform_pivot(LABEL, groupby=[x], value="text", op="max")
        .mark_rule(color=INK, tooltip=alt.TooltipContent(content="data"), aria=False)
        .encode(along, opacity=_only(hover, 0.4))
        .add_params(hover)
    )


def _only(hover: alt.Parameter, opacity: float) -> Any:
    return alt.when(hover).then(alt.value(opacity)).otherwise(alt.value(0))


def _inline(data: pl.DataFrame) -> alt.InlineData:
    """As CSV, which is a third of the same JSON."""
    numbers = pl.selectors.float()
    rounded = data.with_columns(pl.when(numbers.is_finite()).then(numbers.round_sig_figs(DIGITS)).name.keep())
    kinds = {name: "number" if kind.is_numeric() else "string" for name, kind in data.schema.items()}
    return alt.InlineData(values=rounded.write_csv(), format=alt.CsvDataFormat(type="csv", parse=kinds))


def _horizontal(data: pl.DataFrame, x: str) -> alt.X:
    if data.schema[x].is_numeric():
        whole = "datum.value % 1 ? '' : datum.label"  # there is nothing between two tasks
        many = alt.ExprRef("max(2, width / 90)")
        axis = alt.Axis(grid=False, tickMinStep=1, tickCount=many, format="~s", labelExpr=whole)
        return alt.X(x, type="quantitative", title=x, scale=alt.Scale(nice=False), axis=axis)
    scale = alt.Scale(domain=data[x].unique(maintain_order=True).to_list())
    return alt.X(x, type="ordinal", title=x, sort=None, scale=scale, axis=alt.Axis(grid=False, labelAngle=0))


def _vertical(field: str) -> alt.Y:
    axis = alt.Axis(labelExpr="fraction[metric] ? format(datum.value, '~%') : datum.label", tickCount=6, minExtent=44)
    return alt.Y(field, type="quantitative", title=None, scale=alt.Scale(zero=False), axis=axis)


def _value_text(notes: bool) -> str:
    """An expression: `78.9% ± 0.2%`, and what there is to add."""
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


def _legend() -> alt.Legend:
    """The same for colour and dashes, which makes them one legend.

    Its columns follow the container, because `width` still shrinks while the chart is laid out; `width` is in the
    expression so that they are counted anew when the window changes.
    """
    return alt.Legend(
        title=None,
        orient="bottom",
        columns=alt.ExprRef("max(1, floor(containerSize()[0] / 150)) + 0 * width"),
        symbolType="stroke",
        symbolSize=500,
        symbolStrokeWidth=2,
        labelLimit=220,
    )


def _colour(methods: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=_labels(methods), range=[colour_of(method) for method in methods])
    return alt.Color(LABEL, type="nominal", scale=scale, legend=_legend())


def _dash(methods: Sequence[str]) -> alt.StrokeDash:
    scale = alt.Scale(domain=_labels(methods), range=[dashes_of(method) for method in methods])
    return alt.StrokeDash(LABEL, type="nominal", scale=scale, legend=_legend())


def _labels(methods: Sequence[str]) -> list[str]:
    return [style_of(method).label for method in methods]


_LOOK: Mapping[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "line": {"invalid": "break-paths-filter-domains"},
    "area": {"invalid": "break-paths-filter-domains"},
    "title": {
        "color": INK,
        "anchor": "start",
        "frame": "group",
        "fontSize": 14,
        "fontWeight": 600,
        "offset": 14,
        "subtitleColor": INK,
        "subtitleFontSize": 12,
        "subtitlePadding": 5,
    },
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "labelOpacity": 0.75,
        "titleOpacity": 0.75,
        "gridColor": INK,
        "gridOpacity": 0.1,
        "domainColor": INK,
        "domainOpacity": 0.35,
        "tickColor": INK,
        "tickOpacity": 0.35,
    },
    "axisY": {"domain": False, "ticks": False, "labelPadding": 8},
    "legend": {"labelColor": INK, "labelFontSize": 12, "rowPadding": 6, "columnPadding": 16, "offset": 18},
}
