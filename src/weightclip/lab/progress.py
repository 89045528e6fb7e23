"""Display of the progress of runs: a bar on a terminal or in a notebook, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from weightclip.lab.text import clock_text

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_UPDATES = 0.5
"""Seconds between updates in a notebook."""

BAR_WIDTH = 20


class ProgressDisplay(Protocol):
    """Displays the progress of runs of equal length, which are executed sequentially or in lockstep."""

    def begin(self, name: str, runs_in_lockstep: int = 1) -> None: ...

    def update(self, steps: int, score: float) -> None: ...

    def say(self, line: str) -> None: ...


@contextmanager
def show_progress(
    runs: int,
    steps: int,
    unit: str,
    format_score: Callable[[float], str],
    clock: Callable[[], float] = time.monotonic,
    enabled: bool = True,
) -> Iterator[ProgressDisplay]:
    """A display that suits stdout: a bar on a terminal or in a notebook, otherwise a line every ten seconds.

    Args:
        runs: number of runs.
        steps: number of steps of each run.
        unit: unit of the steps, such as "samples".
        format_score: formats a score.
        clock: returns the time in seconds.
        enabled: whether to display anything.
    """
    estimate = _Estimate(runs, steps, unit, clock)
    if not enabled:
        yield _Nothing()
    elif in_notebook():
        yield _Notebook(estimate, format_score, clock)
    elif (console := Console()).is_terminal and not console.is_dumb_terminal:
        yield from _on_terminal(console, estimate, format_score)
    else:
        yield _Lines(estimate, format_score, clock)


def in_notebook() -> bool:
    """Whether this process is the kernel of a Jupyter notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def _on_terminal(
    console: Console, estimate: _Estimate, format_score: Callable[[float], str]
) -> Iterator[ProgressDisplay]:
    # On a narrow terminal the first and last columns are shortened.
    fixed = Column(no_wrap=True)
    columns = (
        _Shortened("description"),
        BarColumn(bar_width=12, table_column=fixed),
        TaskProgressColumn(table_column=fixed),
        TextColumn("{task.fields[left]}", markup=False, table_column=fixed),
        _Shortened("state"),
    )
    # Drawing competes with training for the global interpreter lock.
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        bar = _Bar(progress, estimate, format_score)
        yield bar
        bar.end()


class _Shortened(ProgressColumn):
    """A field of the task, truncated to the available width."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def render(self, task: Task) -> Text:
        value = task.description if self._name == "description" else task.fields[self._name]
        return Text(value, no_wrap=True, overflow="ellipsis")


class _Estimate:
    """The finished steps of all runs, the speed and the remaining time. The speed ignores steps before a resumption."""

    def __init__(self, runs: int, steps: int, unit: str, clock: Callable[[], float]) -> None:
        self.steps = steps
        self.unit = unit
        self.total = runs * steps
        self._clock = clock
        self._finished = 0
        self.runs_in_lockstep = 0
        self._timed_steps = 0
        self._seconds = 0.0
        self._last: tuple[int, float] | None = None

    def begin(self, runs_in_lockstep: int) -> None:
        self._finished += self.runs_in_lockstep
        self.runs_in_lockstep = runs_in_lockstep
        self._last = None

    def update(self, samples: int) -> None:
        now = self._clock()
        if self._last is not None:
            self._timed_steps += self.runs_in_lockstep * (samples - self._last[0])
            self._seconds += now - self._last[1]
        self._last = samples, now

    @property
    def done(self) -> int:
        return self._finished * self.steps + self.runs_in_lockstep * (self._last[0] if self._last else 0)

    @property
    def _per_second(self) -> float:
        return self._timed_steps / self._seconds if self._seconds else 0.0

    @property
    def speed(self) -> str:
        """`5,000 samples/s`, summed over runs in lockstep; empty until known."""
        suffix = " together" if self.runs_in_lockstep > 1 else ""
        return f"{self._per_second:,.0f} {self.unit}/s{suffix}" if self._per_second else ""

    @property
    def time_left(self) -> str:
        """`1:23 left`; empty until known, and at the end."""
        if not self._per_second or self.done == self.total:
            return ""
        return f"{clock_text((self.total - self.done) / self._per_second)} left"


class _Bar:
    def __init__(self, progress: Progress, estimate: _Estimate, format_score: Callable[[float], str]) -> None:
        self._progress, self._estimate, self._format_score = progress, estimate, format_score
        self._bar = progress.add_task("", total=estimate.total, state="", left="", visible=False)

    def begin(self, name: str, runs_in_lockstep: int = 1) -> None:
        self._estimate.begin(runs_in_lockstep)
        self._progress.update(self._bar, description=name, completed=self._estimate.done)

    def update(self, steps: int, score: float) -> None:
        self._estimate.update(steps)
        self._progress.update(
            self._bar,
            completed=self._estimate.done,
            left=self._estimate.time_left,
            state=", ".join(filter(None, (self._format_score(score), self._estimate.speed))),
            visible=True,  # no bar for runs that were finished earlier
        )

    def end(self) -> None:
        """Clear the remaining time."""
        self._progress.update(self._bar, left="")

    def say(self, line: str) -> None:
        self._progress.console.print(Text(line), soft_wrap=True)


class _Lines:
    def __init__(self, estimate: _Estimate, format_score: Callable[[float], str], clock: Callable[[], float]) -> None:
        self._estimate, self._format_score, self._clock = estimate, format_score, clock
        self._name = ""
        self._ended = False
        self._next = clock() + self._seconds_between

    _seconds_between = SECONDS_BETWEEN_LINES

    def begin(self, name: str, runs_in_lockstep: int = 1) -> None:
        self._estimate.begin(runs_in_lockstep)
        self._name = name

    def update(self, steps: int, score: float) -> None:
        self._estimate.update(steps)
        ended = self._estimate.done == self._estimate.total
        if self._clock() >= self._next or (ended and not self._ended):
            self._ended = ended
            self._next = self._clock() + self._seconds_between
            done = f"{self._name}: {steps:,} of {self._estimate.steps:,} {self._estimate.unit}"
            each = " each" if self._estimate.runs_in_lockstep > 1 else ""
            parts = (done + each, self._format_score(score), self._estimate.speed, self._estimate.time_left)
            self._show(", ".join(filter(None, parts)))

    def _show(self, line: str) -> None:
        self.say(line)

    def say(self, line: str) -> None:
        print(line, flush=True)


class _Notebook(_Lines):
    """One line that is updated in place."""

    _seconds_between = SECONDS_BETWEEN_UPDATES

    def __init__(self, estimate: _Estimate, format_score: Callable[[float], str], clock: Callable[[], float]) -> None:
        super().__init__(estimate, format_score, clock)
        self._line: Any = None

    def _show(self, line: str) -> None:
        ipython: Any = sys.modules["IPython"]
        done = self._estimate.done / max(1, self._estimate.total)
        filled = round(BAR_WIDTH * done)
        output = ipython.display.Pretty(f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {done:4.0%}  {line}")
        if self._line is None:
            self._line = ipython.display.display(output, display_id=True)
        else:
            self._line.update(output)


class _Nothing:
    def begin(self, name: str, runs_in_lockstep: int = 1) -> None: ...

    def update(self, steps: int, score: float) -> None: ...

    def say(self, line: str) -> None: ...
