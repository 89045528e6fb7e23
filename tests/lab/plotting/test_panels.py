from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes

from weightclip.lab.experiments.streaming.metrics import METRICS
from weightclip.lab.plotting.panels import (
    add_legend,
    draw_curve,
    draw_panel,
    needs_log_scale,
    panels,
    set_count_axis,
    wrapped,
)
from weightclip.lab.plotting.style import style_of
from weightclip.lab.records.schema import Metric


def curves(**means: list[float]) -> pl.DataFrame:
    """Create curves from the means of each method at 1, 2, 3, ..."""
    return pl.concat(
        [
            pl.DataFrame({"method": method, "epoch": range(1, len(mean) + 1), "mean": mean, "low": mean, "high": mean})
            for method, mean in means.items()
        ]
    )


def draw_axes(shown: pl.DataFrame, metric: Metric) -> Axes:
    with panels(1, 1, 3, 2) as (picture, ((axes,),)):
        draw_panel(axes, shown, "epoch", metric)
        picture.canvas.draw()
    return axes


@pytest.mark.parametrize(
    ("means", "hiding"),
    [
        ({"sgd": [1.0, 2.0], "adam": [2.0, 3.0]}, False),
        ({"sgd": [1.0, 2.0], "adam": [20.0, 30.0]}, True),
        ({"sgd": [100.0, 1.0, 1.0], "adam": [2.0, 2.0, 2.0]}, False),  # a steep first task
        ({"sgd": [-1.0, -1.0], "adam": [20.0, 30.0]}, False),  # no logarithmic axis
        ({"sgd": [0.0, 1.0], "adam": [20.0, 30.0]}, False),
        ({"sgd": [float("nan")], "adam": [float("inf")]}, False),
        ({"sgd": [1.0, float("inf")], "adam": [2.0, 2.0]}, False),
    ],
)
def test_a_method_hides_another_if_its_typical_values_are_many_times_larger(means: dict, hiding: bool) -> None:
    assert needs_log_scale(curves(**means)) == hiding


def test_fractions_are_percentages_and_never_on_a_logarithmic_axis() -> None:
    axes = draw_axes(curves(sgd=[0.01, 0.02], adam=[0.5, 0.9]), METRICS["accuracy"])
    assert axes.get_yscale() == "linear"
    assert all(label.get_text().endswith("%") for label in axes.get_yticklabels())


def test_a_short_logarithmic_axis_has_plain_tick_labels() -> None:
    axes = draw_axes(curves(sgd=[0.04, 0.05], adam=[0.5, 0.6]), METRICS["plasticity"])
    low, high = axes.get_ylim()
    seen = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert seen == ["0.05", "0.1", "0.2", "0.5"]


def test_a_curve_of_a_single_point_is_visible() -> None:
    (line,) = draw_axes(curves(sgd=[1.0]), METRICS["loss"]).get_lines()
    assert line.get_marker() == "o"
    (line,) = draw_axes(curves(sgd=[1.0, 2.0]), METRICS["loss"]).get_lines()
    assert line.get_marker() == ""


@pytest.mark.parametrize("last", [1, 2, 30])
def test_count_axes_have_integer_ticks(last: int) -> None:
    with panels(1, 1, 3, 2) as (picture, ((axes,),)):
        draw_panel(axes, curves(sgd=[1.0] * last), "epoch", METRICS["loss"])
        set_count_axis(axes, "Epoch")
        picture.canvas.draw()
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert len(shown) >= 2
    assert all(tick == int(tick) for tick in shown)
    assert low <= 1 <= last <= high


@pytest.mark.parametrize("width", [3.0, 6.75])
def test_the_legend_is_no_wider_than_the_picture(width: float) -> None:
    styles = [
        replace(style_of(method), label=f"{method}, in two stages") for method in ("sgd", "adam", "sgd+wc", "madam")
    ]
    with panels(1, 1, width, 2) as (picture, ((axes,),)):
        for style in styles:
            draw_curve(axes, curves(sgd=[1.0, 2.0]), "epoch", style)
        add_legend(picture, styles)
        picture.canvas.draw()
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == [style.label for style in styles]
    extent = legend.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= picture.bbox.x1


def test_a_caption_breaks_after_punctuation_if_it_can() -> None:
    text = "mean of 3 seeds, standard error shaded; a point is the mean of two tasks"
    assert wrapped(text, 2.8).splitlines() == [
        "mean of 3 seeds, standard error shaded;",
        "a point is the mean of two tasks",
    ]
    assert wrapped(text, 10) == text
    assert max(map(len, wrapped("no punctuation " * 10, 2).splitlines())) <= 32


def test_a_long_caption_makes_the_picture_taller_and_keeps_the_panel_height() -> None:
    heights = []
    for lines in (1, 6):
        with panels(1, 1, 4, 2) as (picture, ((axes,),)):
            draw_panel(axes, curves(sgd=[1.0, 2.0]), "epoch", METRICS["loss"])
            add_legend(picture, [style_of("sgd")], "\n".join(["a line"] * lines))
            picture.canvas.draw()
        heights.append(axes.get_window_extent().height)
    assert heights[0] == pytest.approx(heights[1], rel=0.05)


def test_error_bars_span_low_to_high_where_they_differ() -> None:
    data = curves(sgd=[1.0, 2.0]).with_columns(low=pl.Series([0.5, 2.0]), high=pl.Series([1.5, 2.0]))
    with panels(1, 1, 3, 2) as (_, ((axes,),)):
        draw_panel(axes, data, "epoch", METRICS["loss"], bars=True)
    (bars,) = axes.collections
    first, second = bars.get_segments()
    assert first.tolist() == [[1.0, 0.5], [1.0, 1.5]]
    assert len(second) == 0 or np.isnan(second).any()


def test_the_legend_lists_each_method_once_in_the_given_order() -> None:
    with panels(1, 2, 6, 2) as (picture, ((left, right),)):
        draw_panel(left, curves(sgd=[1.0, 2.0], adam=[1.0, 2.0]), "epoch", METRICS["loss"])
        draw_panel(right, curves(adam=[1.0, 2.0], madam=[np.nan, 2.0]), "epoch", METRICS["loss"])
        add_legend(picture, map(style_of, ["sgd", "madam", "adam"]), "a title")
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["SGD", "Madam", "Adam"]
    assert legend.get_title().get_text() == "a title"
