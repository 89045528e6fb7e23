"""Execute runs: lock them, run them together, and write a record or a failure note for each."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks, Event, Progress, ignore
from weightclip.lab.experiment import Experiment
from weightclip.lab.records.record import Record
from weightclip.lab.records.store import (
    Failure,
    failure_path,
    find_failure,
    is_done,
    now,
    remove_remains,
    write_failure,
)
from weightclip.lab.sweep.locks import RunLock, lock_run
from weightclip.lab.sweep.loggers import NO_LOGGERS, Loggers, logging_rows
from weightclip.lab.sweep.plan import Run

Job = tuple[Run, ...]
"""Runs that one worker executes together."""

LockedRun = tuple[Run, RunLock | None]
"""A run and its lock; None for a run without a store."""

Status = Literal["done", "failed", "locked"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: done, failed (with a one-line reason), or locked by another process."""

    identity: str
    status: Status
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Shared:
    """The arguments that all jobs of a sweep share.

    Args:
        experiment: experiment that runs the configurations.
        store: directory for the records.
        data_dir: the user's data directory, if given.
        data: results of `Experiment.load` by key, for workers that cannot load data themselves.
        loggers: services that rows are logged to.
        retried: identity -> time of the failure note that existed when the sweep started. A run that failed since then,
            in any sweep, is not retried.
    """

    experiment: Experiment[Any]
    store: Path
    data_dir: Path | None = None
    data: dict[Any, Any] = field(default_factory=dict)
    loggers: Loggers = NO_LOGGERS
    retried: Mapping[str, str] = field(default_factory=dict)

    def without_data(self) -> Shared:
        """A copy for workers that load the data themselves, which is faster than sending it."""
        return replace(self, data={})


def run_job(
    shared: Shared, job: Job, data: dict[Any, Any], event: Event = ignore, progress: Progress = ignore
) -> tuple[Outcome, ...]:
    """Execute the missing runs of a job on a worker that sees the store; return one outcome per run.

    `data` caches the data that the worker loaded last.
    """
    outcomes: list[Outcome] = []
    with ExitStack() as locks:
        try:
            outcomes, locked = lock_missing(shared.store, job, locks, shared.retried)
            if locked:
                loaded = _load(shared, job[0], data)
                callbacks = Callbacks(event, progress)
                records = run_locked(shared.experiment, locked, loaded, shared.store, callbacks, shared.loggers)
                outcomes += [
                    mark_done(shared.store, run, record) for (run, _), record in zip(locked, records, strict=True)
                ]
        except Exception as error:
            settled = {one.identity for one in outcomes}
            failed = [run for run in job if run.identity not in settled]
            outcomes += [mark_failed(shared.store, run, one_line(error), traceback.format_exc()) for run in failed]
    return tuple(outcomes)


def lock_free(store: Path | None, runs: Sequence[Run], locks: ExitStack) -> list[LockedRun]:
    """Lock the runs that no other process has locked, until `locks` is closed."""
    if store is None:
        return [(run, None) for run in runs]
    free: list[LockedRun] = []
    for run in runs:
        lock = lock_run(store, run.identity, run.relative_path)
        if lock is not None:
            locks.callback(lock.release)
            free.append((run, lock))
    return free


def lock_missing(
    store: Path, runs: Sequence[Run], locks: ExitStack, retried: Mapping[str, str]
) -> tuple[list[Outcome], list[LockedRun]]:
    """Lock the runs to execute, until `locks` is closed, and return the outcomes of all other runs.

    A run whose failure note is not in `retried` (identity -> time) is not executed. Times are compared for equality
    only, because clocks differ between machines.
    """
    free = lock_free(store, runs, locks)
    held = {run.identity for run, _ in free}
    outcomes = [Outcome(run.identity, "locked") for run in runs if run.identity not in held]
    missing: list[LockedRun] = []
    for run, lock in free:
        if is_done(store, run):  # by another process, after the plan was made
            remove_remains(store, [run])
            outcomes.append(Outcome(run.identity, "done"))
        elif (failure := find_failure(store, run)) is not None and failure.when != retried.get(run.identity):
            outcomes.append(Outcome(run.identity, "failed", reason=failure.reason))
        else:
            missing.append((run, lock))
    return outcomes, missing


def run_locked(
    experiment: Experiment[Any],
    locked: Sequence[LockedRun],
    data: Any,
    store: Path | None,
    callbacks: Callbacks = NO_CALLBACKS,
    loggers: Loggers = NO_LOGGERS,
    overwrite: bool = False,
) -> list[Record]:
    """Execute runs together, with their progress in the notes of their locks and their rows in the loggers."""
    runs = tuple(run for run, _ in locked)
    locks = [lock for _, lock in locked if lock is not None]
    length = experiment.length(runs[0].config)
    for lock in locks:
        lock.start()

    def progress(steps: int, score: float) -> None:
        for lock in locks:
            lock.update(steps / length)
        callbacks.on_progress(steps, score)

    with logging_rows(loggers, experiment, runs) as log_row:

        def row(config: Any, values: Any) -> None:
            log_row(config, values)
            callbacks.on_row(config, values)

        watching = Callbacks(callbacks.on_event, progress, row)
        return experiment.run([run.config for run in runs], data, store, overwrite, watching)


def mark_done(store: Path, run: Run, record: Record) -> Outcome:
    """Remove the failure note of a finished run.

    A record with another identity is a failure: the worker has different data or another version of weightclip.
    """
    if record.identity != run.identity:
        version = record.versions.get("weightclip")
        reason = f"the worker's data differs, or its weightclip {version} behaves differently"
        return mark_failed(store, run, reason, reason)
    failure_path(store, run.relative_path, run.identity).unlink(missing_ok=True)
    return Outcome(run.identity, "done", seconds=record.seconds)


def mark_failed(store: Path, run: Run, reason: str, trace: str) -> Outcome:
    """Write the failure note of a run, if the store can be written.

    A run of a failed job may have its record already, as may one that another process executed meanwhile.
    """
    if is_done(store, run):
        return Outcome(run.identity, "done")
    failure = Failure(run.relative_path, run.identity, run.experiment, asdict(run.config), reason, trace, now())
    with suppress(OSError):  # the reason is reported even if the disk is full
        write_failure(store, failure)
    return Outcome(run.identity, "failed", reason=reason)


def one_line(error: BaseException) -> str:
    r"""The type and message of an exception in one line.

    Examples:
        >>> one_line(ValueError("first\n  second"))
        'ValueError: first second'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def _load(shared: Shared, run: Run, data: dict[Any, Any]) -> Any:
    if run.data not in data:
        data.clear()  # data sets are large: keep only one
        data[run.data] = shared.experiment.load(run.config, shared.data_dir)
    return data[run.data]
