import io
import platform
import threading
from collections import Counter
from dataclasses import fields
from inspect import signature
from typing import Any

import ale_py
import numpy as np
import pytest
import vector_atari
from vector_atari import VectorAtari

from weightclip.lab.checkpoint import checksum
from weightclip.lab.experiments.dqn import atari
from weightclip.lab.experiments.dqn.atari import SIZE, Atari, _areas, _draw_noops, _Game, _pool_and_resize
from weightclip.lab.experiments.dqn.environments import MAX_FRAMES, PAPER_GAMES, Environments, Step

SEEDS = [3, 40, 500]

same_standard_library = pytest.mark.skipif(
    platform.system() != "Linux", reason="the reference draws its no-op actions with the C++ library of the platform"
)


def assert_same_step(found: Step, expected: Step, when: object) -> None:
    for field in fields(Step):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "episodes":
            assert one == other, when
        else:
            assert one.dtype == other.dtype, field.name
            np.testing.assert_array_equal(one, other, f"{field.name} {when}")


def stepped(games: Environments, actions: np.ndarray) -> Step:
    games.send(actions)
    return games.receive()


def compare_with_reference(game: str, steps: int, sticky: float, max_frames: int) -> Counter[str]:
    """Step both kinds of games and return how often each event happened."""
    ours, theirs = Atari(game, 3, sticky, max_frames), VectorAtari(game, 3, sticky, max_frames)
    assert ours.actions == theirs.actions
    assert ours.frame == theirs.frame
    seen, generator = Counter[str](), np.random.default_rng(0)
    np.testing.assert_array_equal(ours.reset(SEEDS), theirs.reset(SEEDS))
    for t in range(steps):
        actions = generator.integers(ours.actions, size=3)
        ours.send(actions)
        step = stepped(theirs, actions)
        assert_same_step(ours.receive(), step, f"{game} step {t}")
        np.testing.assert_array_equal(ours._lives, theirs._lives)
        for name in ("lost", "terminated", "truncated"):
            seen[name] += int(getattr(step, name).sum())
        seen["rewarded"] += int((step.rewards != 0).sum())
    for games in (ours, theirs):
        games.close()
    print(game, steps, dict(seen))
    return seen


@same_standard_library
@pytest.mark.parametrize(("game", "max_frames", "sticky"), [("asterix", 1001, 0.0), ("breakout", 701, 0.25)])
def test_games_match_the_vector_environment(game: str, max_frames: int, sticky: float) -> None:
    # Asterix has no action FIRE. The last step of a truncated episode has a single frame.
    seen = compare_with_reference(game, 300, sticky, max_frames)
    assert min(seen[name] for name in ("lost", "terminated", "truncated", "rewarded")) > 0


@same_standard_library
@pytest.mark.slow
@pytest.mark.parametrize(("sticky", "steps"), [(0.0, 10_000), (0.25, 2_000)])
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_each_game_of_the_paper_matches_the_vector_environment(game: str, sticky: float, steps: int) -> None:
    seen = compare_with_reference(game, steps, sticky, MAX_FRAMES)
    assert seen["rewarded"] > 0
    if steps == 10_000:
        assert seen["terminated"] > 0
        assert (seen["lost"] > 0) == (game != "ice_hockey")  # has no lives


@same_standard_library
@pytest.mark.slow
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_truncated_games_of_the_paper_match_the_vector_environment(game: str) -> None:
    assert compare_with_reference(game, 1000, 0.0, 1002)["truncated"] > 0


@same_standard_library
@pytest.mark.slow
def test_an_endless_episode_is_truncated_as_in_the_vector_environment() -> None:
    ours, theirs = Atari("montezuma_revenge", 1), VectorAtari("montezuma_revenge", 1)
    np.testing.assert_array_equal(ours.reset([1]), theirs.reset([1]))
    for t in range(MAX_FRAMES // 4 + 2):
        step = stepped(ours, np.zeros(1, np.int64))
        assert_same_step(step, stepped(theirs, np.zeros(1, np.int64)), t)
        assert step.truncated[0] == (t == MAX_FRAMES // 4 - 1)
    for games in (ours, theirs):
        games.close()


@same_standard_library
def test_no_op_actions_are_drawn_as_in_the_vector_environment() -> None:
    # For these seeds, drawing differently from the same generator gives another number.
    seeds = [40776050, 45454011]
    games = VectorAtari("space_invaders", 2)
    _, about = games._games.reset(seed=np.array(seeds))
    games.close()
    assert about["episode_frame_number"].tolist() == [25, 4]  # with FIRE, which replaces one no-op
    assert [_draw_noops(np.random.RandomState(seed)) for seed in seeds] == [25, 4]


def test_every_option_of_the_reference_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Recording(vector_atari.AtariVectorEnv):
        def __init__(self, game: str, num_envs: int, **options: Any) -> None:
            made.append(options)
            super().__init__(game, num_envs, **options)

    names = set(signature(vector_atari.AtariVectorEnv.__init__).parameters) - {"self", "game", "num_envs"}
    monkeypatch.setattr(vector_atari, "AtariVectorEnv", Recording)
    VectorAtari("SpaceInvaders", 1, 0.25).close()
    (options,) = made
    assert set(options) == names  # the defaults differ between versions and constructors
    wanted = {"maxpool": True, "noop_max": 30, "use_fire_reset": True, "frameskip": 4, "episodic_life": False}
    wanted |= {"reward_clipping": False, "repeat_action_probability": 0.25, "full_action_space": False}
    wanted |= {"max_num_frames_per_episode": 108_000}
    assert {name: options[name] for name in wanted} == wanted


def saved(games: Atari) -> dict[str, np.ndarray]:
    """Return the state of games after writing it to a file and reading it back."""
    file = io.BytesIO()
    np.savez(file, **games.state())  # type: ignore[arg-type]
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return dict(loaded)


@pytest.mark.parametrize(
    ("game", "sticky"),
    [("space_invaders", 0.25), ("tic_tac_toe_3d", 0.0)],  # restored from only an ALEState, the second would diverge
)
def test_loaded_games_continue_as_if_uninterrupted(game: str, sticky: float) -> None:
    max_frames, steps = 201, 130  # an episode has at most 51 steps
    games, generator = Atari(game, 2, sticky, max_frames), np.random.default_rng(0)
    games.reset([7, 8])
    actions, states, expected = generator.integers(games.actions, size=(steps, 2)), {}, []
    for t in range(steps):
        if t in (0, 15, 61):
            states[t] = saved(games)
        expected.append(stepped(games, actions[t]))
    end = saved(games)
    games.close()
    assert sum(len(step.episodes) for step in expected[61:]) >= 2
    for start, state in states.items():
        loaded = Atari(game, 2, sticky, max_frames)
        loaded.reset([1, 2])
        loaded.load_state(state)
        for t in range(start, steps):
            assert_same_step(stepped(loaded, actions[t]), expected[t], (start, t))
        again = saved(loaded)
        loaded.close()
        assert again.keys() == end.keys()
        for name in end:
            np.testing.assert_array_equal(again[name], end[name], f"{name} {start}")


def test_a_life_lost_in_the_first_step_of_loaded_games_counts() -> None:
    games, loaded = Atari("breakout", 1), Atari("breakout", 1)
    games.reset([0])
    for _ in range(200):
        state, step = games.state(), stepped(games, np.ones(1, np.int64))
        if step.lost[0]:
            break
    loaded.load_state(state)
    assert stepped(loaded, np.ones(1, np.int64)).lost[0]
    for one in (games, loaded):
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_loaded_games_of_the_paper_continue_as_if_uninterrupted(game: str) -> None:
    games, generator = Atari(game, 2), np.random.default_rng(1)
    games.reset([7, 8])
    for _ in range(1500):
        stepped(games, generator.integers(games.actions, size=2))
    loaded = Atari(game, 2)
    loaded.load_state(saved(games))
    ended = 0
    for t in range(4000):
        actions = generator.integers(games.actions, size=2)
        step = stepped(games, actions)
        assert_same_step(stepped(loaded, actions), step, t)
        ended += len(step.episodes)
    assert ended > 0
    for one in (games, loaded):
        one.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": np.array(2)}, "got a state with version 2, expected 1"),
        ({"ale_py": np.array("0.9.0")}, f"got a state with ale_py 0.9.0, expected {ale_py.__version__}"),
        ({"game": np.array("pong")}, "got a state with game pong, expected space_invaders"),
        ({"number": np.array(2)}, "got a state with number 2, expected 1"),
        ({"sticky_action_prob": np.array(0.5)}, "got a state with sticky_action_prob 0.5, expected 0.25"),
        ({"max_frames": np.array(800)}, "got a state with max_frames 800, expected 400"),
        ({"version": None}, "got a state with version None, expected 1"),
        ({"checksum": None}, "the state is damaged"),
        ({"0/actions": np.array([1, 2, 3], np.uint8)}, "the state is damaged"),
        ({"0/before": np.zeros(9, np.uint8)}, "the state is damaged"),
        ({"0/now": None}, "the state is damaged"),
    ],
)
def test_an_incompatible_state_raises_an_error(changed: dict[str, Any], message: str) -> None:
    games = Atari("space_invaders", 1, 0.25, 400)
    games.reset([1])
    stepped(games, np.array([2]))
    state = {name: array for name, array in {**games.state(), **changed}.items() if array is not None}
    before = games.state()
    with pytest.raises(ValueError, match=message):
        games.load_state(state)
    np.testing.assert_array_equal(games.state()["checksum"], before["checksum"])  # unchanged
    games.close()


def test_a_replay_that_reaches_another_state_raises_an_error() -> None:
    games = Atari("space_invaders", 1, 0.0, 400)
    games.reset([1])
    for _ in range(3):
        stepped(games, np.array([2]))
    state = games.state()
    state["0/actions"] = state["0/actions"][:-1]
    del state["checksum"]
    state["checksum"] = checksum(state)
    with pytest.raises(ValueError, match="the saved actions lead to another state of the game"):
        games.load_state(state)
    games.close()


@pytest.mark.parametrize(
    ("lives", "lost"),
    [
        pytest.param([3, 2, 2, 1], [True, False, True], id="lost"),
        pytest.param([3, 4, 4, 3], [False, False, True], id="won"),  # as in Demon Attack
        pytest.param(
            [2, 1, 0, 0], [True, False, False], id="none left, but the game continues"
        ),  # Tianshou names Q*bert
    ],
)
def test_only_a_lost_life_with_lives_left_counts(
    lives: list[int], lost: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(lives)

    class Scripted(ale_py.ALEInterface):
        """The real game with a scripted number of lives."""

        def lives(self) -> int:
            return next(counts)

    monkeypatch.setattr(ale_py, "ALEInterface", Scripted)
    games = Atari("SpaceInvaders", 1)
    games.reset([0])
    steps = [stepped(games, np.zeros(1, np.int64)) for _ in lost]
    games.close()
    assert not any(step.terminated[0] or step.truncated[0] for step in steps)
    assert [bool(step.lost[0]) for step in steps] == lost


def test_a_truncated_game_returns_its_last_frame() -> None:
    whole, cut = Atari("SpaceInvaders", 1), Atari("SpaceInvaders", 1, max_frames=200)
    np.testing.assert_array_equal(whole.reset([5]), cut.reset([5]))
    generator, total = np.random.default_rng(0), 0.0
    for _ in range(60):
        actions = generator.integers(6, size=1)
        untruncated, step = stepped(whole, actions), stepped(cut, actions)
        total += step.rewards[0]
        if step.truncated[0]:
            break
        np.testing.assert_array_equal(step.frames, untruncated.frames)
        np.testing.assert_array_equal(step.final, untruncated.frames)
    assert step.truncated[0]
    assert not step.terminated[0]
    assert not step.lost[0]
    assert not untruncated.truncated[0]
    assert (step.final != untruncated.frames).mean() < 0.01  # a few pixels flicker where the emulator stops
    assert (step.frames != step.final).mean() > 0.1  # the first frame of the next episode
    assert step.episodes == [(total, 50)]
    for games in (whole, cut):
        games.close()


def test_games_step_while_updates_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step, started, may_end = _Game.step, threading.Event(), threading.Event()

    def slow(self: _Game, *arguments: Any) -> Any:
        started.set()
        assert may_end.wait(10)
        return step(self, *arguments)

    monkeypatch.setattr(_Game, "step", slow)
    before = set(threading.enumerate())
    games = Atari("SpaceInvaders", 2)
    games.reset([0, 1])
    games.send(np.zeros(2, np.int64))
    assert started.wait(10)  # before `receive`
    may_end.set()
    games.receive()
    games.close()
    assert set(threading.enumerate()) <= before


def test_receive_interrupts_the_pauses_between_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "PAUSE", 60.0)
    games = Atari("SpaceInvaders", 2)
    games.reset([0, 1])
    for _ in range(2):
        games.send(np.zeros(2, np.int64))
        games.receive()
    games.close()


def test_an_error_of_a_step_is_raised_when_it_is_received() -> None:
    games = Atari("SpaceInvaders", 1)
    games.reset([0])
    games.send(np.array([6]))
    with pytest.raises(IndexError):
        games.receive()
    games.close()


@pytest.mark.parametrize("height", [210, 250])
def test_resizing_keeps_constant_screens_and_takes_the_maximum(height: int) -> None:
    areas, frame = (*_areas(height, SIZE), *_areas(160, SIZE)), np.empty((SIZE, SIZE), np.uint8)
    for value in (0, 1, 77, 254, 255):
        screens = np.zeros((2, height, 160), np.uint8)
        screens[value % 2] = value
        _pool_and_resize(screens, frame, *areas)
        assert (frame == value).all()
        assert (screens[0] == value).all()
