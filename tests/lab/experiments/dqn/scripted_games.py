"""Scripted games with known rewards, terminations and frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weightclip.lab.experiments.dqn.environments import Step


@dataclass(frozen=True)
class Event:
    """One step of a game."""

    reward: float = 0.0
    lost: bool = False
    terminated: bool = False
    truncated: bool = False


class Scripted:
    """Games that repeat a script; the frames encode the game's index, episode and step.

    Args:
        scripts: the events of each game.
        first_episode: number of the first episode.
        constant: always show the same frame.
    """

    actions, frame = 3, (1, 10, 10)

    def __init__(self, *scripts: Sequence[Event], first_episode: int = 0, constant: bool = False) -> None:
        self._scripts, self._first_episode, self._constant = scripts, first_episode, constant
        self.sent: list[list[int]] = []

    def reset(self, seeds: Sequence[int]) -> Any:
        assert len(seeds) == len(self._scripts)
        self._episode = [self._first_episode] * len(self._scripts)
        self._step = [0] * len(self._scripts)
        return self._frames()

    def send(self, actions: Any) -> None:
        assert actions.shape == (len(self._scripts),)
        self.sent.append(actions.tolist())

    def receive(self) -> Step:
        events = [script[at] for script, at in zip(self._scripts, self._step)]
        self._step = [at + 1 for at in self._step]
        final = self._frames()
        for e, event in enumerate(events):
            if event.terminated or event.truncated:
                self._episode[e] += 1
                self._step[e] = 0
        lost, terminated, truncated = (
            np.array([getattr(event, name) for event in events]) for name in ("lost", "terminated", "truncated")
        )
        rewards = np.array([event.reward for event in events])
        return Step(self._frames(), rewards, lost, terminated, truncated, final, [])

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        raise AssertionError

    def close(self) -> None:
        pass

    def _frames(self) -> Any:
        frames = np.zeros((len(self._scripts), *self.frame), np.uint8)
        for e, numbers in enumerate(zip(self._episode, self._step)):
            frames[e, 0, 0, :3] = (1, 1, 1) if self._constant else (e, *numbers)
        return frames


def places(states: Any) -> list[tuple[int, ...]]:
    """Return the game, episode and step encoded in each frame."""
    return [tuple(state[0, 0, :3].tolist()) for state in states]
