"""What the executors have in common: they are given jobs, and report what becomes of them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from weightclip.lab.experiment import Callbacks, Event, Experiment, Progress, ignore
from weightclip.lab.sweep.live import NOWHERE, Live, showing
from weightclip.lab.sweep.plan import Run
from weightclip.lab.sweep.work import Outcome, in_a_line, note_failure, run_batch

ATTEMPTS = 3
"""How often a job is begun whose worker dies before it is counted as failed."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
"""What tells the libraries of a worker how many threads to have."""

Job = tuple[Run, ...]
"""Runs that go together."""


@dataclass(frozen=True)
class Shared:
    """What all jobs of a sweep share.

    Args:
        experiment: what to run.
        store: the directory for the records.
        data_dir: the user's directory with data, if there is one.
        data: what `Experiment.load` gave, by key; for executors whose workers cannot load it themselves.
        live: where to show rows as they come.
        began: when the sweep began; what failed since then, in whichever sweep, is not run again.
    """

    experiment: Experiment[Any]
    store: Path
    data_dir: Path | None = None
    data: dict[Any, Any] = field(default_factory=dict)
    live: Live = NOWHERE
    began: float = field(default_factory=time.time)

    def without_data(self) -> Shared:
        """For workers that read it themselves, which is faster than to send it."""
        return replace(self, data={})


@dataclass(frozen=True)
class Started:
    """A worker began a job."""

    worker: str
    job: Job


@dataclass(frozen=True)
class Advanced:
    """A worker has done that share of its job (0 to 1)."""

    worker: str
    done: float


@dataclass(frozen=True)
class Ended:
    """A worker is done with a job, for better or worse."""

    worker: str
    job: Job
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Said:
    """Something that a user should read."""

    line: str


Report = Started | Advanced | Ended | Said


class Executor(Protocol):
    """Runs jobs somewhere. Every job gets its `Ended`; when the iterator is closed, nothing goes on."""

    @property
    def workers(self) -> int:
        """How many jobs run at once."""
        ...

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]: ...


def run_job(
    shared: Shared, job: Job, data: dict[Any, Any], event: Event = ignore, progress: Progress = ignore
) -> tuple[Outcome, ...]:
    """What a worker does that shares the store's file system; `data` keeps what it loaded last."""
    try:
        key = job[0].data
        if key not in data:
            data.clear()  # one at a time: data is large
            data[key] = shared.experiment.load(job[0].config, shared.data_dir)
        with showing(shared.live, shared.experiment, job) as row:
            callbacks = Callbacks(event, progress, row)
            return tuple(run_batch(shared.experiment, job, data[key], shared.store, callbacks, shared.began))
    except Exception as error:  # what a run's own failure is not: data that is gone, a full disk
        return tuple(_note_if_possible(shared.store, run, error, traceback.format_exc()) for run in job)


def _note_if_possible(store: Path, run: Run, error: Exception, trace: str) -> Outcome:
    """Where no note can be written, the error is told at least."""
    try:
        return note_failure(store, run, in_a_line(error), trace)
    except OSError:
        return Outcome(run.identity, "failed", reason=in_a_line(error))


def check_installed(executor: str, package: str) -> None:
    """A ValueError if the package is missing that an executor needs."""
    if find_spec(package) is None:
        raise ValueError(f'--executor {executor}: needs {package}: pip install "weightclip[{executor}]"')
