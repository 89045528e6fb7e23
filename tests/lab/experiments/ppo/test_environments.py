import re
import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text
from toy_env import LIMIT, NAME, Toy, config

from weightclip.lab.experiments.ppo.environments import Environments, make_environment
from weightclip.lab.experiments.ppo.ppo import Learners


class ConstantObservation(Toy):
    """The toy environment with a constant observation in another space."""

    def __init__(self, space: gym.Space, seen: Any, warning: str = "") -> None:
        super().__init__()
        self.observation_space, self._same = space, seen
        if warning:
            warnings.warn(warning, stacklevel=1)

    def _seen(self) -> Any:
        return self._same


SPACES: dict[str, tuple[gym.Space, Any]] = {
    "Whole": (Box(0, 9, (2,), np.int64), np.array([3, 4])),
    "Parts": (
        Dict({"at": Box(-1, 1, (2,), np.float32), "kind": Discrete(3)}),
        {"at": np.array([0.5, 0.25], np.float32), "kind": 1},
    ),
    "Words": (Sequence(Text(3)), ("a",)),
}
for kind, (space, seen) in SPACES.items():
    gym.register(f"Weightclip{kind}-v0", ConstantObservation, kwargs={"space": space, "seen": seen})
gym.register(
    "WeightclipWarning-v0",
    ConstantObservation,
    kwargs={"space": SPACES["Whole"][0], "seen": None, "warning": "mind the gap"},
)


def test_environments_reset_automatically() -> None:
    ours = Environments(NAME, 2)
    before = ours.reset([0, 1])
    returns = np.zeros(2)
    lengths = np.zeros(2, int)
    kinds = set()
    for _ in range(100):
        step = ours.step(np.array([[0.3, 0.3], [0.0, 0.0]]))
        returns += step.rewards
        lengths += 1
        ended = step.terminated | step.truncated
        assert [learner for learner, *_ in step.episodes] == np.flatnonzero(ended).tolist()
        for learner, value, length in step.episodes:
            assert value == pytest.approx(returns[learner])
            assert length == lengths[learner] <= LIMIT
            assert not np.allclose(step.final_obs[learner], step.observations[learner])
            assert np.abs(step.observations[learner][:2]).max() <= 0.5  # first observations of episodes
            returns[learner] = lengths[learner] = 0
            kinds.add(bool(step.terminated[learner]))
        np.testing.assert_array_equal(step.final_obs[~ended], step.observations[~ended])
        assert not np.allclose(step.observations, before)
        before = step.observations
    assert kinds == {True, False}


def test_actions_are_clipped_to_the_box_and_seeds_differ() -> None:
    ours, again = Environments(NAME, 2), Environments(NAME, 2)
    first = ours.reset([0, 1])
    assert not np.allclose(first[0], first[1])
    np.testing.assert_array_equal(again.reset([0, 1]), first)
    wild, clipped = ours.step(np.full((2, 2), 50.0)), again.step(np.ones((2, 2)))
    np.testing.assert_array_equal(wild.observations, clipped.observations)


def test_stopped_environments_are_not_stepped() -> None:
    ours = Environments(NAME, 2)
    before = ours.reset([0, 1])
    step = ours.step(np.array([[np.nan, 0.0], [0.1, 0.1]]), stopped={0})
    np.testing.assert_array_equal(step.observations[0], before[0])
    assert not np.allclose(step.observations[1], before[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing-v3", "env: got 'Nothing-v3': "),
        (
            "CartPole-v1",
            "env: got 'CartPole-v1', whose actions are Discrete(2); expected vectors of real numbers (Box)",
        ),
        ("Ant-v2", "env: got 'Ant-v2': "),
        ("nowhere:Bar-v0", "env: got 'nowhere:Bar-v0': "),
        ("FrozenLake-v1", "env: got 'FrozenLake-v1', whose actions are Discrete(4)"),
        ("WeightclipWords-v0", "env: got 'WeightclipWords-v0', whose observations are Sequence("),
    ],
)
def test_spaces_without_vectors_are_rejected(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_environment(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Ant",
            "env: got 'Ant', expected an id with a version; known versions are Ant-v2, Ant-v3, Ant-v4, Ant-v5; "
            "did you mean 'Ant-v",
        ),
        ("Hopper", "Hopper-v4, Hopper-v5; did you mean 'Hopper-v5'?"),
        ("toy_env:WeightclipToy", "known versions are WeightclipToy-v0; did you mean 'WeightclipToy-v0'?"),
    ],
)
def test_an_environment_without_a_version_raises_an_error(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_environment(name)


def test_only_the_deprecation_of_the_papers_version_is_silenced() -> None:
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        make_environment("HalfCheetah-v4").close()
        assert reported == []
        make_environment("WeightclipWarning-v0").close()
    assert [str(one.message) for one in reported] == ["mind the gap"]


@pytest.mark.parametrize(
    ("name", "first"),
    [("WeightclipWhole-v0", [3.0, 4.0]), ("WeightclipParts-v0", [0.5, 0.25, 0.0, 1.0, 0.0]), (NAME, None)],
)
def test_other_observations_are_flattened(name: str, first: list[float] | None) -> None:
    ours = Environments(name, 1)
    (found,) = ours.reset([0])
    assert found.dtype == np.float64
    if first is None:  # already a vector, so there is no wrapper
        assert not isinstance(ours._environments[0], gym.wrappers.FlattenObservation)
    else:
        assert found.tolist() == first
        assert ours.step(np.zeros((1, 2))).observations.tolist() == [first]
        rows, _ = Learners([replace(config("adam"), env=name)]).iterate(0)
        assert np.isfinite(rows[0]["weight_l2"])


def test_mujocos_warnings_do_not_reach_the_terminal(
    capfd: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    make_environment("HalfCheetah-v4").close()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert not list(tmp_path.iterdir())  # type: ignore[attr-defined]
