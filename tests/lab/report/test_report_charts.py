import csv
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from report_store import EMNIST, MNIST, write_run, write_store

from weightclip.lab.experiments.streaming.metrics import METRICS
from weightclip.lab.report.charts import line_chart
from weightclip.lab.report.content import gather

DATA = {"setup": ["a", "a"], "label": ["SGD", "SGD"], "Task": [1, 2]}


def chart(
    values: list[float | None], setups: tuple[str, ...] = ("a",), metrics: tuple[str, ...] = ("accuracy",)
) -> Any:
    columns = {f"{name}{end}": values for name in metrics for end in ("", " low", " high")}
    table = pl.DataFrame({**DATA, **columns}, schema_overrides=dict.fromkeys(columns, pl.Float64))
    return line_chart(table, "Task", setups, [METRICS[name] for name in metrics], ["sgd"])


def rows(spec: Any) -> list[dict[str, str]]:
    """Return the data of a chart."""
    (text,) = spec["datasets"].values()
    return list(csv.DictReader(text.splitlines()))


def choices(spec: Any) -> dict[str, list[str]]:
    bound = {one["name"]: one["bind"] for one in spec["params"] if isinstance(one.get("bind"), dict)}
    return {name: bind["options"] for name, bind in bound.items()}


def test_numbers_have_five_digits() -> None:
    assert [row["accuracy"] for row in rows(chart([0.123456789, 1234567.0]))] == ["0.12346", "1234600.0"]


def test_nan_leaves_a_gap() -> None:
    assert [row["accuracy"] for row in rows(chart([math.nan, math.inf]))] == ["", ""]


def test_a_single_choice_has_no_drop_down() -> None:
    assert choices(chart([0.1, 0.2])) == {}
    several = choices(chart([0.1, 0.2], setups=("a", "b"), metrics=("accuracy", "loss")))
    assert several == {"setup": ["a", "b"], "metric": ["accuracy", "loss"]}


def test_a_setup_without_a_drop_down_is_named_in_the_title() -> None:
    assert chart([0.1, 0.2])["title"]["subtitle"] == "a"
    assert chart([0.1, 0.2], setups=("a", "b"))["title"]["subtitle"] == ""


def test_all_methods_are_shown_initially() -> None:
    (shown,) = (one for one in chart([0.1, 0.2])["params"] if one["name"] == "shown")
    assert shown["value"] == [{"label": "SGD"}]


def test_black_lines_use_the_text_color() -> None:
    line = chart([0.1, 0.2])["layer"][1]["encoding"]
    assert line["color"]["scale"] == {"domain": ["SGD"], "range": ["currentColor"]}


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return gather(write_store(tmp_path_factory.mktemp("store"))).parts[0]


def test_curves_can_be_selected_by_setup_and_metric(part: Any) -> None:
    assert choices(part.curves.spec) == {
        "setup": [MNIST, f"{EMNIST} (stand-in data)"],
        "metric": ["accuracy", "loss"],  # `saturated` has no values
    }


def test_curves_are_averaged_over_seeds_and_long_ones_over_several_tasks(part: Any) -> None:
    drawn = [row for row in rows(part.curves.spec) if row["label"] == "SGD"]
    mnist = [row for row in drawn if row["setup"] == MNIST]
    assert [row["Task"] for row in mnist] == [str(task) for task in range(2, 61, 2)]
    assert [float(mnist[0][f"accuracy{end}"]) for end in ("", " low", " high")] == [0.7995, 0.799, 0.8]
    assert len(drawn) - len(mnist) == 8
    assert part.curves.caption == f"Mean of 2 seeds. A point is the mean of 2 tasks in {MNIST}."


def test_the_legend_of_curves_shows_kappa(part: Any) -> None:
    labels = part.curves.spec["layer"][1]["encoding"]["color"]["scale"]["domain"]
    assert labels == ["SGD", "Adam", "SGD + WC, κ = 2", "Adam + WC, κ = 1"]
    assert {row["label"] for row in rows(part.curves.spec)} == {*labels}


def test_kappas_that_differ_between_setups_are_in_the_legend_and_the_caption(tmp_path: Path) -> None:
    write_run(tmp_path, "adam+wc", kappa=1.0)
    write_run(tmp_path, "adam+wc", kappa=3.0, problem=EMNIST)
    figure = gather(tmp_path).parts[0].curves
    assert figure.spec["layer"][1]["encoding"]["color"]["scale"]["domain"] == ["Adam + WC, κ = 1 or 3"]
    assert figure.caption == f"One seed. Adam + WC: κ = 1 ({MNIST}), κ = 3 ({EMNIST})."


def test_sensitivity_is_drawn_for_each_setting_that_varies(part: Any) -> None:
    lr, kappa = part.sensitivity
    assert (lr.caption, kappa.caption.partition(":")[0]) == ("lr: step size", "kappa")
    assert [(row["kappa"], row["label"], row["accuracy"], row["note"]) for row in rows(kappa.spec)] == [
        ("1", "SGD + WC", "0.2905", "lr 0.01"),
        ("2", "SGD + WC", "0.3905", "lr 0.01"),
        ("3", "SGD + WC", "0.2905", "lr 0.01"),
    ]


def test_settings_without_a_field_are_drawn(tmp_path: Path) -> None:
    for beta in (0.9, 0.5, math.inf):
        write_run(tmp_path, "mine", settings={"beta": beta})
    (figure,) = gather(tmp_path).parts[0].sensitivity
    assert [row["beta"] for row in rows(figure.spec)] == ["0.5", "0.9", "inf"]
    assert figure.caption == "beta"
