"""How far a sweep is: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from weightclip.cli.progress import SECONDS_BETWEEN_LINES, duration
from weightclip.cli.tables import make_table
from weightclip.lab.sweep.executor import Advanced, Ended, Job, Report, Said, Started
from weightclip.lab.sweep.sweep import Inventory

Clock = Callable[[], float]


class Tally:
    """Counts of runs by method, and the time left from the speed so far."""

    def __init__(self, inventory: Inventory, seconds: Mapping[str, float], workers: int, clock: Clock) -> None:
        self.methods = list(
            dict.fromkeys(run.method for run in (*inventory.done, *inventory.failed, *inventory.missing))
        )
        self.done = Counter(run.method for run in inventory.done)
        self.failed = Counter(run.method for run in inventory.failed)
        self.left = Counter(run.method for run in inventory.missing)
        self.working: dict[str, tuple[Job, float]] = {}
        self.ended = 0
        self.total = len(inventory.missing)
        self._seconds, self._clock, self._workers = dict(seconds), clock, workers
        self._began = clock()
        self._estimated = sum(self._seconds.get(run.identity, 0.0) for run in inventory.missing)
        self._spent = 0.0

    def add(self, report: Report) -> None:
        """Count a report."""
        if isinstance(report, Started):
            self.working[report.worker] = report.job, 0.0
        elif isinstance(report, Advanced) and report.worker in self.working:
            self.working[report.worker] = self.working[report.worker][0], report.done
        elif isinstance(report, Ended):
            self.working.pop(report.worker, None)
            methods = {run.identity: run.method for run in report.job}
            for outcome in report.outcomes:
                if outcome.status != "claimed":
                    method = methods[outcome.identity]
                    self.left[method] -= 1
                    (self.done if outcome.status == "done" else self.failed)[method] += 1
                    self.ended += 1
                    self._spent += self._seconds.get(outcome.identity, 0.0)

    @property
    def running(self) -> Counter[str]:
        return Counter(run.method for job, _ in self.working.values() for run in job)

    @property
    def rate(self) -> float:
        """Runs in a minute."""
        return 60 * self.ended / max(self._clock() - self._began, 1e-9)

    @property
    def seconds_left(self) -> float:
        """The estimate, corrected by how long what is done took against its own estimate."""
        under_way = sum(
            done * sum(self._seconds.get(run.identity, 0.0) for run in job) for job, done in self.working.values()
        )
        finished = self._spent + under_way
        elapsed = self._clock() - self._began
        left = max(self._estimated - finished, 0.0)
        # Little is known at the start, where a worker still imports and compiles.
        if finished < 0.02 * self._estimated or elapsed < 5.0:
            return left / max(self._workers, 1)
        return left * elapsed / finished

    def line(self) -> str:
        """All counts in a line."""
        failed = f", {self.failed.total()} failed" if self.failed.total() else ""
        speed = f", {self.rate:.3g} runs/min" if self.ended else ""
        return (
            f"{self.done.total()} done{failed}, {len(self.working)} running, {self.left.total()} left"
            f"{speed}, {duration(self.seconds_left)} to go"
        )


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
        yield Display(tally, lambda: None, lambda line: live.console.print(Text(line), soft_wrap=True))
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
        Text(f"  {worker}: {job[0].place} {done:4.0%}", style="dim", no_wrap=True, overflow="ellipsis")
        for worker, (job, done) in sorted(tally.working.items())[:8]
    ]
    return Group(table, Text(tally.line(), style="bold"), *workers)
