"""The processes of this machine: one for each core, one thread in each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from weightclip.lab.sweep.executor import (
    ATTEMPTS,
    THREADS,
    Advanced,
    Ended,
    Job,
    Report,
    Said,
    Shared,
    Started,
    run_job,
)
from weightclip.lab.sweep.work import Outcome, note_failure

SECONDS_BETWEEN_REPORTS = 0.5
SECONDS_TO_STOP = 5.0


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """Worker processes. One that dies is replaced, and its job begun again."""

    workers: int

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs in their order."""
        waiting = deque(jobs)
        deaths: Counter[str] = Counter()
        pool = [_Worker(f"{number}", shared) for number in range(1, min(self.workers, len(jobs)) + 1)]
        try:
            while True:
                for worker in pool:
                    if worker.job is None and waiting:
                        job = waiting.popleft()
                        worker.give(job)
                        yield Started(worker.name, job)
                busy = [worker for worker in pool if worker.job is not None]
                if not busy:
                    return
                for worker in _ready(busy):
                    assert worker.job is not None
                    job = worker.job
                    report = worker.receive()
                    if report is not None:
                        yield report
                        continue
                    # A death counts against the job under way; at its start, against the worker.
                    deaths[job[0].identity] += worker.begun
                    worker.restart()
                    if max(deaths[job[0].identity], worker.false_starts) < ATTEMPTS:
                        yield Said(f"{job[0].relative_path}: its worker died; resuming from the last checkpoint")
                        waiting.appendleft(job)
                    else:
                        reason = f"its worker died {ATTEMPTS} times"
                        outcomes = tuple(note_failure(shared.store, run, reason, reason) for run in job)
                        yield Ended(worker.name, job, outcomes)
        finally:
            for worker in pool:
                worker.stop()


def _ready(busy: Sequence[_Worker]) -> list[_Worker]:
    """Those that have something to say, or have died."""
    owners: dict[Any, _Worker] = {}
    for worker in busy:
        owners[worker.connection] = owners[worker.process.sentinel] = worker
    return list({id(owners[one]): owners[one] for one in connection.wait(list(owners))}.values())


class _Worker:
    """A process, and the job that it has."""

    process: BaseProcess
    connection: Connection

    def __init__(self, name: str, shared: Shared) -> None:
        self.name, self._shared = name, shared
        self.job: Job | None = None
        self.begun = False
        self.false_starts = 0
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        # Not a daemon: PyTorch's own workers could not be started from one. It ends with its parent by itself.
        self.process = context.Process(
            target=_serve, args=(other, self._shared.without_data()), name=f"worker {self.name}"
        )
        with one_thread_for_children():
            self.process.start()
        other.close()

    def give(self, job: Job) -> None:
        self.job, self.begun = job, False
        with suppress(OSError):  # it died; `receive` tells
            self.connection.send(job)

    def receive(self) -> Report | None:
        """What it reports; None if it died."""
        try:
            told = self.connection.recv()
        except (EOFError, OSError):
            return None
        job = self.job
        assert job is not None
        if isinstance(told, float):
            self.begun, self.false_starts = True, 0
            return Advanced(self.name, told)
        if isinstance(told, str):
            return Said(told)
        self.job = None
        return Ended(self.name, job, told)

    def restart(self) -> None:
        self.stop()
        self.false_starts += not self.begun
        self.job = None
        self._start()

    def stop(self) -> None:
        """End the process. What it runs goes on later from the last checkpoint."""
        self.process.terminate()
        self.process.join(SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextmanager
def one_thread_for_children() -> Iterator[None]:
    """Processes that are started meanwhile, and their libraries, have one thread."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(channel: Connection, shared: Shared) -> None:
    """A worker: run one job after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data: dict[Any, Any] = {}
    while True:
        job: Job = channel.recv()
        channel.send(0.0)
        channel.send(_run(shared, job, data, channel))


def _run(shared: Shared, job: Job, data: dict[Any, Any], channel: Connection) -> tuple[Outcome, ...]:
    last = time.monotonic()
    length = shared.experiment.length(job[0].config)

    def progress(steps: int, score: float) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            channel.send(steps / length)

    return run_job(shared, job, data, channel.send, progress)


def _end_with_parent() -> None:
    """A parent that is killed cannot end us: do it ourselves. A finished part is safe, the rest goes on later."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
