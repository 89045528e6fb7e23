from pathlib import Path
from typing import Any

import pytest

from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.sweep.grid import best, lacking, read_presets, search

PROBLEM = "input-permuted-mnist"
METHODS = EXPERIMENT.schema.methods


def count(settings: list[dict[str, Any]]) -> dict[str, int]:
    return {method: sum(one["method"] == method for one in settings) for method in METHODS}


def test_table_1_is_the_product_over_the_settings_of_a_method() -> None:
    grid = read_presets("paper", EXPERIMENT)
    assert count(search(EXPERIMENT, PROBLEM, METHODS, grid, {})) == {
        "sgd": 4,
        "adam": 4,
        "sgd+l2init": 4 * 5,
        "adam+l2init": 4 * 5,
        "sgd+sp": 4 * 5 * 5,
        "adam+sp": 4 * 5 * 5,
        "sgd+wc": 4 * 5,
        "adam+wc": 4 * 5,
        "madam": 4 * 5,
    }


def test_fixed_settings_are_not_searched() -> None:
    grid = read_presets("paper", EXPERIMENT)
    found = search(EXPERIMENT, PROBLEM, ["sgd+wc"], grid, {"lr": 0.5, "steps": 100})
    assert [one["kappa"] for one in found] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert all((one["lr"], one["steps"]) == (0.5, 100) for one in found)


def test_table_2_has_one_setting_for_each_method() -> None:
    presets = read_presets("paper", EXPERIMENT)
    found = best(EXPERIMENT, PROBLEM, METHODS, presets, {})
    assert [one["method"] for one in found] == list(METHODS)
    assert {"method": "adam+wc", "lr": 0.0001, "kappa": 1.0} in found
    assert {"method": "sgd+sp", "lr": 0.001, "sigma": 0.1, "decay": 0.01} in found


def test_a_method_missing_from_the_table_uses_the_defaults() -> None:
    found = best(EXPERIMENT, PROBLEM, ["adam+l2init+wc"], read_presets("paper", EXPERIMENT), {})
    assert found == [{"method": "adam+l2init+wc"}]
    assert EXPERIMENT.configure(PROBLEM, found[0]).kappa == 1.0


def test_a_user_defined_grid_can_vary_any_setting(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("""
[grid]
seeds = 3
lr = [0.1, 0.01]
hidden = [[20], [10, 10]]
[grid.settings]
beta1 = [0.5, 0.9]
[grid.methods."adam+wc"]
lr = [1.0]
""")
    grid = read_presets(str(path), EXPERIMENT)
    found = search(EXPERIMENT, PROBLEM, ["sgd", "adam+wc"], grid, {})
    assert len(found) == 2 * 2 + 1 * 2 * 2  # sgd has no beta1
    config = EXPERIMENT.configure(PROBLEM, found[-1])
    assert (config.lr, config.hidden, config.settings["beta1"]) == (1.0, (10, 10), 0.9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nlearning_rate = [1]", "grid: got 'learning_rate', expected one of"),
        ("[grid]\nlr = 0.1", "grid: got lr = 0.1, expected a list"),
        ("[grid]\nlr = []", r"grid: got lr = \[\], expected a list"),
        ("[grid.methods.sdg]\nlr = [1]", "method: got 'sdg'.*did you mean 'sgd'"),
        ("[grid.methods.sgd]\nkapa = [1]", "grid: got 'kapa'.*did you mean 'kappa'"),
        ("", r"^\[grid\] is missing"),
        ("grid = 3", "grid: got 3, expected a table"),
        ("[grid]\nmethods = 3", "grid.methods: got 3, expected a table"),
        ("[grid.methods]\nsgd = 3", "grid.methods.sgd: got 3, expected a table"),
        ("[grid]", "grid: got no settings, expected lists"),
        ("[grid]\nseeds = 3\n[grid.methods.sgd]", "grid: got no settings, expected lists"),
    ],
)
def test_errors_in_a_grid_are_reported(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        search(EXPERIMENT, PROBLEM, ["sgd"], read_presets(str(path), EXPERIMENT), {})


def test_a_file_that_is_missing_or_not_toml_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--grid: got 'papr', .* or a TOML file, for example with \[grid\] lr = "):
        read_presets("papr", EXPERIMENT)
    with pytest.raises(ValueError, match=r"^--best: got 'nope.toml', .* TOML file, for example with \[best\."):
        read_presets("nope.toml", EXPERIMENT, option="--best")
    with pytest.raises(
        ValueError, match=rf"^--best: got '{PROBLEM}', .* it is a problem, which must precede the options$"
    ):
        read_presets(PROBLEM, EXPERIMENT, option="--best")
    path = tmp_path / "grid.toml"
    path.write_text("[grid\n")
    with pytest.raises(ValueError, match="is not TOML"):
        read_presets(str(path), EXPERIMENT)


def test_an_unknown_setting_in_table_2_is_reported() -> None:
    presets = {"best": {PROBLEM: {"sgd": {"kappa": 1.0}}}}
    with pytest.raises(ValueError, match=r"best\.input-permuted-mnist\.sgd: got 'kappa'"):
        best(EXPERIMENT, PROBLEM, ["sgd"], presets, {})


@pytest.mark.parametrize(
    ("presets", "message"),
    [
        ({"best": 3}, "best: got 3, expected a table"),
        ({"best": {PROBLEM: 3}}, "best.input-permuted-mnist: got 3, expected a table"),
        ({"best": {PROBLEM: {"sgd": 3}}}, r"best.input-permuted-mnist.sgd: got 3, expected a table"),
        ({"best": {PROBLEM: {"sdg": {}}}}, "method: got 'sdg'.*did you mean 'sgd'"),
    ],
)
def test_errors_in_table_2_are_reported(presets: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best(EXPERIMENT, PROBLEM, ["sgd"], presets, {})


def test_methods_missing_from_table_2_are_named_and_an_empty_table_is_rejected() -> None:
    presets = {"best": {PROBLEM: {"sgd": {}}}}
    assert lacking(PROBLEM, ["sgd", "adam", "madam"], presets) == ["adam", "madam"]
    for wrong, tables in (({"grid": {}}, r"\[grid\]"), ({"best": {"other": {}}}, r"\[best.other\]"), ({}, "no table")):
        with pytest.raises(ValueError, match=rf"^got {tables}, expected \[best.{PROBLEM}\]$"):
            lacking(PROBLEM, ["sgd"], wrong)
