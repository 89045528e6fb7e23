"""Games of MinAtar whose state can be saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays
from weightclip.lab.experiments.dqn.environments import Frames, Scores, Step, find_game


class MinAtar:
    """MinAtar (Young and Tian, 2019): small versions of Atari games, 10x10 with a channel for each type of object.

    Args:
        game, num_envs, sticky_action_prob: see `training.make_environments`.
    """

    def __init__(self, game: str, num_envs: int, sticky_action_prob: float = 0.1) -> None:
        from minatar import Environment  # type: ignore[import-untyped]

        name = find_game("minatar", game)
        self._games: list[Any] = [Environment(name, sticky_action_prob=sticky_action_prob) for _ in range(num_envs)]
        self.actions = int(self._games[0].num_actions())
        height, width, channels = self._games[0].state_shape()
        self.frame = (channels, height, width)
        self._scores = Scores(num_envs)
        self._sent = np.zeros(num_envs, np.int64)

    def reset(self, seeds: Sequence[int]) -> Frames:
        self._scores.reset()
        for game, seed in zip(self._games, seeds, strict=True):
            game.seed(seed)
            game.reset()
        return self._seen()

    def send(self, actions: NDArray[np.int64]) -> None:
        self._sent = actions

    def receive(self) -> Step:
        rewards, over = np.zeros(len(self._games)), np.zeros(len(self._games), bool)
        for i, game in enumerate(self._games):
            rewards[i], over[i] = game.act(int(self._sent[i]))
        final = self._seen()
        for game, ended in zip(self._games, over, strict=True):
            if ended:
                game.reset()
        frames = self._seen() if over.any() else final
        nothing = np.zeros_like(over)
        return Step(frames, rewards, nothing, over, nothing, final, self._scores.add(rewards, over))

    def state(self) -> Arrays:
        games = [_game_state(game) for game in self._games]
        return {"version": np.array(_MINATAR_FORMAT), "games": np.array(json.dumps(games)), **self._scores.state()}

    def load_state(self, state: Arrays) -> None:
        if int(state["version"]) != _MINATAR_FORMAT:
            raise ValueError(f"environment: got a state of format {state['version']}, expected {_MINATAR_FORMAT}")
        for game, saved in zip(self._games, json.loads(str(state["games"])), strict=True):
            _load_game_state(game, saved)
        self._scores.load_state(state)

    def close(self) -> None:
        self._games.clear()

    def _seen(self) -> Frames:
        return np.stack([game.state() for game in self._games]).transpose(0, 3, 1, 2).astype(np.uint8)


_MINATAR_FORMAT = 1
_ARRAY = "array"


def _game_state(game: Any) -> dict[str, Any]:
    """The state of a MinAtar game as JSON: the attributes of the game, the last action, and the shared generator."""
    attributes = {name: value for name, value in vars(game.env).items() if name != "random"}
    name, keys, *rest = game.random.get_state()
    return {
        "attributes": json.loads(json.dumps(attributes, default=_as_json)),
        "last_action": int(game.last_action),
        "generator": [name, keys.tolist(), *rest],
    }


def _load_game_state(game: Any, saved: dict[str, Any]) -> None:
    """Restore a `_game_state`."""
    game.seed(0)  # a generator that both levels of the game share
    name, keys, *rest = saved["generator"]
    game.random.set_state((name, np.array(keys, np.uint32), *rest))
    game.last_action = saved["last_action"]
    for name, value in saved["attributes"].items():
        is_array = isinstance(value, dict) and _ARRAY in value
        setattr(game.env, name, np.array(value[_ARRAY], value["dtype"]) if is_array else value)


def _as_json(value: Any) -> Any:
    """Arrays and NumPy's scalars, for `json.dumps`."""
    if isinstance(value, np.ndarray):
        return {_ARRAY: value.tolist(), "dtype": value.dtype.str}
    return value.item()
