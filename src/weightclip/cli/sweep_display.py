"""How far a sweep is: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from weightclip.cli.progress import SECONDS_BETWEEN_LINES, duration
from weightclip.cli.tables import make_table
from weightclip.lab.sweep.executor import Advanced, Ended, Job, Report, Said, Started
from weightclip.lab.sweep.pace import seconds_left, slowness
from weightclip.lab.sweep.sweep import Inventory

Clock = Callable[[], float]


@dataclass(frozen=True)
class Working:
    """A worker's job: how much of it is done, how much was at the first sign of progress, and when that was."""

    job: Job
    began: float
    done: float = 0.0
    first: float = 0.0

    def advanced(self, done: float, now: float) -> Working:
        if self.done == 0.0:
            return replace(self, done=done, first=done, began=now)
        return replace(self, done=done)


class Tally:
    """Counts of runs by method, and the time left from the speed so far."""

    def __init__(self, inventory: Inventory, seconds: Mapping[str, float], workers: int, clock: Clock) -> None:
        self.methods = list(
            dict.fromkeys(run.method for run in (*inventory.done, *inventory.failed, *inventory.missing))
        )
        self.done = Counter(run.method for run in inventory.done)
        self.failed = Counter(run.method for run in inventory.failed)
        self.left = Counter(run.method for run in inventory.missing)
        self.working: dict[str, Working] = {}
        self.ended = 0
        self.stopped = False
        self._clock, self._workers, self._most = clock, workers, 0
        self._began = clock()
        self._seconds = {run.identity: seconds.get(run.identity, 0.0) for run in inventory.missing}
        self._left = dict(self._seconds)
        self._pieces: list[tuple[float, float]] = []

    def add(self, report: Report) -> None:
        """Count a report."""
        if isinstance(report, Started):
            self.working[report.worker] = Working(report.job, self._clock())
            self._most = max(self._most, len(self.working))
        elif isinstance(report, Advanced) and report.worker in self.working:
            self.working[report.worker] = self.working[report.worker].advanced(report.done, self._clock())
        elif isinstance(report, Ended):
            self._end(report, self.working.pop(report.worker, None))

    def stop(self) -> None:
        """Nothing runs any more."""
        self.working.clear()
        self.stopped = True

    def _end(self, report: Ended, working: Working | None) -> None:
        if working is not None:
            # What somebody else had done by then took no time here.
            done = all(one.status == "done" for one in report.outcomes)
            ran = done and (working.done > 0 or any(one.seconds for one in report.outcomes))
            self._pieces.append(self._piece(replace(working, done=1.0) if ran else working))
        methods = {run.identity: run.method for run in report.job}
        for outcome in report.outcomes:
            if outcome.status != "claimed":
                method = methods[outcome.identity]
                self.left[method] -= 1
                (self.done if outcome.status == "done" else self.failed)[method] += 1
                self.ended += 1
                self._left.pop(outcome.identity, None)

    def _piece(self, working: Working) -> tuple[float, float]:
        """The seconds that what a worker did was thought to take, and those that it took."""
        if working.done == 0.0:
            return 0.0, 0.0
        thought = sum(self._seconds.get(run.identity, 0.0) for run in working.job)
        return (working.done - working.first) * thought, self._clock() - working.began

    @property
    def running(self) -> Counter[str]:
        return Counter(run.method for working in list(self.working.values()) for run in working.job)

    @property
    def rate(self) -> float:
        """Runs in a minute."""
        return 60 * self.ended / max(self._clock() - self._began, 1e-9)

    @property
    def seconds_left(self) -> float:
        """The estimate, corrected by how long what is done took against its own estimate."""
        # Copies, because a terminal's picture is drawn by a thread of its own.
        now = list(self.working.values())
        pieces = [*self._pieces, *map(self._piece, now)]
        done = {run.identity: working.done for working in now for run in working.job}
        left = [seconds * (1 - done.get(identity, 0.0)) for identity, seconds in list(self._left.items())]
        # A cluster may give fewer workers than were asked for, which shows when one of them is through.
        workers = self._most if any(thought for thought, _ in self._pieces) else self._workers
        return slowness(pieces, sum(self._seconds.values())) * seconds_left(left, workers)

    def line(self) -> str:
        """All counts in a line."""
        failed = f", {self.failed.total()} failed" if self.failed.total() else ""
        speed = f", {self.rate:.3g} runs/min" if self.ended else ""
        to_go = "" if self.stopped else f", {duration(self.seconds_left)} to go"
        return f"{self.done.total()} done{failed}, {len(self.working)} running, {self.left.total()} left{speed}{to_go}"


class Display:
    """Counts reports, and lets somebody show it."""

    def __init__(self, tally: Tally, show: Callable[[], None], say: Callable[[str], None]) -> None:
        self._tally, self._show, self.say = tally, show, say

    @property
    def ended(self) -> int:
        """Runs that ended, well or not."""
        return self._tally.ended

    def report(self, report: Report) -> None:
        """Show what an executor reports."""
        self._tally.add(report)
        if isinstance(report, Said):
            self.say(report.line)
        elif isinstance(report, Ended):
            places = {run.identity: run.place for run in report.job}
            for outcome in report.outcomes:
                if outcome.status == "failed":
                    self.say(f"failed: {places[outcome.identity]}: {outcome.reason}")
        self._show()


@contextmanager
def display(
    inventory: Inventory, seconds: Mapping[str, float], workers: int, clock: Clock = time.monotonic
) -> Iterator[Display]:
    """The display that suits stdout."""
    tally = Tally(inventory, seconds, workers, clock)
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield Display(tally, _Lines(tally, clock).show, lambda line: print(line, flush=True))
        return
    with Live(_render(tally), console=console, refresh_per_second=2, get_renderable=lambda: _render(tally)) as live:
        try:
            yield Display(tally, lambda: None, lambda line: live.console.print(Text(line), soft_wrap=True))
        finally:
            tally.stop()  # the last picture stays
            live.refresh()


class _Lines:
    def __init__(self, tally: Tally, clock: Clock) -> None:
        self._tally, self._clock = tally, clock
        self._next = clock() + SECONDS_BETWEEN_LINES

    def show(self) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + SECONDS_BETWEEN_LINES
            print(self._tally.line(), flush=True)


def _render(tally: Tally) -> Group:
    running = tally.running
    rows = [
        (name, *(str(number[name] or "") for number in (tally.done, running, tally.failed, tally.left)))
        for name in tally.methods
    ]
    table = make_table(("method", "done", "running", "failed", "left"), rows, right=(1, 2, 3, 4))
    workers = [
        Text(f"  {name}: {working.job[0].place} {working.done:4.0%}", style="dim", no_wrap=True, overflow="ellipsis")
        for name, working in sorted(tally.working.items())[:8]
    ]
    return Group(table, Text(tally.line(), style="bold"), *workers)
