import math
from pathlib import Path

import pytest

from weightclip.lab.experiments.streaming.config import PAPER_METHODS, Config, presets, resolve
from weightclip.lab.experiments.streaming.kernel import rules_text
from weightclip.lab.experiments.streaming.rules import Rule, load_rules, parse_rules, rule_components
from weightclip.lab.methods import choose_settings, default_settings

TABLE_2 = {
    "input-permuted-mnist": {
        "sgd": {"lr": 0.001},
        "adam": {"lr": 0.0001},
        "sgd+l2init": {"lr": 0.001, "decay": 0.01},
        "adam+l2init": {"lr": 0.0001, "decay": 0.001},
        "sgd+sp": {"lr": 0.001, "sigma": 0.1, "decay": 0.01},
        "adam+sp": {"lr": 0.0001, "sigma": 0.1, "decay": 0.001},
        "sgd+wc": {"lr": 0.001, "kappa": 2},
        "adam+wc": {"lr": 0.0001, "kappa": 1},
        "madam": {"lr": 0.01, "kappa": 4},
    },
    "label-permuted-emnist": {
        "sgd": {"lr": 0.01},
        "adam": {"lr": 0.0001},
        "sgd+l2init": {"lr": 0.01, "decay": 0.001},
        "adam+l2init": {"lr": 0.001, "decay": 0.01},
        "sgd+sp": {"lr": 0.01, "sigma": 0.01, "decay": 0.001},
        "adam+sp": {"lr": 0.001, "sigma": 0.001, "decay": 0.01},
        "sgd+wc": {"lr": 0.01, "kappa": 2},
        "adam+wc": {"lr": 0.0001, "kappa": 3},
        "madam": {"lr": 0.01, "kappa": 5},
    },
    "label-permuted-mini-imagenet": {
        "sgd": {"lr": 0.01},
        "adam": {"lr": 0.0001},
        "sgd+l2init": {"lr": 0.01, "decay": 0.01},
        "adam+l2init": {"lr": 0.001, "decay": 0.01},
        "sgd+sp": {"lr": 0.01, "sigma": 0.01, "decay": 0.01},
        "adam+sp": {"lr": 0.001, "sigma": 0.0, "decay": 0.01},
        "sgd+wc": {"lr": 0.01, "kappa": 1},
        "adam+wc": {"lr": 0.0001, "kappa": 3},
        "madam": {"lr": 0.01, "kappa": 5},
    },
}


@pytest.mark.parametrize("problem", TABLE_2)
@pytest.mark.parametrize("name", PAPER_METHODS)
def test_the_defaults_match_table_2(problem: str, name: str) -> None:
    settings = choose_settings(parse_rules(name), presets()["best"][problem], {})
    assert {key: settings[key] for key in TABLE_2[problem][name]} == TABLE_2[problem][name]


def test_the_optimizers_have_pytorchs_defaults() -> None:
    settings = choose_settings(parse_rules("adam"), presets()["best"]["input-permuted-mnist"], {})
    assert settings == {"lr": 0.0001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def test_table_1_has_the_grid_of_each_setting() -> None:
    grid = presets()["grid"]
    assert set(grid) == {"seeds", "lr", "sigma", "decay", "kappa"}
    assert grid["kappa"] == [1, 2, 3, 4, 5]


def test_a_combination_uses_the_settings_of_its_parts_and_the_smallest_step_size() -> None:
    settings = default_settings(parse_rules("adam+l2init+wc"), presets()["best"]["label-permuted-emnist"])
    assert (settings["lr"], settings["decay"], settings["kappa"]) == (0.0001, 0.01, 3)


def test_l2_uses_the_decay_of_l2init() -> None:
    assert default_settings(parse_rules("sgd+l2"), presets()["best"]["input-permuted-mnist"])["decay"] == 0.01


def test_clipping_acts_last_regardless_of_its_position() -> None:
    assert [rule.name for rule in parse_rules("adam+wc+sp").regularizers] == ["sp", "wc"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adma", "got 'adma'.*did you mean 'adam'"),
        ("adam+l2int", "got 'l2int'.*did you mean 'l2init'"),
        ("wc", "got 'wc'"),
        ("adam+", "got ''"),
        ("adam+wc+wc", "each regularizer once"),
        ("madam+wc", "one part with a kappa, not madam and wc"),
        ("adam+l2+sp", "one part with a decay, not l2 and sp"),
    ],
)
def test_an_invalid_method_raises_an_error(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"method: .*{message}"):
        parse_rules(name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -0.1}, "lr: got -0.1, expected a number of at least 0"),
        ({"kappa": 0.0}, "kappa: got 0.0, expected a positive number"),
        ({"kappa": float("nan")}, "kappa: got nan"),
        ({"sigma": 0.1}, "sigma: got 0.1, but adam.wc has no such setting; it has lr, "),
        ({"lr": None}, "lr: .*specify one"),
    ],
)
def test_settings_out_of_range_raise_an_error(settings: dict[str, float | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_settings(parse_rules("adam+wc"), {}, {"lr": 0.1, "kappa": 1.0, **settings})


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [
        ("adam", "beta1", 1.0),
        ("adam", "beta2", -0.1),
        ("adam", "eps", -1e-8),
        ("adam", "eps", math.nan),
        ("madam", "beta", 1.5),
        ("madam", "max_update", 0.0),
        ("madam", "kappa", -1.0),
        ("sgd+sp", "sigma", -0.1),
        ("sgd", "lr", -0.1),
        ("sgd+l2", "decay", math.inf),
    ],
)
def test_each_setting_has_a_range(method: str, setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{setting}: got {value}"):
        choose_settings(parse_rules(method), presets()["best"]["input-permuted-mnist"], {setting: value})


def pull(w: float, w0: float) -> float:
    return w + 0.1 * w0


def test_parts_that_record_the_initial_weights_at_different_times_raise_an_error() -> None:
    own = {"pull": Rule("pull", after=pull)}
    assert parse_rules("sgd+pull", rule_components(external=own)).regularizers == (own["pull"],)
    with pytest.raises(ValueError, match="expected parts that take w0 at the same time"):
        parse_rules("sgd+l2init+pull", rule_components(external=own))


def test_an_argument_that_looks_like_a_state_is_reported_with_its_location(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from weightclip.lab.experiments.streaming import Rule\n\n\ndef update(w, g, m, v, lr):\n    return w, m\n\n\n"
        "MINE = Rule('mine', update=update, state=('m',))\n"
    )
    expected = r"^v: .* add it to the states of rule mine \(.*mine\.py, line 4; its states: m\)"
    with pytest.raises(ValueError, match=expected):
        resolve(Config("input-permuted-mnist", "mine", lr=0.1, rules=str(path)))
    path.write_text(path.read_text().replace(", v, lr", ", lr").replace("w, m\n", "w\n"))
    method = parse_rules("mine", rule_components(external=load_rules(path)))
    expected = r"mine\.py, line 5: rule mine: update returns 1 value, expected w, m \(the weight"
    with pytest.raises(ValueError, match=expected):
        rules_text(method)
