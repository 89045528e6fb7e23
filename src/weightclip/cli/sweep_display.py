"""Display of a sweep's progress: a live table on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from weightclip.cli.results import make_table
from weightclip.lab.progress import SECONDS_BETWEEN_LINES
from weightclip.lab.sweep.executor import Advanced, Ended, Message, Report, Started
from weightclip.lab.sweep.plan import Inventory, kind_of, seconds_left, seconds_per_run
from weightclip.lab.sweep.worker import Job
from weightclip.lab.text import clock_text

Clock = Callable[[], float]


@dataclass(frozen=True)
class Working:
    """A running job: its completed fraction, and the fraction and time of the first progress report."""

    job: Job
    began: float
    done: float = 0.0
    first: float = 0.0

    def advanced(self, done: float, now: float) -> Working:
        if self.done == 0.0:
            return replace(self, done=done, first=done, began=now)
        return replace(self, done=done)


class Tally:
    """Counts runs by method and estimates the remaining time from finished and running runs."""

    def __init__(self, inventory: Inventory, seconds: Mapping[str, float], workers: int, clock: Clock) -> None:
        self.methods = list(
            dict.fromkeys(run.method for run in (*inventory.done, *inventory.failed, *inventory.missing))
        )
        self.done = Counter(run.method for run in inventory.done)
        self.failed = Counter(run.method for run in inventory.failed)
        self.working: dict[str, Working] = {}
        self.ended = 0
        self.stopped = False
        self._clock, self._workers, self._most = clock, workers, 0
        self._began = clock()
        self._missing = {run.identity: run for run in inventory.missing}
        self._before = {
            kind_of(run.relative_path): seconds[run.identity] for run in inventory.missing if run.identity in seconds
        }
        self._pieces: list[tuple[str, float, float]] = []

    def add(self, report: Report) -> None:
        """Update the counts with a report."""
        if isinstance(report, Started):
            self.working[report.worker] = Working(report.job, self._clock())
            self._most = max(self._most, len(self.working))
        elif isinstance(report, Advanced) and report.worker in self.working:
            self.working[report.worker] = self.working[report.worker].advanced(report.done, self._clock())
        elif isinstance(report, Ended):
            self._end(report, self.working.pop(report.worker, None))

    def stop(self) -> None:
        """Clear the running jobs."""
        self.working.clear()
        self.stopped = True

    def _end(self, report: Ended, working: Working | None) -> None:
        if working is not None and all(one.status == "done" and one.seconds for one in report.outcomes):
            if working.done > 0:
                self._pieces.append(self._piece(replace(working, done=1.0)))
            else:  # without progress reports, use the times of the records
                seconds = sum(one.seconds for one in report.outcomes)
                self._pieces.append((kind_of(report.job[0].relative_path), len(report.job), seconds))
        methods = {run.identity: run.method for run in report.job}
        for outcome in report.outcomes:
            if outcome.status != "locked":
                method = methods[outcome.identity]
                (self.done if outcome.status == "done" else self.failed)[method] += 1
                self.ended += 1
                self._missing.pop(outcome.identity, None)

    def _piece(self, working: Working) -> tuple[str, float, float]:
        """The kind of a worker's runs, and the number of completed runs and seconds since the first report."""
        done = (working.done - working.first) * len(working.job)
        return kind_of(working.job[0].relative_path), done, self._clock() - working.began

    @property
    def running(self) -> Counter[str]:
        return Counter(run.method for working in list(self.working.values()) for run in working.job)

    @property
    def left(self) -> Counter[str]:
        """Runs that have neither ended nor started."""
        return Counter(run.method for run in list(self._missing.values())) - self.running

    @property
    def rate(self) -> float:
        """Runs per minute."""
        return 60 * self.ended / max(self._clock() - self._began, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Remaining time; None until a run has made progress."""
        # Copied because another thread draws the table.
        running = list(self.working.values())
        each = seconds_per_run(
            [*self._pieces, *(self._piece(one) for one in running if one.done > one.first)], self._before
        )
        started = {run.identity for working in running for run in working.job}
        waiting = [kind_of(run.relative_path) for run in list(self._missing.values()) if run.identity not in started]
        left = [(kind_of(one.job[0].relative_path), (1 - one.done) * len(one.job)) for one in running]
        # A cluster may provide fewer workers than requested; their number is known once a job has ended.
        workers = self._most if self._pieces else self._workers
        return seconds_left([*left, *((kind, 1.0) for kind in waiting)], each, workers)

    def line(self) -> str:
        """All counts, in at most 80 characters."""
        failed = f", {self.failed.total()} failed" if self.failed.total() else ""
        counts = f"{self.done.total()} done{failed}, {self.running.total()} running, {self.left.total()} left"
        speed = f", {self.rate:.3g} runs/min" if self.ended else ""
        seconds = None if self.stopped else self.seconds_left
        return counts + speed + ("" if seconds is None else f", {clock_text(seconds)} to go")


class SweepDisplay:
    """Counts reports and shows the counts."""

    def __init__(self, tally: Tally, show: Callable[[], None], say: Callable[[str], None]) -> None:
        self._tally, self._show, self.say = tally, show, say

    @property
    def ended(self) -> int:
        """Number of finished and failed runs."""
        return self._tally.ended

    def report(self, report: Report) -> None:
        """Count and show a report of the executor."""
        self._tally.add(report)
        if isinstance(report, Message):
            self.say(report.line)
        elif isinstance(report, Ended):
            paths = {run.identity: run.relative_path for run in report.job}
            for outcome in report.outcomes:
                if outcome.status == "failed":
                    self.say(f"failed: {paths[outcome.identity]}: {outcome.reason}")
        self._show()


@contextmanager
def show_sweep(
    inventory: Inventory, seconds: Mapping[str, float], workers: int, clock: Clock = time.monotonic
) -> Iterator[SweepDisplay]:
    """A display that suits stdout: a terminal or a file."""
    tally = Tally(inventory, seconds, workers, clock)
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield SweepDisplay(tally, _Lines(tally, clock).show, lambda line: print(line, flush=True))
        return
    with Live(_render(tally), console=console, refresh_per_second=2, get_renderable=lambda: _render(tally)) as live:
        try:
            yield SweepDisplay(tally, lambda: None, lambda line: live.console.print(Text(line), soft_wrap=True))
        finally:
            tally.stop()  # the last table stays on the screen
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
        Text(f"{working.done:4.0%} {working.job[0].relative_path}", style="dim", no_wrap=True, overflow="ellipsis")
        for _, working in sorted(tally.working.items())[:8]
    ]
    return Group(table, Text(tally.line(), style="bold"), *workers)
