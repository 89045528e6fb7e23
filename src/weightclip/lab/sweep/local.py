"""The local executor: one process per core of this machine, one thread in each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from weightclip.lab.sweep.executor import ATTEMPTS, THREADS, Advanced, Ended, Message, Report, Started
from weightclip.lab.sweep.worker import Job, Outcome, Shared, mark_failed, run_job

SECONDS_BETWEEN_REPORTS = 0.5
SECONDS_TO_STOP = 5.0


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """Worker processes. A worker that dies is replaced, and its job restarts."""

    workers: int

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs in order."""
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
                    # A death counts against the job if the worker had started it, else against the worker.
                    deaths[job[0].identity] += worker.started
                    worker.restart()
                    if max(deaths[job[0].identity], worker.false_starts) < ATTEMPTS:
                        yield Message(f"{job[0].relative_path}: worker died; resuming from the last checkpoint")
                        waiting.appendleft(job)
                    else:
                        reason = f"worker died {ATTEMPTS} times"
                        outcomes = tuple(mark_failed(shared.store, run, reason, reason) for run in job)
                        yield Ended(worker.name, job, outcomes)
        finally:
            for worker in pool:
                worker.stop()


def _ready(busy: Sequence[_Worker]) -> list[_Worker]:
    """Workers that have sent a message or have died."""
    owners: dict[Any, _Worker] = {}
    for worker in busy:
        owners[worker.connection] = owners[worker.process.sentinel] = worker
    return list({id(owners[one]): owners[one] for one in connection.wait(list(owners))}.values())


class _Worker:
    """A worker process and its job."""

    process: BaseProcess
    connection: Connection

    def __init__(self, name: str, shared: Shared) -> None:
        self.name, self._shared = name, shared
        self.job: Job | None = None
        self.started = False
        self.false_starts = 0
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        # Not a daemon, which could not start data loaders. The worker watches its parent and exits with it.
        self.process = context.Process(
            target=_serve, args=(other, self._shared.without_data()), name=f"worker {self.name}"
        )
        with one_thread_for_children():
            self.process.start()
        other.close()

    def give(self, job: Job) -> None:
        self.job, self.started = job, False
        with suppress(OSError):  # the worker died; `receive` returns None
            self.connection.send(job)

    def receive(self) -> Report | None:
        """The next report; None if the worker died."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return None
        job = self.job
        assert job is not None
        if isinstance(message, float):
            self.started, self.false_starts = True, 0
            return Advanced(self.name, message)
        if isinstance(message, str):
            return Message(message)
        self.job = None
        return Ended(self.name, job, message)

    def restart(self) -> None:
        self.stop()
        self.false_starts += not self.started
        self.job = None
        self._start()

    def stop(self) -> None:
        """Stop the process. Its runs can resume from their last checkpoints."""
        self.process.terminate()
        self.process.join(SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextmanager
def one_thread_for_children() -> Iterator[None]:
    """Processes started in this block, and their libraries, use one thread."""
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
    """The main loop of a worker process, which runs one job at a time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data: dict[Any, Any] = {}

    def send(message: Any) -> None:
        try:
            channel.send(message)
        except OSError:  # the parent has exited; this is not a failure of the run
            raise SystemExit(1) from None

    while True:
        try:
            job: Job = channel.recv()
        except (EOFError, OSError):
            return
        send(0.0)
        send(_run(shared, job, data, send))


def _run(shared: Shared, job: Job, data: dict[Any, Any], send: Callable[[Any], None]) -> tuple[Outcome, ...]:
    last = time.monotonic()
    length = shared.experiment.length(job[0].config)

    def progress(steps: int, score: float) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            send(steps / length)

    return run_job(shared, job, data, send, progress)


def _end_with_parent() -> None:
    """Exit when the parent exits, because a killed parent cannot stop its workers. Checkpoints remain."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
