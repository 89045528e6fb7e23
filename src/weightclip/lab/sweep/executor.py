"""The interface of executors, and the loop that runs a sweep on one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from weightclip.lab.records.store import find_failure, is_done
from weightclip.lab.sweep.locks import locked_runs
from weightclip.lab.sweep.loggers import NO_LOGGERS, Loggers
from weightclip.lab.sweep.plan import Plan, Run, batches
from weightclip.lab.sweep.worker import Job, Outcome, Shared

ATTEMPTS = 3
"""Number of times a worker may die before its job counts as failed."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
"""Environment variables that set the number of threads of a worker's libraries."""

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Started:
    """A worker started a job."""

    worker: str
    job: Job


@dataclass(frozen=True)
class Advanced:
    """A worker has finished this fraction of its job (0 to 1)."""

    worker: str
    done: float


@dataclass(frozen=True)
class Ended:
    """A job ended, with one outcome per run."""

    worker: str
    job: Job
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Message:
    """A message for the user."""

    line: str


Report = Started | Advanced | Ended | Message


class Executor(Protocol):
    """Runs jobs and reports on them. Every job ends with an `Ended`; closing the iterator stops all workers."""

    @property
    def workers(self) -> int:
        """Number of jobs that run at the same time."""
        ...

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]: ...


def sweep(
    plan: Plan,
    missing: tuple[Run, ...],
    store: Path,
    executor: Executor,
    data_dir: Path | None = None,
    loggers: Loggers = NO_LOGGERS,
    on_report: Callable[[Report], None] = lambda report: None,
) -> list[Outcome]:
    """Execute the missing runs of a plan.

    A run that is locked by another process is left to it. The sweep waits for its record, and executes the run itself
    if the lock is released without a record.
    """
    notes = {run.identity: find_failure(store, run) for run in missing}
    retried = {identity: failure.when for identity, failure in notes.items() if failure is not None}
    shared = Shared(plan.experiment, store, data_dir, plan.data, loggers, retried)
    waiting = {run.identity: run for run in missing}
    ready = list(missing)
    outcomes: list[Outcome] = []

    def settle(ended: Iterable[Outcome]) -> None:
        for one in ended:
            if one.status != "locked" and one.identity in waiting:
                del waiting[one.identity]
                outcomes.append(one)

    while waiting:
        with closing(executor.run(shared, batches(ready))) as reports:
            for report in reports:
                if isinstance(report, Ended):
                    settle(report.outcomes)
                on_report(report)
        ready = []
        while waiting and not ready:
            held = locked_runs(store)
            for run in [run for run in waiting.values() if is_done(store, run)]:
                outcome = Outcome(run.identity, "done")
                settle([outcome])
                on_report(Ended("", (run,), (outcome,)))
            ready = [run for run in waiting.values() if run.identity not in held]
            if waiting and not ready:
                time.sleep(POLL_SECONDS)
    return outcomes


def check_installed(executor: str, package: str) -> None:
    """Raise a ValueError if the package that an executor needs is missing."""
    if find_spec(package) is None:
        raise ValueError(f'--executor {executor}: requires {package}: pip install "weightclip[{executor}]"')
