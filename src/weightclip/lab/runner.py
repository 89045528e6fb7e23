"""Train row by row, with checkpoints between rows and a record at the end."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from weightclip.lab.callbacks import Event
from weightclip.lab.checkpoint import (
    Arrays,
    Checkpoint,
    CheckpointSchedule,
    Row,
    inexact_reason,
    installed_version,
    numerics,
    read_checkpoint,
    write_checkpoint,
)
from weightclip.lab.experiment import Comparison
from weightclip.lab.files import make_directory, remove_leftovers
from weightclip.lab.records.record import INEXACT, RESTARTED, Record, Resumed, read_record, write_record
from weightclip.lab.records.schema import Schema
from weightclip.lab.records.store import checkpoint_path, record_path


class Stateful(Protocol):
    """A learner whose `state` lets a later process continue with `load_state`."""

    def state(self) -> Arrays: ...

    def load_state(self, state: Arrays) -> None: ...


L = TypeVar("L", bound=Stateful)


@dataclass(frozen=True)
class Trial(Generic[L]):
    """A run that is trained row by row.

    Args:
        schema: schema of the record.
        identity, relative_path: identity and path of the record in a store.
        label: name in messages, such as "input-permuted-mnist sgd seed 0".
        config, data, rules: configuration, data and rules in the record.
        comparison: comparison with the paper in the record.
        rows: number of rows.
        make: creates the untrained learner.
        learn: trains the next row, given the learner, its index and the rows before it.
        table: returns the table of all rows.
        loss: column that shows divergence.
        tables: returns additional tables of the record, given the trained learner.
        platform: platform in the record.
        device: "cpu" or another device of PyTorch; only runs on a CPU resume bit for bit.
        columns: names of the numbers in a row. A checkpoint with other columns is not resumed. None: not checked.
        kernel: given a learner, the name of its compiled code; None if it has none.
        restarted: given a learner whose state was loaded, why its environments started new episodes; None if the run
            continues bit for bit.
    """

    schema: Schema
    identity: str
    relative_path: str
    label: str
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    comparison: Comparison
    rows: int
    make: Callable[[], L]
    learn: Callable[[L, int, Sequence[Row]], Row]
    table: Callable[[list[Row]], pl.DataFrame]
    rules: str | None = None
    loss: str = "loss"
    tables: Callable[[L], Mapping[str, pl.DataFrame]] = lambda _: {}
    platform: str = field(default_factory=platform.platform)
    device: str = "cpu"
    columns: Collection[str] | None = None
    kernel: Callable[[L], str | None] = lambda _: None
    restarted: Callable[[L], str | None] = lambda _: None


def run_trial(
    trial: Trial[Any], out: Path | None, overwrite: bool, on_event: Event, on_row: Callable[[Row], None]
) -> Record:
    """Run a trial, resume it, or read its record if it is finished.

    Args:
        trial: the run.
        out: directory for the record and the checkpoint; None keeps everything in memory.
        overwrite: whether to restart, regardless of the files in `out`.
        on_event: called with messages for the user: a resumed run, a damaged file, divergence.
        on_row: called with each new row.
    """
    path = None if out is None else record_path(out, trial.relative_path, trial.identity)
    if path is not None:
        finished = find_finished(path, trial.identity, trial.label, overwrite, on_event)
        if finished is not None:
            return finished
    learner, rows, seconds, resumed = _learn_rows(trial, path, on_event, on_row)
    setting, deviations = trial.comparison
    record = Record(
        schema=trial.schema,
        identity=trial.identity,
        config=trial.config,
        table=_with_seed(trial.table(rows), trial.config["seed"]),
        data=trial.data,
        seconds=seconds,
        rules=trial.rules,
        paper_setting=setting,
        deviations=deviations,
        resumed=resumed,
        platform=trial.platform,
        tables=trial.tables(learner),
    )
    if path is not None:
        finish(record, path)
    return record


def _with_seed(table: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The table with the column `seed` first."""
    return (
        table
        if "seed" in table.columns
        else table.insert_column(0, pl.repeat(seed, len(table), eager=True).alias("seed"))
    )


def find_finished(path: Path, identity: str, label: str, overwrite: bool, on_event: Event) -> Record | None:
    """The record of a finished run, or None. The directory exists afterward; `overwrite` removes old files."""
    if overwrite:
        path.unlink(missing_ok=True)
        checkpoint_path(path).unlink(missing_ok=True)
    make_directory(path.parent)
    if not path.exists():
        return None
    try:
        record = read_record(path)
    except ValueError:
        on_event(f"{path}: the file is damaged or not a record: running again")
        return None
    if record.identity != identity:
        on_event(f"{path}: the record belongs to another run: running again")
        return None
    checkpoint_path(path).unlink(missing_ok=True)  # a killed process may have left it
    on_event(f"{label}: already finished")
    return record


def find_checkpoint(path: Path, identity: str, columns: Collection[str] | None = None) -> Checkpoint | None:
    """The checkpoint of the run with this record, or None. A ValueError names an unusable one.

    `columns` are the expected names in its rows, None if they are not checked.
    """
    saved = checkpoint_path(path)
    remove_leftovers(path.parent)
    if not saved.exists():
        return None
    checkpoint = read_checkpoint(saved)
    if checkpoint.identity != identity:
        raise ValueError(f"{saved}: the checkpoint belongs to another run")
    if columns is not None and any(row.keys() != set(columns) for row in checkpoint.rows[:1]):
        raise ValueError(f"{saved}: the checkpoint is from another version")
    return checkpoint


def finish(record: Record, path: Path) -> None:
    """Write the record of a finished run and remove its checkpoint."""
    write_record(record, path)
    checkpoint_path(path).unlink(missing_ok=True)


def _learn_rows(
    trial: Trial[Any], path: Path | None, on_event: Event, on_row: Callable[[Row], None]
) -> tuple[Any, list[Row], float, Resumed]:
    """The learner, all rows, their seconds, and how the run was resumed."""
    start = time.perf_counter()
    learner, rows, before, resumed = _resume(trial, path, on_event)
    unit, schedule = trial.schema.x_column, CheckpointSchedule()
    for row in rows:
        on_row(row)
    for index in range(len(rows), trial.rows):
        rows.append(trial.learn(learner, index, rows))
        on_row(rows[-1])
        seconds = before + time.perf_counter() - start
        if not math.isfinite(rows[-1][trial.loss]) and (index == 0 or math.isfinite(rows[-2][trial.loss])):
            on_event(f"{trial.label}: the loss diverged in {unit} {index + 1}")
        if path is not None and index + 1 < trial.rows and schedule.is_due():
            with schedule.writing():
                state, found = learner.state(), numerics(trial.device, trial.kernel(learner))
                checkpoint = Checkpoint(trial.identity, rows, state, seconds, resumed, found)
                write_checkpoint(checkpoint, checkpoint_path(path))
    return learner, rows, before + time.perf_counter() - start, resumed


def _resume(trial: Trial[L], path: Path | None, on_event: Event) -> tuple[L, list[Row], float, Resumed]:
    """The learner, its rows and seconds so far, from the checkpoint if there is one, and how the run is resumed."""
    learner = trial.make()
    try:
        checkpoint = None if path is None else find_checkpoint(path, trial.identity, trial.columns)
        if checkpoint is None:
            return learner, [], 0.0, "never"
        learner.load_state(checkpoint.state)
    except (ValueError, KeyError, RuntimeError) as error:
        on_event(f"{error}: restarting from the first {trial.schema.x_column}")
        return trial.make(), [], 0.0, "never"
    on_event(f"{trial.label}: resuming after {trial.schema.x_column} {len(checkpoint.rows)}")
    now = numerics(trial.device, trial.kernel(learner))
    resumed = how_resumed(checkpoint, trial.label, now, trial.restarted(learner), on_event)
    return learner, checkpoint.rows, checkpoint.seconds, resumed


def how_resumed(
    checkpoint: Checkpoint, label: str, now: Mapping[str, str], new_episodes: str | None, on_event: Event
) -> Resumed:
    """How a run is resumed from a checkpoint, reported unless it is bit for bit; new episodes only the first time.

    Args:
        checkpoint: the checkpoint that was loaded.
        label: name of the run in messages.
        now: the current `numerics`.
        new_episodes: why environments started new episodes; None if they did not.
        on_event: called with messages for the user.
    """
    if new_episodes is not None:
        if checkpoint.resumed != RESTARTED:
            on_event(f"{label}: starting new episodes, so the numbers differ from an uninterrupted run: {new_episodes}")
        return RESTARTED
    reason = inexact_reason(checkpoint.numerics, now)
    if reason is not None:
        on_event(f"{label}: the last digits may differ from an uninterrupted run: {reason}")
    if checkpoint.resumed == RESTARTED:
        return RESTARTED
    return "exact" if reason is None and checkpoint.resumed != INEXACT else INEXACT


def simulator(name: str, packages: Sequence[str]) -> dict[str, Any]:
    """The `data` of a record for a run in an environment of these packages."""
    made_by = ", ".join(f"{package} {installed_version(package)}" for package in packages)
    return {"name": name, "kind": "simulator", "location": made_by, "checksum": None, "official": None}
