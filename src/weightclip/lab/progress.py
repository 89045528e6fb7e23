"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

SECONDS_BETWEEN_LINES = 10.0


class Display(Protocol):
    """Shows the progress of runs of equal length, one after the other, or some of them together."""

    def begin(self, name: str, together: int = 1) -> None: ...

    def update(self, steps: int, score: float) -> None: ...

    def say(self, line: str) -> None: ...


@contextmanager
def display(
    runs: int, steps: int, unit: str, shown: Callable[[float], str], clock: Callable[[], float] = time.monotonic
) -> Iterator[Display]:
    """The display that suits stdout, for a number of runs of so many steps; `shown` puts a score into words."""
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines(_Estimate(runs, steps, unit, clock), shown, clock)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    # Drawing competes with learning for Python's lock.
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield _Bar(progress, _Estimate(runs, steps, unit, clock), shown)


class _Estimate:
    """The steps done in all runs, the speed, and the time left, not counting what was done before."""

    def __init__(self, runs: int, steps: int, unit: str, clock: Callable[[], float]) -> None:
        self.steps = steps
        self.unit = unit
        self.total = runs * steps
        self._clock = clock
        self._finished = 0
        self.together = 0
        self._learned = 0
        self._seconds = 0.0
        self._last: tuple[int, float] | None = None

    def begin(self, together: int) -> None:
        self._finished += self.together
        self.together = together
        self._last = None

    def update(self, samples: int) -> None:
        now = self._clock()
        if self._last is not None:
            self._learned += self.together * (samples - self._last[0])
            self._seconds += now - self._last[1]
        self._last = samples, now

    @property
    def done(self) -> int:
        return self._finished * self.steps + self.together * (self._last[0] if self._last else 0)

    @property
    def outlook(self) -> str:
        """`5,000 samples/s, 1:23 left`, of all runs that go together; empty as long as nobody knows."""
        if not self._learned or not self._seconds:
            return ""
        speed = self._learned / self._seconds
        together = " together" if self.together > 1 else ""
        return f"{speed:,.0f} {self.unit}/s{together}, {duration((self.total - self.done) / speed)} left"


def duration(seconds: float) -> str:
    """`1:23`, `2:03:04`, `1 d 2:03:04`.

    Examples:
        >>> duration(83), duration(93784)
        ('1:23', '1 d 2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not days and not hours:
        return f"{minutes}:{rest:02}"
    return f"{days} d {hours}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


class _Bar:
    def __init__(self, progress: Progress, estimate: _Estimate, shown: Callable[[float], str]) -> None:
        self._progress, self._estimate, self._shown = progress, estimate, shown
        self._bar = progress.add_task("", total=estimate.total, state="")

    def begin(self, name: str, together: int = 1) -> None:
        self._estimate.begin(together)
        self._progress.update(self._bar, description=name, completed=self._estimate.done)

    def update(self, steps: int, score: float) -> None:
        self._estimate.update(steps)
        state = f"{self._shown(score)}  {self._estimate.outlook}"
        self._progress.update(self._bar, completed=self._estimate.done, state=state)

    def say(self, line: str) -> None:
        self._progress.console.print(Text(line), soft_wrap=True)


class _Lines:
    def __init__(self, estimate: _Estimate, shown: Callable[[float], str], clock: Callable[[], float]) -> None:
        self._estimate, self._shown, self._clock = estimate, shown, clock
        self._name = ""
        self._next = clock() + SECONDS_BETWEEN_LINES

    def begin(self, name: str, together: int = 1) -> None:
        self._estimate.begin(together)
        self._name = name

    def update(self, steps: int, score: float) -> None:
        self._estimate.update(steps)
        if self._clock() >= self._next:
            self._next = self._clock() + SECONDS_BETWEEN_LINES
            done = f"{self._name}: {steps:,} of {self._estimate.steps:,} {self._estimate.unit}"
            each = " each" if self._estimate.together > 1 else ""
            parts = (done + each, self._shown(score), self._estimate.outlook)
            self.say(", ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        print(line, flush=True)
