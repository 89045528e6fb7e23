"""What the executors have in common: they are given jobs, and report what becomes of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from weightclip.lab.experiment import Experiment
from weightclip.lab.sweep.live import Live
from weightclip.lab.sweep.plan import Run
from weightclip.lab.sweep.work import Outcome

ATTEMPTS = 3
"""How often a job is begun whose worker dies before it is counted as failed."""

Job = tuple[Run, ...]
"""Runs that go together."""


@dataclass(frozen=True)
class Task:
    """What all jobs of a sweep share.

    Args:
        experiment: what to run.
        store: the directory for the records.
        data_dir: the user's directory with data, if there is one.
        data: what `Experiment.load` gave, by key; for executors whose workers cannot load it themselves.
        live: where to show rows as they come.
    """

    experiment: Experiment[Any]
    store: Path
    data_dir: Path | None = None
    data: dict[Any, Any] = field(default_factory=dict)
    live: Live = Live()


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

    def run(self, task: Task, jobs: Sequence[Job]) -> Generator[Report, None, None]: ...
