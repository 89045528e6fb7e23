"""The interface of the two backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays
from weightclip.lab.experiments.streaming.problem import Task

Progress = Callable[[int, float], None]
"""Called periodically within a task with the number of steps done and the accuracy so far."""


def no_progress(steps: int, accuracy: float) -> None:
    """Ignore progress."""


class Learner(Protocol):
    """Trains a network one sample at a time.

    `learn` trains on one task and returns the mean of each metric over its steps, by the names in `METRICS`. `state`
    is everything that `load_state` needs to resume bit for bit. `weights` are the current parameters, in the order of
    `model.parameters()`.
    """

    def learn(self, task: Task, progress: Progress = no_progress) -> dict[str, float]: ...

    def weights(self) -> list[NDArray[Any]]: ...

    def state(self) -> Arrays: ...

    def load_state(self, state: Arrays) -> None: ...
