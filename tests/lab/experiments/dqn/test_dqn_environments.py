import re

import numpy as np
import pytest

from weightclip.lab.experiments.dqn.environments import MINATAR_GAMES, PAPER_GAMES, find_game
from weightclip.lab.experiments.dqn.training import make_environments


@pytest.mark.parametrize("suite_game", [("atari", "SpaceInvaders"), ("minatar", "space_invaders")])
def test_the_same_seeds_and_actions_give_the_same_games(suite_game: tuple[str, str]) -> None:
    environments = [make_environments(*suite_game, 2, 0.1) for _ in range(2)]
    generator = np.random.default_rng(0)
    first, second = (games.reset([3, 4]) for games in environments)
    np.testing.assert_array_equal(first, second)
    assert first.dtype == np.uint8
    assert first.shape == (2, *environments[0].frame)
    for _ in range(60):
        actions = generator.integers(environments[0].actions, size=2)
        steps = []
        for games in environments:
            games.send(actions)
            steps.append(games.receive())
        np.testing.assert_array_equal(steps[0].frames, steps[1].frames)
        np.testing.assert_array_equal(steps[0].rewards, steps[1].rewards)
    for games in environments:
        games.close()


def first_frames(suite: str, seeds: list[int], sticky: float) -> np.ndarray:
    """Return the frames [t, e, ...] of games with the same actions."""
    games = make_environments(suite, "SpaceInvaders", len(seeds), sticky)
    found, generator = [games.reset(seeds)], np.random.default_rng(0)
    for _ in range(60):  # Space Invaders begins with an animation
        games.send(np.full(len(seeds), generator.integers(games.actions)))
        found.append(games.receive().frames)
    games.close()
    return np.stack(found)


@pytest.mark.parametrize("suite", ["atari", "minatar"])
def test_sticky_actions_differ_from_the_sent_actions(suite: str) -> None:
    sent, stuck = (first_frames(suite, [1], sticky) for sticky in (0.0, 1.0))
    np.testing.assert_array_equal(sent[0], stuck[0])
    assert (sent[1:] != stuck[1:]).any()


def test_atari_games_start_with_random_no_ops() -> None:
    frames = first_frames("atari", list(range(6)), 0.0)
    assert len({frame.tobytes() for frame in frames[-1]}) > 3


@pytest.mark.parametrize("game", MINATAR_GAMES)
def test_minatar_episodes_end_and_restart(game: str) -> None:
    games = make_environments("minatar", game, 2, 0.1)
    games.reset([0, 1])
    generator = np.random.default_rng(0)
    total, ended = np.zeros(2), 0
    for _ in range(6000):
        games.send(generator.integers(games.actions, size=2))
        step = games.receive()
        total += step.rewards
        over = np.flatnonzero(step.terminated)
        assert len(step.episodes) == len(over)
        for i, (value, _) in zip(over, step.episodes):
            assert value == pytest.approx(total[i])
            total[i] = 0
        ended += len(over)
        if ended > 3:
            break
    assert ended > 3


def test_atari_lives_and_games_are_distinguished() -> None:
    games = make_environments("atari", "SpaceInvaders", 2, 0.0)
    assert games.frame == (1, 84, 84)
    assert games.actions == 6
    games.reset([1, 2])
    generator = np.random.default_rng(0)
    lost, over, returns = 0, 0, []
    for _ in range(700):
        games.send(generator.integers(6, size=2))
        step = games.receive()
        lost += step.lost.sum()
        over += step.terminated.sum()
        returns += [value for value, _ in step.episodes]
        ended = step.terminated | step.truncated
        assert not (step.lost & ended).any()
        np.testing.assert_array_equal(step.final[~ended], step.frames[~ended])
        if over:
            break
    games.close()
    assert over == len(returns) > 0
    assert lost >= 2 * over  # of three lives, the last one ends the game
    assert max(returns) > 10  # unclipped rewards
    assert step.rewards.dtype == np.float64


def test_every_game_of_the_paper_is_available() -> None:
    for game, name in PAPER_GAMES.items():
        for written in (name, name.replace(" ", ""), game):
            assert find_game("atari", written) == game
    assert [find_game("atari", game) for game in ("RiverRaid", "UpNDown")] == ["riverraid", "up_n_down"]


@pytest.mark.parametrize(
    ("suite", "game", "message"),
    [
        ("atari", "SpaceInvader", " names; did you mean 'space_invaders'?"),
        ("atari", "zzz", "game: got 'zzz', expected one of adventure, "),
        ("minatar", "Pong", "game: got 'pong', expected one of asterix, breakout, freeway, seaquest, space_invaders"),
    ],
)
def test_an_unavailable_game_raises_an_error(suite: str, game: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        find_game(suite, game)
