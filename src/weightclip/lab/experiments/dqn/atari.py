"""Atari games whose state can be saved, with the frames of ale-py's `AtariVectorEnv`.

`AtariVectorEnv` cannot save its state. This module has the same preprocessing on `ALEInterface`, which can. Frames,
rewards, lives and ends of episodes are the same bit for bit.

An `ALEState` has the registers and the memory of the console, but not the position of the objects that it is drawing or
the lines drawn so far. The first frames after loading one can differ, and some games (tic_tac_toe_3d) then take another
course. A reset of the game clears this hidden state. A saved state is therefore the `ALEState` before the last reset
with the actions since then, and loading it replays the episode.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import ale_py
import numpy as np
from ale_py.roms import get_rom_path
from numba import njit
from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays, checksum
from weightclip.lab.experiments.dqn.environments import (
    FRAME_SKIP,
    MAX_FRAMES,
    Frames,
    Scores,
    Step,
    find_game,
)

SIZE = 84
"""Height and width of a frame."""

NOOP_MAX = 30
"""An episode starts with fewer no-op actions than this."""

PAUSE = 0.001
"""Seconds between the steps of two games while updates run."""

_FORMAT = 1
_NOOP, _FIRE = ale_py.Action.NOOP.value, ale_py.Action.FIRE.value

Floats = NDArray[np.float32]
Indices = NDArray[np.uint64]


class Atari:
    """Atari with the usual preprocessing: 84x84 grayscale, frame skip 4, maximum of the last two frames, no-op starts.

    The games step on their own thread while updates run. An emulator holds Python's global lock for each frame, so the
    thread pauses between two games to leave it to the updates. `receive` ends the pauses.

    Args:
        game, num_envs, sticky_action_prob: see `training.make_environments`.
        max_frames: frames after which an episode is truncated.
    """

    def __init__(self, game: str, num_envs: int, sticky_action_prob: float = 0.0, max_frames: int = MAX_FRAMES) -> None:
        name = find_game("atari", game)
        self._games = [_Game(name, sticky_action_prob, max_frames) for _ in range(num_envs)]
        self.actions = self._games[0].actions
        self.frame = (1, SIZE, SIZE)
        self._setup: Arrays = {
            "version": np.array(_FORMAT),
            "ale_py": np.array(ale_py.__version__),
            "game": np.array(name),
            "number": np.array(num_envs),
            "sticky_action_prob": np.array(sticky_action_prob),
            "max_frames": np.array(max_frames),
        }
        self._lives = np.zeros(num_envs, np.int64)
        self._scores = Scores(num_envs)
        self._thread = ThreadPoolExecutor(1, "atari")
        self._awaited = Event()
        self._pending: Future[Step] | None = None

    def reset(self, seeds: Sequence[int]) -> Frames:
        frames = self._new_frames()
        for game, seed, frame in zip(self._games, seeds, frames, strict=True):
            game.seed(seed)
            game.start(frame[0])
        self._lives[:] = [game.lives for game in self._games]
        self._scores.reset()
        return frames

    def send(self, actions: NDArray[np.int64]) -> None:
        self._awaited.clear()
        self._pending = self._thread.submit(self._step, actions.tolist())

    def receive(self) -> Step:
        assert self._pending is not None, "receive finishes a step that send started"
        self._awaited.set()
        return self._pending.result()

    def _step(self, actions: Sequence[int]) -> Step:
        """Step all games and restart the games that ended."""
        num_envs = len(self._games)
        frames, rewards = self._new_frames(), np.empty(num_envs)
        terminated, truncated = np.empty(num_envs, bool), np.empty(num_envs, bool)
        for i, (game, action) in enumerate(zip(self._games, actions, strict=True)):
            self._awaited.wait(PAUSE)
            rewards[i], terminated[i], truncated[i] = game.step(action, frames[i, 0])
        over = terminated | truncated
        final = frames.copy() if over.any() else frames
        for k in np.flatnonzero(over).tolist():
            self._games[k].start(frames[k, 0])
        lives = np.array([game.lives for game in self._games])
        # As in Tianshou's EpisodicLifeEnv: with no life left, the end of the game ends the episode.
        lost = (lives > 0) & (lives < self._lives) & ~over
        self._lives = lives
        return Step(frames, rewards, lost, terminated, truncated, final, self._scores.add(rewards, over))

    def _new_frames(self) -> Frames:
        return np.empty((len(self._games), *self.frame), np.uint8)

    def state(self) -> Arrays:
        """The setup, the unfinished episodes and their scores, with a checksum; see `_Game.state`."""
        found = {**self._setup, **self._scores.state()}
        for i, game in enumerate(self._games):
            found |= {f"{i}/{name}": array for name, array in game.state().items()}
        return {**found, "checksum": checksum(found)}

    def load_state(self, state: Arrays) -> None:
        """Restore a `state` by replaying the unfinished episodes, some 0.4 ms for each step on one core.

        After a ValueError because of the replay, `reset` the games.
        """
        for name, expected in self._setup.items():
            got = state.get(name)
            if got is None or not np.array_equal(got, expected):
                raise ValueError(f"environment: got a state with {name} {got}, expected {expected}")
        content = {name: array for name, array in state.items() if name != "checksum"}
        if not np.array_equal(state.get("checksum", ()), checksum(content)):
            raise ValueError("environment: the state is damaged")
        for i, game in enumerate(self._games):
            prefix = f"{i}/"
            game.load_state({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
        self._lives[:] = [game.lives for game in self._games]
        self._scores.load_state(state)

    def close(self) -> None:
        self._awaited.set()
        self._thread.shutdown()
        self._games.clear()


class _Game:
    """One game, with the preprocessing of `AtariVectorEnv` (ale-py 0.12, src/ale/vector/preprocessed_env.cpp).

    Args:
        name, sticky_action_prob, max_frames: see `Atari`.
    """

    def __init__(self, name: str, sticky_action_prob: float, max_frames: int) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._rom, self._max_frames = str(get_rom_path(name)), max_frames
        self._emulator = ale_py.ALEInterface()
        self._emulator.setFloat("repeat_action_probability", sticky_action_prob)
        self._emulator.loadROM(self._rom)
        self._codes = [action.value for action in self._emulator.getMinimalActionSet()]
        self.actions = len(self._codes)
        height, width = self._emulator.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._areas = (*_areas(height, SIZE), *_areas(width, SIZE))
        self.lives = 0

    def seed(self, seed: int) -> None:
        """Seed the sticky actions and the numbers of no-op actions. The two generators are separate."""
        self._emulator.setInt("random_seed", seed)
        self._emulator.loadROM(self._rom)
        self._seed, self._episode, self._noops = seed, 0, np.random.RandomState(seed)

    def start(self, frame: Frames) -> None:
        """Start an episode and write its first frame [height, width]."""
        emulator, has_fire = self._emulator, _FIRE in self._codes
        self._before, self._taken, self._frames = emulator.cloneState(include_rng=True), bytearray(), 0
        self._episode += 1
        emulator.reset_game()
        if has_fire:
            emulator.act(_FIRE)
        for _ in range(_draw_noops(self._noops) - has_fire):
            emulator.act(_NOOP)
            if emulator.game_over():
                emulator.reset_game()
        emulator.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0
        _pool_and_resize(self._screens, frame, *self._areas)
        self.lives = emulator.lives()

    def step(self, action: int, frame: Frames) -> tuple[int, bool, bool]:
        """Step the game, write the frame [height, width], and return the reward, terminated and truncated."""
        emulator, code, reward = self._emulator, self._codes[action], 0
        self._taken.append(action)
        for left in reversed(range(FRAME_SKIP["atari"])):
            reward += emulator.act(code)
            self._frames += 1
            terminated, over_limit = emulator.game_over(), self._frames >= self._max_frames
            if terminated or over_limit:
                break  # the screen of this frame is not read, and earlier ones remain
            if left < len(self._screens):
                emulator.getScreenGrayscale(self._screens[left])
        _pool_and_resize(self._screens, frame, *self._areas)
        self.lives = emulator.lives()
        return reward, terminated, over_limit and not terminated

    def state(self) -> Arrays:
        """The state before the last reset, the actions since then, and the state that they lead to."""
        return {
            "seed": np.array(self._seed),
            "episode": np.array(self._episode),
            "before": np.frombuffer(self._before.serialize(), np.uint8),
            "actions": np.frombuffer(bytes(self._taken), np.uint8),
            "now": self._digest(),
        }

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`. A ValueError says that the actions lead to another one."""
        frame = np.empty((SIZE, SIZE), np.uint8)
        self.seed(int(state["seed"]))
        self._episode = int(state["episode"]) - 1
        for _ in range(self._episode):
            _draw_noops(self._noops)
        self._emulator.restoreState(ale_py.ALEState(state["before"].tobytes()))
        self.start(frame)
        for action in state["actions"].tolist():
            self.step(action, frame)
        if not np.array_equal(self._digest(), state["now"]):
            raise ValueError("environment: the saved actions lead to another state of the game")

    def _digest(self) -> NDArray[np.uint8]:
        return _digest(self._emulator.cloneState(include_rng=True).serialize())


def _digest(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(content).digest(), np.uint8)


def _draw_noops(generator: np.random.RandomState) -> int:
    """A number of no-op actions, as `std::uniform_int_distribution` of libstdc++ draws it from `std::mt19937`.

    Examples:
        >>> [_draw_noops(np.random.RandomState(seed)) for seed in (3, 4, 5)]
        [16, 29, 6]
    """
    while True:
        product = int(generator.randint(0, 1 << 32, dtype=np.uint32)) * NOOP_MAX
        if product % (1 << 32) >= (1 << 32) % NOOP_MAX:  # each number is equally likely
            return product >> 32


def _areas(source: int, size: int) -> tuple[Indices, Floats]:
    """Area interpolation in one direction, as OpenCV's INTER_AREA rounds it.

    Returns the first source pixel of each pixel, [size], and the weights of this one and the next, [size, k].

    Examples:
        >>> first, weights = _areas(5, 2)
        >>> first.tolist(), weights.astype(float).round(2).tolist()
        ([0, 2], [[0.4, 0.4, 0.2, 0.0], [0.2, 0.4, 0.4, 0.0]])
    """
    scale = 1 / (size / source)
    first, weights = np.empty(size, np.uint64), np.zeros((size, math.ceil(scale) + 1), np.float32)
    for i in range(size):
        low, high = i * scale, i * scale + scale
        width = min(scale, source - low)
        end = min(math.floor(high), source - 1)
        start = min(math.ceil(low), end)
        row = [1 / width] * (end - start)
        if high - end > 0.001:
            row.append(min(high - end, 1.0, width) / width)
        if start - low > 0.001:
            start -= 1
            row.insert(0, (start + 1 - low) / width)
        first[i], weights[i, : len(row)] = start, row
    return first, weights


@njit(cache=True, nogil=True)
def _pool_and_resize(
    screens: Frames, frame: Frames, tops: Indices, row_weights: Floats, lefts: Indices, column_weights: Floats
) -> None:
    """Replace the first of two screens [2, height, width] by their maximum and resize it to the frame.

    The order of the sums is that of OpenCV, so that they round alike: columns first, then rows.
    """
    width, size = screens.shape[2], len(lefts)
    line = np.zeros(width + 2, np.float32)
    narrow, total = np.empty(size, np.float32), np.empty(size, np.float32)
    done = np.int64(-1)
    for y in range(len(tops)):
        for k in range(row_weights.shape[1]):
            row, weight = np.int64(tops[y]) + k, row_weights[y, k]
            if weight == 0:
                break
            if row != done:  # two rows of the frame can share one of the screen
                done = row
                for x in range(width):
                    screens[0, row, x] = max(screens[0, row, x], screens[1, row, x])
                    line[x] = screens[0, row, x]
                for x in range(size):  # at most three columns; their loop, unrolled
                    left = lefts[x]
                    narrow[x] = (
                        line[left] * column_weights[x, 0]
                        + line[left + np.uint64(1)] * column_weights[x, 1]
                        + line[left + np.uint64(2)] * column_weights[x, 2]
                    )
            for x in range(size):
                total[x] = weight * narrow[x] if k == 0 else total[x] + weight * narrow[x]
        for x in range(size):
            frame[y, x] = np.uint8(np.rint(total[x]))
