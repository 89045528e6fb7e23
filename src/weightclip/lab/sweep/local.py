"""The processes of this machine: one for each core, one thread in each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from weightclip.lab.experiment import Watch
from weightclip.lab.sweep.executor import ATTEMPTS, Advanced, Ended, Job, Report, Said, Started, Task
from weightclip.lab.sweep.live import showing
from weightclip.lab.sweep.work import Outcome, note_failure, run_batch

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
"""What tells the libraries of a worker how many threads to have."""

SECONDS_BETWEEN_REPORTS = 0.5
SECONDS_TO_STOP = 5.0


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """Worker processes. One that dies is replaced, and its job begun again."""

    workers: int

    def run(self, task: Task, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs in their order."""
        waiting = deque(jobs)
        deaths: dict[Job, int] = {}
        pool = [_Worker(f"{number}", task) for number in range(1, min(self.workers, len(jobs)) + 1)]
        try:
            while True:
                for worker in pool:
                    if worker.job is None and waiting:
                        worker.give(waiting.popleft())
                        assert worker.job is not None
                        yield Started(worker.name, worker.job)
                busy = [worker for worker in pool if worker.job is not None]
                if not busy:
                    return
                for worker in _ready(busy):
                    job = worker.job
                    assert job is not None
                    report = worker.receive()
                    if report is not None:
                        yield report
                        continue
                    worker.restart()
                    deaths[job] = deaths.get(job, 0) + 1
                    if deaths[job] < ATTEMPTS:
                        yield Said(f"{job[0].place}: its worker died; beginning again after its last checkpoint")
                        waiting.appendleft(job)
                    else:
                        reason = f"its worker died {ATTEMPTS} times"
                        outcomes = tuple(note_failure(task.store, run, reason, reason) for run in job)
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

    def __init__(self, name: str, task: Task) -> None:
        self.name, self._task = name, task
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        # Not a daemon: PyTorch's own workers could not be started from one. It ends with its parent by itself.
        self.process = context.Process(target=_serve, args=(other, self._without_data()), name=f"worker {self.name}")
        with _one_thread_for_children():
            self.process.start()
        other.close()

    def _without_data(self) -> Task:
        """Each process reads the data itself, which is faster than to send it."""
        task = self._task
        return Task(task.experiment, task.store, task.data_dir, live=task.live)

    def give(self, job: Job) -> None:
        self.job = job
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
            return Advanced(self.name, told)
        if isinstance(told, str):
            return Said(told)
        self.job = None
        return Ended(self.name, job, tuple(told))

    def restart(self) -> None:
        self.stop()
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
def _one_thread_for_children() -> Iterator[None]:
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


def _serve(channel: Connection, task: Task) -> None:
    """A worker: run one job after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data: dict[Any, Any] = {}
    while True:
        job: Job = channel.recv()
        channel.send(list(_run(task, job, data, channel)))


def _run(task: Task, job: Job, data: dict[Any, Any], channel: Connection) -> list[Outcome]:
    last = time.monotonic()
    length = task.experiment.length(job[0].config)

    def progress(steps: int, score: float) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            channel.send(steps / length)

    try:
        key = job[0].data
        if key not in data:
            data.clear()  # one at a time: data is large
            data[key] = task.experiment.load(job[0].config, task.data_dir)
        with showing(task.live, task.experiment, job) as row:
            return run_batch(task.experiment, job, data[key], task.store, Watch(channel.send, progress, row))
    except Exception as error:  # what a run's own failure is not: data that is gone, a full disk
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [Outcome(run.identity, "failed", reason=reason) for run in job]


def _end_with_parent() -> None:
    """A parent that is killed cannot end us: do it ourselves. A finished part is safe, the rest goes on later."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
