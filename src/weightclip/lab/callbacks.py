"""Callbacks of runs: messages for the user, progress, and new rows of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Event = Callable[[str], None]
"""Called with a message for the user."""

Progress = Callable[[int, float], None]
"""Called periodically with the number of steps done, out of `Experiment.length`, and the score so far."""

Row = dict[str, float]
"""A row of the table: column -> number; NaN if there is none."""

OnRow = Callable[[Any, Row], None]
"""Called with a configuration and each new row of its main table."""


def ignore(*_: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Callbacks of a run: messages for the user, progress, and new rows of the table."""

    on_event: Event = ignore
    on_progress: Progress = ignore
    on_row: OnRow = ignore


NO_CALLBACKS = Callbacks()
