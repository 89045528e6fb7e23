from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from toy_env import NAME

from weightclip.lab.config import read_toml
from weightclip.lab.experiments.ppo.environments import Environments, make_environment
from weightclip.lab.experiments.ppo.mujoco_steps import direct_steps

ENVIRONMENTS = ("Ant-v4", "HalfCheetah-v4", "HalfCheetah-v5", "Hopper-v4", "Hopper-v5", "Humanoid-v4")
ENVIRONMENTS += ("HumanoidStandup-v4", "Walker2d-v4", "Walker2d-v5")
FIELDS = ("observations", "rewards", "terminated", "truncated", "final_obs", "episodes")


def assert_equal(ours: Environments, theirs: Environments, steps: int, seed: int = 0) -> int:
    """Step both with the same actions and compare bit for bit; return the number of episodes that ended."""
    generator, episodes = np.random.default_rng(seed), 0
    for t in range(steps):
        scale = 0.1 if t % 200 < 100 else 1.0
        number = len(ours._environments)
        actions = (scale * generator.standard_normal((number, ours.actions))).astype(np.float32)
        stopped = {number - 1} if t % 17 == 3 else set()
        found, expected = ours.step(actions, stopped), theirs.step(actions, stopped)
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=f"{t} {field}")
        episodes += len(found.episodes)
    return episodes


def check(name: str, steps: int, number: int = 2) -> None:
    ours, theirs = Environments(name, number, direct=True), Environments(name, number)
    assert ours._direct is not None
    seeds = range(3, 3 + number)
    np.testing.assert_array_equal(ours.reset(seeds), theirs.reset(seeds))
    episodes = assert_equal(ours, theirs, steps)
    assert episodes or steps < 1000
    saved = [one.state(0) for one in (ours, theirs)]
    assert saved[0].keys() == saved[1].keys()
    for key in saved[0].keys() - {"data", "checksum"}:  # `data` contains MuJoCo's timers
        np.testing.assert_array_equal(saved[0][key], saved[1][key], err_msg=key)
    for field in ("time", "qpos", "qvel", "qacc_warmstart", "ctrl", "xipos", "cfrc_ext"):
        simulations = [one._environments[0].unwrapped.data for one in (ours, theirs)]  # type: ignore[attr-defined]
        np.testing.assert_array_equal(*(getattr(one, field) for one in simulations), err_msg=field)


@pytest.mark.parametrize("number", [1, 2, 8])  # NumPy's order of a sum depends on the shape
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_direct_steps_equal_gymnasiums_bit_for_bit(name: str, number: int) -> None:
    check(name, {1: 300, 2: 150, 8: 40}[number], number)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_ten_thousand_direct_steps_equal_gymnasiums_bit_for_bit(name: str) -> None:
    check(name, 10_000, 1)
    check(name, 1_500, 8)


def step_from(environments: Environments, qpos: Any, qvel: Any) -> Any:
    """One step without actions from this state."""
    environments.reset([3])
    environments._environments[0].unwrapped.set_state(qpos, qvel)  # type: ignore[attr-defined]
    if environments._direct is not None:
        environments._direct.refresh(0)
    return environments.step(np.zeros((1, environments.actions), np.float32))


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("Walker2d-v4", {"z": [0.7, 0.9, 1.9, 2.2], "angle": [-1.2, -0.8, 0.8, 1.2]}),
        ("Hopper-v4", {"z": [0.5, 0.8], "angle": [-0.4, -0.1, 0.1, 0.4], "velocity": [-150.0, 0.0, 150.0]}),
        ("Ant-v4", {"z": [0.1, 0.25, 0.6, 0.95, 1.2]}),
        ("Humanoid-v4", {"z": [0.8, 1.1, 1.9, 2.2]}),
        ("HumanoidStandup-v4", {"z": [-0.6, 0.0, 0.105], "velocity": [0.0, -30.0]}),  # pressed into the floor
    ],
)
def test_episodes_end_and_rewards_saturate_as_gymnasiums(name: str, states: dict[str, list[float]]) -> None:
    """States on both sides of each limit, which random actions seldom reach."""
    ours, theirs = Environments(name, 1, direct=True), Environments(name, 1)
    theirs.reset([3])
    data = theirs._environments[0].unwrapped.data  # type: ignore[attr-defined]
    height = 1 if name in ("Walker2d-v4", "Hopper-v4") else 2
    places = {"z": ("qpos", height), "angle": ("qpos", 2), "velocity": ("qvel", 0 if name == "Hopper-v4" else 2)}
    ended = set()
    for key, values in states.items():
        for value in values:
            theirs.reset([3])
            start = {"qpos": data.qpos.copy(), "qvel": np.zeros_like(data.qvel)}
            field, index = places[key]
            start[field][index] = value
            found, expected = (step_from(one, start["qpos"], start["qvel"]) for one in (ours, theirs))
            for one in FIELDS:
                np.testing.assert_array_equal(
                    getattr(found, one), getattr(expected, one), err_msg=f"{key} {value} {one}"
                )
            ended.add(bool(expected.terminated[0]))
    assert ended == ({False} if name == "HumanoidStandup-v4" else {False, True})


@pytest.mark.parametrize("name", ["Ant-v4", "Humanoid-v4", "Walker2d-v4"])
def test_a_restored_state_continues_with_direct_steps(name: str) -> None:
    ours, theirs = Environments(name, 2, direct=True), Environments(name, 2)
    for one in (ours, theirs):
        one.reset([3, 4])
    assert_equal(ours, theirs, 30)
    other = Environments(name, 2, direct=True)
    other.reset([7, 8])
    for i in range(2):
        other.load_state(i, ours.state(i))
    assert_equal(other, theirs, 60, seed=1)


def test_the_time_limit_truncates() -> None:
    ours = Environments("HalfCheetah-v4", 2, direct=True)
    ours.reset([0, 1])
    zero = np.zeros((2, ours.actions), np.float32)
    ends = [t for t in range(1, 1002) if ours.step(zero).truncated.any()]
    assert ends == [1000]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (NAME, {}),
        ("Swimmer-v4", {}),
        ("Ant-v5", {}),
        ("Ant-v4", {"use_contact_forces": True}),
        ("Walker2d-v4", {"terminate_when_unhealthy": False}),
        ("Hopper-v4", {"exclude_current_positions_from_observation": False}),
        ("Hopper-v4", {"render_mode": "rgb_array"}),
    ],
)
def test_other_environments_and_options_use_gymnasiums_steps(name: str, options: dict[str, Any]) -> None:
    assert direct_steps([make_environment(name, **options)]) is None


def test_a_wrapper_that_overrides_step_uses_gymnasiums_steps() -> None:
    wrapped: gym.Env[Any, Any] = gym.wrappers.TransformReward(make_environment("Hopper-v4"), lambda reward: 2 * reward)
    assert direct_steps([wrapped]) is None
    assert direct_steps([make_environment("Hopper-v4")]) is not None


def test_reward_weights_are_read_from_the_environment() -> None:
    ours, theirs = Environments("Walker2d-v4", 2, direct=True), Environments("Walker2d-v4", 2)
    for one in (ours, theirs):
        for environment in one._environments:
            environment.unwrapped._ctrl_cost_weight = 0.5  # type: ignore[attr-defined]
        one.reset([3, 4])
    assert_equal(ours, theirs, 20)


def test_the_lab_requires_numpy_2() -> None:
    """Products of a float and a float32 have another type in NumPy 1, and rewards would differ from Gymnasium's."""
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8")
    extras = read_toml(text)["project"]["optional-dependencies"]
    assert "numpy>=2.0" in extras["lab"]
    assert "weightclip[lab]" in extras["mujoco"]
