from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weightclip.lab.config import field_types
from weightclip.lab.experiments.streaming.config import Config, resolve


def test_missing_fields_default_to_the_papers_values() -> None:
    config = resolve(Config("label-permuted-emnist", "sgd+wc"))
    assert (config.lr, config.kappa, config.period, config.steps) == (0.01, 2.0, 2500, 1_000_000)
    assert (config.decay, config.sigma) == (None, None)
    assert config.hidden == (300, 150)
    assert config.activation == "leaky_relu"


def test_given_fields_are_unchanged() -> None:
    config = resolve(Config("input-permuted-mnist", "adam+wc", kappa=2.5, settings={"beta1": 0.5}, period=7))
    assert (config.kappa, config.settings["beta1"], config.settings["beta2"], config.period) == (2.5, 0.5, 0.999, 7)


def test_resolving_twice_changes_nothing() -> None:
    config = resolve(Config("input-permuted-mnist", "adam+l2init+wc"))
    assert resolve(config) == config


def test_every_field_has_help() -> None:
    assert all(one.help.text and "\n" not in one.help.text for one in field_types(Config).values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"problem": "input-permuted-mnits"}, "problem: .*did you mean 'input-permuted-mnist'"),
        ({"method": "adma+wc"}, "method: .*did you mean 'adam'"),
        ({"kappa": 0.0}, "kappa: got 0.0"),
        ({"kappa": -1.0}, "kappa: got -1.0"),
        ({"lr": -0.1}, "lr: got -0.1"),
        ({"lr": 1e39}, "lr: got 1e.39, expected at most 3.4e.38, the largest float32"),
        ({"sigma": 0.1}, "sigma: got 0.1, but adam.wc has no such setting"),
        ({"settings": {"beta3": 0.1}}, "beta3: got 0.1, but adam.wc has no such setting"),
        ({"steps": 0}, "steps: got 0"),
        ({"period": 0}, "period: got 0, expected a whole number of at least 1"),
        ({"period": 2.5}, "period: got 2.5"),
        ({"outputs": 0}, "outputs: got 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"seed": 2**63}, r"seed: got 9223372036854775808, expected a whole number from 0 to 2\*\*63 - 1"),
        ({"hidden": (30, 0)}, "hidden: got 0"),
        ({"activation": "gelu"}, "activation: got 'gelu'"),
        ({"backend": "gpu"}, "backend: got 'gpu'"),
        ({"dtype": "float16"}, "dtype: got 'float16'"),
        ({"variant": "mine"}, "variant: got 'mine'"),
        ({"rules": "nowhere.py"}, "rules: got 'nowhere.py', expected a Python file"),
    ],
)
def test_an_error_names_the_argument_the_value_and_the_accepted_values(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(replace(Config("input-permuted-mnist"), **wrong))


def test_rules_that_require_the_fused_backend_raise_an_error_on_the_reference_backend(tmp_path: Path) -> None:
    rules = tmp_path / "mine.py"
    rules.write_text("from weightclip.lab.experiments.streaming import Rule\nMINE = Rule('mine', after=lambda w: w)\n")
    with pytest.raises(ValueError, match=r"method: got mine, .*use backend 'fused'"):
        resolve(Config("input-permuted-mnist", "adam+mine", rules=str(rules), backend="reference"))


def test_numpy_numbers_and_paths_become_plain_values(tmp_path: Path) -> None:
    config = resolve(Config("stationary-mnist", "sgd", steps=np.int64(200), seed=np.int64(3), hidden=np.array([5, 4])))
    assert (config.steps, config.seed, config.hidden) == (200, 3, (5, 4))
    assert all(type(value) is int for value in (config.steps, config.seed, *config.hidden))


def test_a_method_has_one_name() -> None:
    assert resolve(Config("stationary-mnist", "adam+wc+l2init")).method == "adam+l2init+wc"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("problem", 3),
        ("method", None),
        ("hidden", 8),
        ("settings", [1]),
        ("diagnostics", "no"),
        ("steps", 2.5),
        ("seed", -1),
        ("lr", "large"),
    ],
)
def test_a_field_of_the_wrong_type_raises_an_error_with_its_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: got"):
        resolve(Config(**{"problem": "stationary-mnist", field: value}))
