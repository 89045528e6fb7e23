"""What a worker does, wherever it is: claim runs, run them, and write a record or a note of the failure."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from weightclip.lab.experiment import NOBODY, Experiment, Watch
from weightclip.lab.results.record import Record, read_record
from weightclip.lab.results.store import Failure, checkpoint_path, failure_path, now, record_path, write_failure
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


def is_done(store: Path, run: Run) -> bool:
    """Whether the store has the run's record, whole; then a checkpoint of it is of no use."""
    path = record_path(store, run.place, run.identity)
    try:
        done = path.exists() and read_record(path).identity == run.identity
    except ValueError:
        return False
    if done:  # its process may have been killed between its last two actions, or the run was made elsewhere
        checkpoint_path(path).unlink(missing_ok=True)
    return done


def has_failed(store: Path, run: Run) -> bool:
    """Whether the run failed before."""
    return failure_path(store, run.place, run.identity).exists()


def run_batch(
    experiment: Experiment[Any], runs: Sequence[Run], data: Any, store: Path, watch: Watch = NOBODY
) -> list[Outcome]:
    """Run what of these nobody else runs or has run; one outcome each."""
    with ExitStack() as held:
        outcomes, mine = claim_missing(store, runs, held)
        if mine:
            outcomes += _run_mine(experiment, mine, data, store, watch)
    return outcomes


def claim_missing(store: Path, runs: Sequence[Run], held: ExitStack) -> tuple[list[Outcome], list[tuple[Run, Claim]]]:
    """Claim what of these nobody else runs or has run, until `held` is closed; the outcomes of the others."""
    outcomes, mine = [], []
    for run in runs:
        claimed = claim(store, run.identity, run.place)
        if claimed is None:
            outcomes.append(Outcome(run.identity, "claimed"))
            continue
        held.callback(claimed.release)
        if is_done(store, run):  # by somebody else, since the plan was made
            outcomes.append(Outcome(run.identity, "done"))
        else:
            mine.append((run, claimed))
    return outcomes, mine


def in_a_line(error: Exception) -> str:
    """The reason of a failure."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def note_failure(store: Path, run: Run, reason: str, trace: str) -> Outcome:
    """Leave a note of a run that failed."""
    failure = Failure(run.place, run.identity, run.experiment, asdict(run.config), reason, trace, now())
    write_failure(store, failure)
    return Outcome(run.identity, "failed", reason=reason)


def note_success(store: Path, run: Run, record: Record) -> Outcome:
    """Forget that it failed before, if it did. A record of another run, because the worker has other data, is none."""
    if record.identity != run.identity:
        reason = f"its worker has other data, or weightclip {record.versions.get('weightclip')} behaves otherwise"
        return note_failure(store, run, reason, reason)
    failure_path(store, run.place, run.identity).unlink(missing_ok=True)
    return Outcome(run.identity, "done", seconds=record.seconds)


def _run_mine(
    experiment: Experiment[Any], mine: Sequence[tuple[Run, Claim]], data: Any, store: Path, watch: Watch
) -> list[Outcome]:
    length = experiment.length(mine[0][0].config)

    def progress(steps: int, score: float) -> None:
        for _, claimed in mine:
            claimed.note(steps / length)
        watch.progress(steps, score)

    try:
        watching = Watch(watch.event, progress, watch.row)
        records = experiment.run([run.config for run, _ in mine], data, store, watch=watching)
    except Exception as error:
        return [note_failure(store, run, in_a_line(error), traceback.format_exc()) for run, _ in mine]
    return [note_success(store, run, record) for (run, _), record in zip(mine, records, strict=True)]
