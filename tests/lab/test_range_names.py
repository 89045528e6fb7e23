"""Names in `kappa` are checked with the configuration, before data is loaded or a sweep is planned."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weightclip
from weightclip.cli import main
from weightclip.lab.config import MethodConfig
from weightclip.lab.experiments.dqn.dqn import DQN
from weightclip.lab.experiments.dqn.rainbow import Rainbow
from weightclip.lab.experiments.streaming import experiment as streaming
from weightclip.lab.experiments.warm_start.training import make_network
from weightclip.lab.networks.actor_critic import ActorCritic
from weightclip.lab.networks.mlp import mlp
from weightclip.lab.registry import experiment_of

ATARI, MINATAR = (84, 84), (10, 10)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("label-permuted-emnist", {}),
    ("input-permuted-mnist", {"hidden": (), "activation": "tanh"}),
    ("input-permuted-mnist", {"hidden": (5, 4, 3), "backend": "reference"}),
    ("warm-start", {}),
    ("warm-start", {"variant": "paper", "stem": "imagenet"}),
    ("policy-collapse", {}),
    ("policy-collapse", {"hidden": (8,), "bounds": "fan_in"}),
    ("replay-ratio", {"game": "breakout"}),
    ("replay-ratio", {"game": "breakout", "suite": "minatar", "agent": "rainbow"}),
    ("replay-ratio", {"game": "breakout", "agent": "rainbow", "dueling": False, "noisy": False}),
]
cases = pytest.mark.parametrize(("problem", "settings"), CASES)


def configure(problem: str, settings: dict[str, Any], kappa: object = 2.0) -> Any:
    method = {"warm-start": "sgd+wc"}.get(problem, "adam+wc")
    return experiment_of(problem).configure(problem, {"method": method, "kappa": kappa, **settings})


def make_own_network(config: Any) -> nn.Module:
    """The network that a run trains."""
    if config.experiment == "warm-start":
        return make_network(config, 10)
    if config.experiment == "policy-collapse":
        return ActorCritic(17, 6, config.hidden)
    if config.experiment == "replay-ratio":
        agent = object.__new__(Rainbow if config.agent == "rainbow" else DQN)
        agent.config = config
        return agent.network(4, ATARI if config.suite == "atari" else MINATAR, 6)
    return mlp(784, config.hidden, 10, config.activation)


@cases
def test_the_small_network_has_the_names_and_the_layers_of_the_trained_one(
    problem: str, settings: dict[str, Any]
) -> None:
    config = configure(problem, settings)
    small, bounds = config.small_network()
    own = make_own_network(config)
    assert [name for name, _ in small.named_parameters()] == [name for name, _ in own.named_parameters()]
    assert [type(layer) for layer in small.modules()] == [type(layer) for layer in own.modules()]
    assert bounds == (config.bounds if hasattr(config, "bounds") else "fan_in")


@cases
def test_a_name_that_changes_nothing_raises_the_error_of_clip_weights(problem: str, settings: dict[str, Any]) -> None:
    some = [name for name, _ in configure(problem, settings).small_network()[0].named_parameters()][-1]
    assert configure(problem, settings, {some: 1.0, "*": 2.0}).kappa_rule == f"{some}=1,*=2"
    with pytest.raises(ValueError, match=r"^kappa: 'outptu' matches no parameter; the closest are output, "):
        configure(problem, settings, {"hidden": 5.0, "outptu": 1.0})
    with pytest.raises(ValueError, match=rf"^kappa: '{some}' has no effect, because earlier keys match all"):
        configure(problem, settings, {"*": 2.0, some: 1.0})
    with pytest.raises(ValueError, match=r"^output_layers: 'nothing\.\*' matches no parameter"):
        configure(problem, settings, weightclip.graded(output_layers="nothing.*"))


def test_the_bounds_of_the_configuration_decide_which_names_have_an_effect() -> None:
    with pytest.raises(ValueError, match=r"kappa: 'bn1\.\*' matches only tensors without a bound"):
        configure("warm-start", {"variant": "default"}, "bn1.*=5,*=2")
    assert configure("warm-start", {"variant": "paper"}, "bn1.*=5,*=2").kappa_rule == "bn1.*=5,*=2"


def test_an_experiment_with_unknown_names_accepts_every_rule() -> None:
    assert MethodConfig().small_network() is None


@cases
def test_the_check_leaves_the_global_generator_unchanged(problem: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(3)
    configure(problem, settings).small_network()
    after = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("words", [["run"], ["sweep", "--dry-run"], ["sweep"]], ids=" ".join)
@pytest.mark.usefixtures("empty_directory")
def test_a_wrong_name_is_reported_before_data_is_loaded(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("the data is loaded")

    monkeypatch.setattr(streaming.Streaming, "load", load)
    command, *options = words
    kappa = "hidden=5,outptu=1" + (";2" if command == "sweep" else "")
    assert main([command, "label-permuted-emnist", *options, "--kappa", kappa]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weightclip: error: kappa: 'outptu' matches no parameter; the closest are output, 0.weight")
    assert not list(Path().iterdir())


def test_planning_without_names_in_kappa_imports_no_pytorch() -> None:
    code = (
        "import sys; from weightclip.lab.experiments.streaming.config import Config, resolve\n"
        "for kappa in (2.0, 'graded', 'hidden=5,output=1', '*=3'):\n"
        "    resolve(Config('label-permuted-emnist', 'adam+wc', kappa=kappa))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
