"""What the two engines have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays
from weightclip.lab.experiments.streaming.problem import Task

Progress = Callable[[int, float], None]
"""Called now and then within a task with the steps done in it and its accuracy so far."""


def no_progress(steps: int, accuracy: float) -> None:
    """Tell nobody."""


class Learner(Protocol):
    """A network, its optimizer and remedies, learning one sample after the other.

    `learn` makes one pass over a task and returns the mean of each metric over its steps, by the names of
    `results.metrics`. `state` is all that a later process needs to go on, bit for bit, with `load_state`;
    `weights` are the parameters now, in the order of `model.parameters()`.
    """

    def learn(self, task: Task, progress: Progress = no_progress) -> dict[str, float]: ...

    def weights(self) -> list[NDArray[Any]]: ...

    def state(self) -> Arrays: ...

    def load_state(self, state: Arrays) -> None: ...
