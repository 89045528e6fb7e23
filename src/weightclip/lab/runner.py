"""Running row by row: a learner becomes rows of a table, then a record, with a checkpoint after each row."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from weightclip.lab.checkpoint import Arrays, Checkpoint, Row, read_checkpoint, write_checkpoint
from weightclip.lab.experiment import Event
from weightclip.lab.files import make_directory, remove_leftovers
from weightclip.lab.records.record import Record, read_record, write_record
from weightclip.lab.records.store import checkpoint_path, record_path


class Learner(Protocol):
    """What learns. `state` is all that a later process needs to go on, bit for bit, with `load_state`."""

    def state(self) -> Arrays: ...

    def load_state(self, state: Arrays) -> None: ...


L = TypeVar("L", bound=Learner)


@dataclass(frozen=True)
class Job(Generic[L]):
    """A run.

    Args:
        experiment, identity, place: of its record.
        label: for lines that a user reads: "input-permuted-mnist sgd seed 0".
        config, data, rules: for the record.
        row: what a row stands for: "task".
        rows: how many there will be.
        make: the learner, which has learned nothing yet.
        learn: the next row, from the learner, its index and the rows before it.
        table: of all rows.
        loss: the column that tells divergence.
        tables: further ones for the record, of the learner at the end.
        platform: what did the work.
    """

    experiment: str
    identity: str
    place: str
    label: str
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    rules: str | None
    row: str
    rows: int
    make: Callable[[], L]
    learn: Callable[[L, int, Sequence[Row]], Row]
    table: Callable[[list[Row]], pl.DataFrame]
    loss: str = "loss"
    tables: Callable[[L], Mapping[str, pl.DataFrame]] = lambda _: {}
    platform: str = field(default_factory=platform.platform)


def run_job(job: Job[Any], out: Path | None, overwrite: bool, on_event: Event, on_row: Callable[[Row], None]) -> Record:
    """Run a job, or go on with it, or read its record where it is finished.

    Args:
        job: what to run.
        out: a directory for the record and, until it is there, the checkpoint; None keeps everything in memory.
        overwrite: begin anew whatever is in `out`.
        on_event: called with a line on what a user should know: a run that goes on, a damaged file, divergence.
        on_row: called with each row as soon as it is known.
    """
    path = None if out is None else record_path(out, job.place, job.identity)
    if path is not None:
        finished = find_finished(path, job.identity, job.label, overwrite, on_event)
        if finished is not None:
            return finished
    learner, rows, seconds = _learn_rows(job, path, on_event, on_row)
    record = Record(
        experiment=job.experiment,
        identity=job.identity,
        config=job.config,
        table=job.table(rows),
        data=job.data,
        seconds=seconds,
        rules=job.rules,
        platform=job.platform,
        tables=job.tables(learner),
    )
    if path is not None:
        finish(record, path)
    return record


def find_finished(path: Path, identity: str, label: str, overwrite: bool, on_event: Event) -> Record | None:
    """The record of a run that was finished before; else its directory is there, and nothing left to `overwrite`."""
    if overwrite:
        path.unlink(missing_ok=True)
        checkpoint_path(path).unlink(missing_ok=True)
    make_directory(path.parent)
    if not path.exists():
        return None
    try:
        record = read_record(path)
    except ValueError:
        on_event(f"{path}: the file is damaged, or not a record: running again")
        return None
    if record.identity != identity:
        return None
    checkpoint_path(path).unlink(missing_ok=True)  # of a run that was killed between its last two actions
    on_event(f"{label}: already finished")
    return record


def find_checkpoint(path: Path, identity: str) -> Checkpoint | None:
    """The checkpoint of the run with that record, if there is one; a ValueError names one that is of no use."""
    saved = checkpoint_path(path)
    remove_leftovers(path)
    remove_leftovers(saved)
    if not saved.exists():
        return None
    checkpoint = read_checkpoint(saved)
    if checkpoint.identity != identity:
        raise ValueError(f"{saved}: the checkpoint is that of another run")
    return checkpoint


def finish(record: Record, path: Path) -> None:
    """Write the record of a run that is finished; its checkpoint goes."""
    write_record(record, path)
    checkpoint_path(path).unlink(missing_ok=True)


def _learn_rows(
    job: Job[Any], path: Path | None, on_event: Event, on_row: Callable[[Row], None]
) -> tuple[Any, list[Row], float]:
    """The learner, all rows, and the seconds that they took."""
    began = time.perf_counter()
    learner, rows, before = _begun(job, path, on_event)
    for row in rows:
        on_row(row)
    for index in range(len(rows), job.rows):
        rows.append(job.learn(learner, index, rows))
        on_row(rows[-1])
        seconds = before + time.perf_counter() - began
        if not math.isfinite(rows[-1][job.loss]) and (index == 0 or math.isfinite(rows[-2][job.loss])):
            on_event(f"{job.label}: the loss diverged in {job.row} {index + 1}")
        if path is not None and index + 1 < job.rows:
            write_checkpoint(Checkpoint(job.identity, rows, learner.state(), seconds), checkpoint_path(path))
    return learner, rows, before + time.perf_counter() - began


def _begun(job: Job[L], path: Path | None, on_event: Event) -> tuple[L, list[Row], float]:
    """A learner, the rows of what it has learned, and the seconds that took; from the checkpoint, if there is one."""
    learner = job.make()
    try:
        checkpoint = None if path is None else find_checkpoint(path, job.identity)
        if checkpoint is None:
            return learner, [], 0.0
        learner.load_state(checkpoint.state)
    except (ValueError, KeyError, RuntimeError) as error:
        on_event(f"{error}: starting again from the first {job.row}")
        return job.make(), [], 0.0
    on_event(f"{job.label}: resuming after {job.row} {len(checkpoint.rows)}")
    return learner, checkpoint.rows, checkpoint.seconds


def simulator(name: str, packages: Sequence[str]) -> dict[str, Any]:
    """The facts on the data of a run in an environment or a game of that name, made by these packages."""
    made_by = ", ".join(f"{package} {_version(package)}" for package in packages)
    return {"name": name, "kind": "simulator", "location": made_by, "checksum": None, "official": None}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # not every environment needs all of them
        return "not installed"
