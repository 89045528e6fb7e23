"""What a worker does, wherever it is: claim runs, run them, and write a record or a note of the failure."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from weightclip.lab.experiment import NO_CALLBACKS, Callbacks, Experiment
from weightclip.lab.records.record import Record
from weightclip.lab.records.store import (
    Failure,
    failed_since,
    failure_path,
    is_done,
    now,
    remove_checkpoints,
    write_failure,
)
from weightclip.lab.sweep.claims import Claim, claim
from weightclip.lab.sweep.plan import Run

Status = Literal["done", "failed", "claimed"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: done, failed (with the reason in a line), or claimed by somebody else."""

    identity: str
    status: Status
    seconds: float = 0.0
    reason: str = ""


def run_batch(
    experiment: Experiment[Any],
    runs: Sequence[Run],
    data: Any,
    store: Path,
    callbacks: Callbacks = NO_CALLBACKS,
    since: float = math.inf,
) -> list[Outcome]:
    """Run what of these nobody else runs, or has run `since` the sweep began; one outcome each."""
    with ExitStack() as held:
        outcomes, mine = claim_missing(store, runs, held, since)
        if mine:
            outcomes += _run_mine(experiment, mine, data, store, callbacks)
    return outcomes


def claim_missing(
    store: Path, runs: Sequence[Run], held: ExitStack, since: float = math.inf
) -> tuple[list[Outcome], list[tuple[Run, Claim]]]:
    """Claim what of these nobody else runs or has run, until `held` is closed; the outcomes of the others.

    A note of a failure counts if it was written `since` that time: an older one is what a sweep was asked to retry.
    """
    outcomes, mine = [], []
    for run in runs:
        claimed = claim(store, run.identity, run.relative_path)
        if claimed is None:
            outcomes.append(Outcome(run.identity, "claimed"))
            continue
        held.callback(claimed.release)
        if is_done(store, run):  # by somebody else, since the plan was made
            remove_checkpoints(store, [run])
            outcomes.append(Outcome(run.identity, "done"))
        elif (reason := failed_since(store, run, since)) is not None:
            outcomes.append(Outcome(run.identity, "failed", reason=reason))
        else:
            mine.append((run, claimed))
    return outcomes, mine


def in_a_line(error: Exception) -> str:
    """The reason of a failure."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def note_failure(store: Path, run: Run, reason: str, trace: str) -> Outcome:
    """Leave a note of a run that failed."""
    failure = Failure(run.relative_path, run.identity, run.experiment, asdict(run.config), reason, trace, now())
    write_failure(store, failure)
    return Outcome(run.identity, "failed", reason=reason)


def note_success(store: Path, run: Run, record: Record) -> Outcome:
    """Forget that it failed before, if it did. A record of another run, because the worker has other data, is none."""
    if record.identity != run.identity:
        reason = f"its worker has other data, or weightclip {record.versions.get('weightclip')} behaves otherwise"
        return note_failure(store, run, reason, reason)
    failure_path(store, run.relative_path, run.identity).unlink(missing_ok=True)
    return Outcome(run.identity, "done", seconds=record.seconds)


def _run_mine(
    experiment: Experiment[Any], mine: Sequence[tuple[Run, Claim]], data: Any, store: Path, callbacks: Callbacks
) -> list[Outcome]:
    length = experiment.length(mine[0][0].config)
    for _, claimed in mine:
        claimed.begin()

    def progress(steps: int, score: float) -> None:
        for _, claimed in mine:
            claimed.note(steps / length)
        callbacks.on_progress(steps, score)

    try:
        watching = Callbacks(callbacks.on_event, progress, callbacks.on_row)
        records = experiment.run([run.config for run, _ in mine], data, store, callbacks=watching)
    except Exception as error:
        return [note_failure(store, run, in_a_line(error), traceback.format_exc()) for run, _ in mine]
    return [note_success(store, run, record) for (run, _), record in zip(mine, records, strict=True)]
