import re

import numpy as np
import pytest
from pushed_point import LIMIT, NAME

from weightclip.lab.policy.environments import Environments, make_environment


def test_an_episode_that_ended_is_followed_by_the_next_one() -> None:
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
            assert not np.allclose(step.final[learner], step.observations[learner])
            assert np.abs(step.observations[learner][:2]).max() <= 0.5  # where episodes begin
            returns[learner] = lengths[learner] = 0
            kinds.add(bool(step.terminated[learner]))
        np.testing.assert_array_equal(step.final[~ended], step.observations[~ended])
        assert not np.allclose(step.observations, before)
        before = step.observations
    assert kinds == {True, False}


def test_actions_are_clipped_to_the_box_and_seeds_are_told_apart() -> None:
    ours, again = Environments(NAME, 2), Environments(NAME, 2)
    first = ours.reset([0, 1])
    assert not np.allclose(first[0], first[1])
    np.testing.assert_array_equal(again.reset([0, 1]), first)
    wild, clipped = ours.step(np.full((2, 2), 50.0)), again.step(np.ones((2, 2)))
    np.testing.assert_array_equal(wild.observations, clipped.observations)


def test_who_has_stopped_stands_still() -> None:
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
        ("FrozenLake-v1", "env: got 'FrozenLake-v1', whose observations are Discrete(16)"),
    ],
)
def test_what_has_no_vectors_of_actions_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_environment(name)


def test_mujocos_warnings_do_not_reach_the_terminal(
    capfd: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    make_environment("HalfCheetah-v4").close()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert not list(tmp_path.iterdir())  # type: ignore[attr-defined]
