import math
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

import weightclip as wc

sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]

KAPPA = 0.5
SMALL = {"seed": 0, "device": "cpu", "learning_rate": 0.05}
ON_POLICY = {"n_steps": 16, "batch_size": 8, "n_epochs": 2}
OFF_POLICY = {"learning_starts": 4, "batch_size": 4}
AGENTS: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "PPO": (sb3.PPO, "MlpPolicy", "Pendulum-v1", ON_POLICY),
    "A2C": (sb3.A2C, "MlpPolicy", "CartPole-v1", {}),
    "DQN": (sb3.DQN, "MlpPolicy", "CartPole-v1", {**OFF_POLICY, "train_freq": 1}),
    "SAC": (sb3.SAC, "MlpPolicy", "Pendulum-v1", OFF_POLICY),
    "TD3": (sb3.TD3, "MlpPolicy", "Pendulum-v1", OFF_POLICY),
    "QRDQN": (contrib.QRDQN, "MlpPolicy", "CartPole-v1", {**OFF_POLICY, "train_freq": 1}),
    "TQC": (contrib.TQC, "MlpPolicy", "Pendulum-v1", OFF_POLICY),
    "RecurrentPPO": (contrib.RecurrentPPO, "MlpLstmPolicy", "Pendulum-v1", ON_POLICY),
}
STEPS = 40


def callback(kappa: Any = KAPPA, **options: Any) -> Any:
    from weightclip.integrations.sb3 import ClipCallback

    return ClipCallback(kappa, **options)


def make(name: str, **options: Any) -> Any:
    cls, policy, env, own = AGENTS[name]
    return cls(policy, env, **{**SMALL, **own, **options})


def trained_layers(agent: Any) -> list[nn.Linear]:
    from weightclip.integrations.sb3 import optimizers_of

    held = {id(p) for o in optimizers_of(agent.policy) for group in o.param_groups for p in group["params"]}
    return [m for m in agent.policy.modules() if isinstance(m, nn.Linear) and id(m.weight) in held]


def weights(agent: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in agent.policy.parameters()]


@pytest.mark.parametrize("name", AGENTS)
def test_every_trained_layer_is_in_its_box(name: str) -> None:
    agent = make(name)
    clip = callback()
    agent.learn(STEPS, callback=clip)
    layers = trained_layers(agent)
    assert len(layers) >= 3
    for layer in layers:
        bound = KAPPA / math.sqrt(layer.in_features)
        assert all(p.abs().max() <= bound for p in layer.parameters())
    assert sum(len([b for b in c.bounds.values() if b.s is not None]) for c in clip.clippers) >= 2 * len(layers)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_the_log_std_of_gsde_is_skipped(name: str) -> None:
    agent = make(name, use_sde=True)
    clip = callback(kappa=1e-6)
    agent.learn(STEPS, callback=clip)
    (log_std,) = (p for name, p in agent.policy.named_parameters() if name.endswith("log_std"))
    assert log_std.abs().min() > 0.5 if name == "SAC" else log_std.abs().max() > 1e-3
    assert any(name.endswith("log_std") and b.s is None for c in clip.clippers for name, b in c.bounds.items())


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_learning_twice_keeps_the_clippers(name: str) -> None:
    agent = make(name)
    first, second = callback(), callback()
    agent.learn(STEPS, callback=first)
    agent.learn(STEPS, callback=second, reset_num_timesteps=False)
    assert first.clippers == second.clippers


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_training_without_the_callback_after_load_warns(name: str, tmp_path: Path) -> None:
    agent = make(name)
    agent.learn(STEPS, callback=callback())
    agent.save(tmp_path / "agent")
    loaded = AGENTS[name][0].load(tmp_path / "agent", env=gymnasium.make(AGENTS[name][2]), device="cpu")
    with pytest.warns(RuntimeWarning, match="clip_weights no longer acts on this Adam"):
        loaded.learn(STEPS)
    loaded = AGENTS[name][0].load(tmp_path / "agent", env=gymnasium.make(AGENTS[name][2]), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        loaded.learn(STEPS, callback=callback())


def test_a_resumed_agent_has_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """With measured bounds and clipping every third step; the optimizer is loaded before the callback attaches."""

    def update(agent: Any, updates: range) -> None:
        optimizer = agent.policy.optimizer
        for number in updates:
            observation = torch.randn(8, 3, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            agent.policy.predict_values(observation).square().mean().backward()
            optimizer.step()

    agent = make("PPO")
    options = {"bounds": "init", "every": 3}
    agent.learn(16, callback=callback(**options))
    update(agent, range(2))
    agent.save(tmp_path / "agent")
    update(agent, range(2, 12))

    resumed = sb3.PPO.load(tmp_path / "agent", env=gymnasium.make("Pendulum-v1"), device="cpu")
    clip = callback(kappa=9.0, **options)
    clip.init_callback(resumed)
    clip.on_training_start({}, {})
    update(resumed, range(2, 12))
    assert all(torch.equal(a, b) for a, b in zip(weights(agent), weights(resumed), strict=True))
    assert resumed.policy.optimizer.param_groups[0]["kappa"] == KAPPA


def test_invalid_options_raise_an_error_when_training_starts() -> None:
    with pytest.raises(ValueError, match="kappa: got -1, expected a positive number"):
        make("A2C").learn(STEPS, callback=callback(kappa=-1))
    with pytest.raises(ValueError, match="'nothing' matches no parameter"):
        make("A2C").learn(STEPS, callback=callback(include="nothing"))


def test_the_lstm_of_a_recurrent_policy_is_in_its_box() -> None:
    agent = make("RecurrentPPO")
    clip = callback()
    agent.learn(STEPS, callback=clip)
    (clipper,) = clip.clippers
    lstm = {id(p) for module in agent.policy.modules() if isinstance(module, nn.LSTM) for p in module.parameters()}
    inside = {id(tensor): bool((tensor.abs() <= side * (1 + 1e-6)).all()) for tensor, side in clipper.sides().items()}
    assert lstm
    assert all(inside[key] for key in lstm)


OUTPUTS = {
    "PPO": {"action_net", "value_net"},
    "A2C": {"action_net", "value_net"},
    "DQN": {"q_net.q_net.4"},
    "SAC": {"actor.mu", "actor.log_std", "critic.qf0.4", "critic.qf1.4"},
    "TD3": {"actor.mu.4", "critic.qf0.4", "critic.qf1.4"},
    "QRDQN": {"quantile_net.quantile_net.4"},
    "TQC": {"actor.mu", "actor.log_std", "critic.qf0.4", "critic.qf1.4"},
    "RecurrentPPO": {"action_net", "value_net"},
}


@pytest.mark.parametrize("name", AGENTS)
def test_the_output_layers_of_every_agent_are_found(name: str) -> None:
    agent, clip = make(name), callback({"output": KAPPA})
    agent.learn(STEPS, callback=clip)
    clipped = {name for c in clip.clippers for name, bound in c.bounds.items() if bound.s is not None}
    assert clipped == {f"{layer}.{tensor}" for layer in OUTPUTS[name] for tensor in ("weight", "bias")}


@pytest.mark.parametrize(
    ("kappa", "expected"),
    [
        ({"output": 1.0, "hidden": 5.0}, {"action_net.weight": 1.0, "mlp_extractor.policy_net.0.weight": 5.0}),
        ({"hidden": 5.0, "output": 1.0}, {"action_net.weight": 1.0, "mlp_extractor.policy_net.0.weight": 5.0}),
        ({"hidden": 5.0}, {"action_net.weight": math.inf, "mlp_extractor.policy_net.0.weight": 5.0}),
        ({"value_net.*": 3.0, "output": 1.0}, {"action_net.weight": 1.0, "value_net.weight": 3.0}),
    ],
)
def test_ranges_by_role_through_the_callback(kappa: dict[str, float], expected: dict[str, float]) -> None:
    agent, clip = make("A2C"), callback(kappa)
    agent.learn(STEPS, callback=clip)
    assert {name: clip.clippers[0].bounds[name].range for name in expected} == expected


def test_graded_ranges_have_the_output_layers_of_the_policy() -> None:
    agent, clip = make("A2C"), callback(wc.graded(0.2, 1.0, output=0.5))
    agent.learn(STEPS, callback=clip)
    assert clip.clippers[0].bounds["action_net.weight"].range == 0.5


def test_ranges_by_unit_through_the_callback() -> None:
    agent = make("A2C")
    clip = callback(wc.graded(0.2, 1.0, output=0.5, output_layers=["action_net.*", "value_net.*"]))
    agent.learn(STEPS, callback=clip)
    (clipper,) = clip.clippers
    assert all((tensor.abs() <= side * (1 + 1e-6)).all() for tensor, side in clipper.sides().items())
    assert "0.2-1" in str(clipper)


def test_another_kappa_on_an_optimizer_that_is_clipped_already_warns() -> None:
    agent = make("A2C")
    agent.learn(STEPS, callback=callback())
    with pytest.warns(UserWarning, match="the optimizer keeps Clipper.* kappa=3.0 of the callback is ignored"):
        agent.learn(STEPS, callback=callback(3.0))
    assert agent.policy.optimizer.param_groups[0]["kappa"] == KAPPA


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        (KAPPA, wc.graded(output_layers="*_net.*"), "kappa=0.5, which replaces kappa=graded"),
        (wc.graded(output_layers="*_net.*"), KAPPA, r"kappa=graded\(.*\), which replaces kappa=0.5"),
        (KAPPA, 3.0, "kappa=3.0 of the callback is ignored"),
    ],
    ids=["number", "rule", "other number"],
)
def test_a_loaded_agent_keeps_its_kappa_and_one_warning_names_both(
    saved: Any, resumed: Any, message: str, tmp_path: Path
) -> None:
    agent = make("A2C")
    first, second = callback(saved), callback(resumed)
    agent.learn(STEPS, callback=first)
    agent.save(tmp_path / "agent")
    loaded = sb3.A2C.load(tmp_path / "agent", env=gymnasium.make("CartPole-v1"), device="cpu")
    with pytest.warns(UserWarning, match=message) as caught:
        loaded.learn(STEPS, callback=second)
    assert len([one for one in caught if "kappa" in str(one.message)]) == 1
    assert repr(second.clippers) == repr(first.clippers)


def test_an_unknown_option_raises_an_error_immediately() -> None:
    with pytest.raises(ValueError, match=r"ClipCallback: got 'evry'.*did you mean 'every'"):
        callback(evry=3)


def test_the_callback_clips_the_same_tensors_as_clip_weights() -> None:
    by_callback = make("A2C").learn(STEPS, callback=callback())
    by_hand = make("A2C")
    wc.clip_weights(by_hand.policy.optimizer, by_hand.policy, KAPPA)
    by_hand.learn(STEPS)
    assert all(torch.equal(a, b) for a, b in zip(weights(by_callback), weights(by_hand), strict=True))
