"""Environments: several games of Atari or MinAtar in parallel, with frames of uint8.

`send` starts a step of all environments and `receive` finishes it. Atari's games run on their own thread in between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from weightclip._validation import check_name

if TYPE_CHECKING:
    from weightclip.lab.checkpoint import Arrays  # imports PyTorch, which configurations do not need

Frames = NDArray[np.uint8]
Bools = NDArray[np.bool_]

SUITES = ("atari", "minatar")
FRAME_SKIP = {"atari": 4, "minatar": 1}
"""Frames per environment step."""

STACK = {"atari": 4, "minatar": 1}
"""Frames per state."""

PAPER_GAMES = {
    "asterix": "Asterix",
    "beam_rider": "Beam Rider",
    "demon_attack": "Demon Attack",
    "ice_hockey": "Ice Hockey",
    "jamesbond": "James Bond",
    "seaquest": "Seaquest",
    "space_invaders": "Space Invaders",
    "yars_revenge": "Yars' Revenge",
}
"""The paper's Atari games -> their titles."""

MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")

MAX_FRAMES = 108_000
"""Frames after which an Atari episode is truncated."""


@dataclass(frozen=True)
class Step:
    """The result of a step of all environments; a new game starts where one ended.

    Args:
        frames: [e, channels, height, width]; the first frame of the next episode where one ended.
        rewards: [e], not clipped.
        lost: [e], whether a life was lost and another one is left.
        terminated, truncated: [e], whether the game was terminated or truncated.
        final: [e, channels, height, width], the last frame of an episode that ended; otherwise equal to `frames`.
        episodes: return and length in steps of each episode that ended.
    """

    frames: Frames
    rewards: NDArray[np.float64]
    lost: Bools
    terminated: Bools
    truncated: Bools
    final: Frames
    episodes: list[tuple[float, int]]


class Environments(Protocol):
    """Several environments of one game."""

    actions: int
    frame: tuple[int, int, int]

    def reset(self, seeds: Sequence[int]) -> Frames:
        """Start new games and return the first frames [e, channels, height, width]."""
        ...

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step with actions [e]."""
        ...

    def receive(self) -> Step:
        """Finish the step and return its result."""
        ...

    def state(self) -> Arrays:
        """The state of all games between two steps; empty if they cannot be saved."""
        ...

    def load_state(self, state: Arrays) -> None:
        """Restore a `state` that is not empty. A ValueError names an incompatible one."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


def game_name(game: str) -> str:
    """The name of a game, in the spelling of both suites.

    Examples:
        >>> game_name("SpaceInvaders"), game_name("space_invaders"), game_name("Yars' Revenge"), game_name("James Bond")
        ('space_invaders', 'space_invaders', 'yars_revenge', 'jamesbond')
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[ -]", "_", re.sub("['’]", "", game)).replace("__", "_").lower()
    # Two words in the paper can be one word in the suites.
    return {paper.replace("_", ""): paper for paper in PAPER_GAMES}.get(name.replace("_", ""), name)


def suite_name(suite: str, game: str) -> str:
    """The name of a game in its suite; unchanged if the suite is not installed."""
    name = game_name(game)
    with suppress(ImportError):
        # Two words elsewhere (RiverRaid) can be one word here.
        return {one.replace("_", ""): one for one in _games_of(suite)}.get(name.replace("_", ""), name)
    return name


def find_game(suite: str, game: str) -> str:
    """The name of a game. If the suite does not have it, raise a ValueError that suggests the nearest name."""
    return check_name("game", suite_name(suite, game), _games_of(suite))


@cache
def _games_of(suite: str) -> tuple[str, ...]:
    if suite == "minatar":
        return MINATAR_GAMES
    from ale_py.roms import get_all_rom_ids

    return tuple(sorted(get_all_rom_ids()))


class Scores:
    """Returns and lengths of the unfinished episodes."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def reset(self) -> None:
        self._returns[:] = 0.0
        self._lengths[:] = 0

    def state(self) -> Arrays:
        return {"returns": self._returns.copy(), "lengths": self._lengths.copy()}

    def load_state(self, state: Arrays) -> None:
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]

    def add(self, rewards: NDArray[np.float64], over: Bools) -> list[tuple[float, int]]:
        """Add a step and return the return and length of each episode that ended."""
        self._returns += rewards
        self._lengths += 1
        ended = [(float(self._returns[i]), int(self._lengths[i])) for i in np.flatnonzero(over)]
        self._returns[over] = 0.0
        self._lengths[over] = 0
        return ended
