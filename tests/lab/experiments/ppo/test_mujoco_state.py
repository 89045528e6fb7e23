from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from weightclip.lab.experiments.ppo import mujoco_state
from weightclip.lab.experiments.ppo.environments import Environments, make_environment

NAMES = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum")
NAMES += ("Pusher", "Reacher", "Swimmer", "Walker2d")
ENVIRONMENTS = [f"{name}-{version}" for name in NAMES for version in ("v4", "v5") if f"{name}-{version}" != "Pusher-v4"]
"""All MuJoCo environments of Gymnasium that the installed MuJoCo supports."""


def play(environment: gym.Env[Any, Any], actions: Any) -> list[Any]:
    """Return the observations, rewards and ends of steps; episodes restart when they end."""
    found: list[Any] = []
    for action in actions:
        seen, reward, terminated, truncated, _ = environment.step(action)
        found.append((seen.tolist(), reward, terminated, truncated))
        if terminated or truncated:
            found.append(environment.reset()[0].tolist())
    return found


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_restored_environment_continues_bit_for_bit(name: str) -> None:
    environment, other = make_environment(name), make_environment(name)
    environment.reset(seed=3)
    assert mujoco_state.has_state(environment)
    space, generator = environment.action_space, np.random.default_rng(0)
    actions = [generator.uniform(space.low, space.high) for _ in range(150)]
    play(environment, actions[:60])
    saved = mujoco_state.state(environment)
    uninterrupted = play(environment, actions[60:])
    mujoco_state.load_state(other, saved)
    assert play(other, actions[60:]) == uninterrupted


def test_the_time_limit_is_restored() -> None:
    environments = Environments("Swimmer-v4", 2)
    environments.reset([0, 1])
    zero = np.zeros((2, 2))
    for _ in range(900):
        environments.step(zero, stopped=[1])
    other = Environments("Swimmer-v4", 2)
    other.reset([7, 8])
    other.load_state(1, environments.state(0))
    lengths = [length for _ in range(100) for _, _, length in other.step(zero, stopped=[0]).episodes]
    assert lengths == [1000]


def test_a_state_of_another_version_is_rejected() -> None:
    environment = make_environment("Hopper-v4")
    environment.reset(seed=0)
    saved = {**mujoco_state.state(environment), "version": np.array("format 0, mujoco 1.0")}
    with pytest.raises(ValueError, match=r"environment: got a state of format 0, mujoco 1\.0, expected format 2"):
        mujoco_state.load_state(environment, saved)


@pytest.mark.parametrize("pretend", [False, True])
def test_a_state_of_another_model_is_rejected(pretend: bool) -> None:
    """A new version of Gymnasium may change the model of an environment."""
    walker, hopper = make_environment("Walker2d-v4"), make_environment("Hopper-v4")
    for one in (walker, hopper):
        one.reset(seed=0)
    saved = mujoco_state.state(walker)
    if pretend:
        saved["version"] = mujoco_state.state(hopper)["version"]
        del saved["checksum"]
    message = "MuJoCo cannot read its state" if pretend else "got a state of format 2, .*, model .*, expected format 2"
    with pytest.raises(ValueError, match=f"environment: {message}"):
        mujoco_state.load_state(hopper, saved)


@pytest.mark.parametrize("name", ["data", "generator", "elapsed"])
def test_a_damaged_state_is_rejected(name: str) -> None:
    """Before MuJoCo reads it, whose code does not check it."""
    environment = make_environment("Hopper-v4")
    environment.reset(seed=0)
    saved = mujoco_state.state(environment)
    damaged = saved[name].copy()
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(ValueError, match="environment: the state is damaged"):
        mujoco_state.load_state(environment, {**saved, name: damaged})


def test_a_state_without_a_checksum_is_restored() -> None:
    """As checkpoints of earlier versions have it."""
    environment, other = make_environment("Hopper-v4"), make_environment("Hopper-v4")
    for seed, one in enumerate((environment, other)):
        one.reset(seed=seed)
    saved = mujoco_state.state(environment)
    del saved["checksum"]
    mujoco_state.load_state(other, saved)
    actions = np.zeros((50, 3))
    assert play(other, actions) == play(environment, actions)


def test_an_error_of_mujocos_bindings_names_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> None:
        raise RuntimeError("unexpected end")

    environment = make_environment("Hopper-v4")
    environment.reset(seed=0)
    saved = mujoco_state.state(environment)
    monkeypatch.setattr("mujoco.mj_copyData", unreadable)
    with pytest.raises(ValueError, match="environment: MuJoCo cannot read its state: unexpected end"):
        mujoco_state.load_state(environment, saved)


def test_the_state_of_other_environments_and_wrappers_is_not_saved() -> None:
    assert not mujoco_state.has_state(make_environment("Pendulum-v1"))
    wrapped = gym.wrappers.FrameStackObservation(make_environment("Hopper-v4"), 2)
    assert not mujoco_state.has_state(wrapped)
