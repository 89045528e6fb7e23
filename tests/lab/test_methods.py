import subprocess
import sys

import pytest

from weightclip.lab.experiments.dqn.config import Config as DQNConfig
from weightclip.lab.experiments.ppo.config import Config as PPOConfig
from weightclip.lab.experiments.streaming.config import Config as StreamingConfig
from weightclip.lab.experiments.warm_start.config import Config as WarmStartConfig
from weightclip.lab.methods import (
    TORCH,
    TORCH_WITH_EQUAL_BETAS,
    TORCH_WITH_SWITCH,
    choose_settings,
    default_settings,
    parse_method,
)

CONFIGS = (StreamingConfig, WarmStartConfig, PPOConfig, DQNConfig)


def test_a_method_name_is_split_into_its_parts() -> None:
    method = parse_method("sgd+l2init+wc", TORCH)
    assert (method.optimizer.name, method.every_step, method.at_switch) == ("sgd", ("l2init", "wc"), ())
    with pytest.raises(ValueError, match=r"method: got 'adma', .*did you mean 'adam"):
        parse_method("adma", TORCH)


@pytest.mark.parametrize("config", CONFIGS)
def test_clipping_is_last_in_the_canonical_name_in_every_experiment(config: type) -> None:
    assert config(method="adam+wc+l2init").parsed_method().name == "adam+l2init+wc"


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adam+wc+wc", "each regularizer once"),
        ("madam+wc", "one part with a kappa, not madam and wc"),
        ("adam+l2+sp", "one part with a decay, not l2 and sp"),
        ("adam+l2int", "did you mean 'l2init'"),
    ],
)
def test_every_experiment_rejects_the_same_methods(config: type, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"method: got .*{message}"):
        config(method=name).parsed_method()


def test_regularizers_at_the_switch() -> None:
    method = parse_method("sgd+wc@switch+l2", TORCH_WITH_SWITCH)
    assert (method.name, method.every_step, method.at_switch) == ("sgd+l2+wc@switch", ("l2",), ("wc",))
    assert method.clips


TABLE = {
    "adam": {"lr": 0.1, "settings": {"eps": 1e-5}},
    "adam+l2init": {"lr": 0.01, "decay": 0.5},
    "adam+wc": {"lr": 0.3, "kappa": 2.0},
    "adam+sp": {"decay": 0.2, "sigma": 0.3},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adam", {"lr": 0.1}),
        ("adam+wc", {"lr": 0.3, "kappa": 2.0}),  # its row in the table, although adam's has a smaller step size
        ("adam+sp", {"lr": 0.1, "decay": 0.2, "sigma": 0.3}),
        ("adam+l2", {"lr": 0.01, "decay": 0.5}),
        ("adam+wc+l2init", {"lr": 0.01, "decay": 0.5, "kappa": 2.0}),
        ("adam-equal-betas+wc", {"lr": 0.3, "kappa": 2.0}),
    ],
)
def test_defaults_are_from_the_method_or_from_its_parts_with_the_smallest_step_size(
    name: str, expected: dict[str, float]
) -> None:
    found = default_settings(parse_method(name, TORCH_WITH_EQUAL_BETAS), TABLE)
    assert found == {**expected, "eps": 1e-5}


def test_an_unknown_setting_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"bta2: got 0.5, but adam has no such setting; .*did you mean 'beta2'"):
        choose_settings(parse_method("adam", TORCH), TABLE, {"bta2": 0.5})


def test_numbers_and_booleans_of_options_are_floats() -> None:
    found = choose_settings(parse_method("adam", TORCH), TABLE, {"amsgrad": True, "weight_decay": 1})
    assert (found["amsgrad"], found["weight_decay"]) == (1.0, 1.0)
    assert {type(value) for value in found.values()} == {float}


def test_methods_are_available_without_pytorch() -> None:
    code = "import sys; import weightclip.lab.methods; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
