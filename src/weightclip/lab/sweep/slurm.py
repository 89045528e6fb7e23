"""Slurm: the jobs of a sweep as the tasks of an array job, through submitit.

The store lies on a file system that all nodes share. A task claims its runs and writes to the store as a local worker
does; this process submits, looks on and reports.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from weightclip._text import counted
from weightclip._validation import check_name
from weightclip.lab.records.store import is_done
from weightclip.lab.sweep.claims import Note, running
from weightclip.lab.sweep.executor import (
    ATTEMPTS,
    Advanced,
    Ended,
    Job,
    Report,
    Said,
    Shared,
    Started,
    check_installed,
    run_job,
)
from weightclip.lab.sweep.local import cores, one_thread_for_children
from weightclip.lab.sweep.work import Outcome, in_a_line, note_failure

SLURM, LOCAL = "slurm", "local"

TASKS = 1000
"""How many an array has at most, as Slurm is set up by default; with more jobs, a task runs several."""

WORKERS = 100
MINUTES = 24 * 60
SECONDS_TO_STOP = 10.0

SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
"""What submitit calls the same for every kind of cluster."""


@dataclass(frozen=True)
class Slurm:
    """The tasks of array jobs. One that is lost is submitted again, and its runs go on after their last checkpoints.

    Args:
        folder: for submitit's files and the logs; on the shared file system.
        count: how many tasks run at once.
        parameters: `cluster` ("slurm", or "local": processes of this machine), `time` in minutes, submitit's own ones
            (`SHARED`, `slurm_...`); any other is an option of sbatch: `partition`, `account`, `reservation`, ...
        only_asked: nothing will be run, so that this need not be a machine that submits.
    """

    folder: Path
    count: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    only_asked: bool = False

    def __post_init__(self) -> None:
        check_installed("slurm", "submitit")
        check_name("--slurm cluster", self.cluster, (SLURM, LOCAL))
        submits = self.cluster == SLURM and not self.only_asked
        if submits and shutil.which("sbatch") is None:
            raise ValueError("--executor slurm: sbatch is not here; expected a machine that submits jobs to Slurm")
        with tempfile.TemporaryDirectory() as folder:  # so that mistakes are told now, and nothing is left
            self._submitter(Path(folder), SLURM if submits else LOCAL)

    @property
    def cluster(self) -> str:
        return str(self.parameters.get("cluster", SLURM))

    @property
    def workers(self) -> int:
        return self.count or (WORKERS if self.cluster == SLURM else cores())

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs, about in their order."""
        shared = replace(shared.without_data(), store=shared.store.absolute())
        waiting = [_Followed(f"job {number}", job, shared.store) for number, job in enumerate(jobs, start=1)]
        tasks: list[_Submitted] = []
        try:
            while waiting or tasks:
                if waiting:
                    submitted = self._submit(shared, waiting)
                    waiting, tasks = [], [*tasks, *submitted]
                    number, last = counted(len(submitted), "task"), submitted[-1].handle.job_id
                    yield Said(f"{number} submitted, the last is {last}; Ctrl-C cancels them; logs: {self.folder}")
                # The more there are, the more a look at all of them costs the file system.
                time.sleep(min(0.5 + len(tasks) / 50, 30.0))
                held = running(shared.store)
                for one in tasks:
                    yield from one.look(held)
                for one in [one for one in tasks if one.handle.done()]:
                    tasks.remove(one)
                    waiting += yield from one.end()
        finally:
            self._cancel(tasks)

    def _submit(self, shared: Shared, followed: Sequence[_Followed]) -> list[_Submitted]:
        """Give each task of an array every so manieth job, so that the first seeds are done first."""
        number = min(len(followed), TASKS if self.cluster == SLURM else self.workers)
        groups = [list(followed[first::number]) for first in range(number)]
        submitter = self._submitter(self.folder, self.cluster, timeouts=ATTEMPTS * len(groups[0]) - 1)
        # A job inherits the environment, and this process may itself be one of Slurm's.
        with one_thread_for_children(), _submitit().helpers.clean_env():
            try:
                handles = submitter.map_array(_Work(shared), [[one.job for one in group] for group in groups])
            except RuntimeError as error:
                raise ValueError(f"--executor slurm: {in_a_line(error)}") from error
        return [_Submitted(handle, group) for handle, group in zip(handles, groups, strict=True)]

    def _submitter(self, folder: Path, cluster: str, timeouts: int = 0) -> Any:
        known: dict[str, Any] = {"name": "weightclip", "timeout_min": MINUTES, "slurm_array_parallelism": self.workers}
        options: dict[str, Any] = {}
        for name, value in self.parameters.items():
            if name == "time":
                if not isinstance(value, int):
                    raise ValueError(f"--slurm time: got {value!r}, expected minutes")
                known["timeout_min"] = value
            elif name in SHARED or name.startswith(("slurm_", "local_")):
                known[name] = value
            elif name != "cluster":
                options[name] = value
        limit = {f"{cluster}_max_num_timeout": timeouts}
        try:
            if "mem_gb" in known:
                known["mem_gb"] = float(known["mem_gb"])
            submitter = _submitit().AutoExecutor(folder, cluster=cluster, **limit)
            submitter.update_parameters(**known, slurm_additional_parameters=options)
        except (AssertionError, NameError, RuntimeError, ValueError) as error:
            raise ValueError(f"--slurm: {in_a_line(error)}") from error
        return submitter

    def _cancel(self, tasks: Sequence[_Submitted]) -> None:
        if self.cluster == SLURM:
            if tasks:
                subprocess.run(["scancel", *sorted({one.array for one in tasks})], check=False)
            return
        for one in tasks:
            one.handle.cancel()
        deadline = time.monotonic() + SECONDS_TO_STOP
        while time.monotonic() < deadline and not all(one.handle.done() for one in tasks):
            time.sleep(0.1)


@dataclass(frozen=True)
class _Work:
    """What a task of an array does."""

    shared: Shared

    def __call__(self, jobs: Sequence[Job]) -> list[tuple[Outcome, ...]]:
        data: dict[Any, Any] = {}
        return [run_job(self.shared, job, data, print) for job in jobs]

    def checkpoint(self, jobs: Sequence[Job]) -> Any:
        """When the time is up or the node is wanted, submitit asks how to go on: the same again."""
        return _submitit().helpers.DelayedSubmission(self, jobs)


@dataclass
class _Followed:
    """A job, as far as its claims and records tell."""

    name: str
    job: Job
    store: Path
    attempts: int = 0
    begun: bool = False
    ended: bool = False
    done: float = 0.0

    def look(self, held: Mapping[str, Note | None]) -> Iterator[Report]:
        notes = [note for run in self.job if (note := held.get(run.identity)) is not None]
        if notes and not self.begun:
            self.begun = True
            yield Started(self.name, self.job)
        if notes and notes[0].done > self.done:
            self.done = notes[0].done
            yield Advanced(self.name, self.done)
        if self.begun and not notes:
            yield from self.end_if_done()

    def end_if_done(self) -> Iterator[Report]:
        if all(is_done(self.store, run) for run in self.job):
            yield self.end(tuple(Outcome(run.identity, "done") for run in self.job))

    def end(self, outcomes: tuple[Outcome, ...]) -> Ended:
        self.ended = True
        return Ended(self.name, self.job, outcomes)

    def lose(self) -> None:
        self.attempts += 1
        self.begun, self.done = False, 0.0


@dataclass(frozen=True)
class _Submitted:
    """A task of an array: submitit's handle on it, and its jobs."""

    handle: Any
    group: list[_Followed]

    @property
    def array(self) -> str:
        return str(self.handle.job_id).partition("_")[0]

    def look(self, held: Mapping[str, Note | None]) -> Iterator[Report]:
        for one in self.group:
            if not one.ended:
                yield from one.look(held)

    def end(self) -> Generator[Report, None, list[_Followed]]:
        """Report what became of the jobs; those that have to be submitted again."""
        error = self.handle.exception()
        if error is None:
            for one, outcomes in zip(self.group, self.handle.result(), strict=True):
                if not one.ended:
                    yield one.end(outcomes)
            return []
        for one in self.group:
            if not one.ended:
                yield from one.end_if_done()
        lost = [one for one in self.group if not one.ended]
        for one in [one for one in lost if one.begun] or lost:
            one.lose()
        for one in [one for one in lost if one.attempts == ATTEMPTS]:
            reason = f"its job was lost {ATTEMPTS} times"
            yield one.end(tuple(note_failure(one.store, run, reason, str(error)) for run in one.job))
        again = [one for one in lost if not one.ended]
        if again:
            yield Said(f"job {self.handle.job_id} was lost; submitting its runs again")
        return again


def _submitit() -> Any:
    """The library, which is optional."""
    return import_module("submitit")
