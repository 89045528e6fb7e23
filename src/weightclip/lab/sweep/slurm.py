"""The Slurm executor: jobs are tasks of an array job, submitted through submitit.

The store is on a file system that all nodes share. A task locks its runs and writes to the store like a local
worker. This process submits the tasks and reports on them from locks and records.
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
from weightclip.lab.sweep.executor import ATTEMPTS, Advanced, Ended, Message, Report, Started, check_installed
from weightclip.lab.sweep.local import cores, one_thread_for_children
from weightclip.lab.sweep.locks import Note, locked_runs
from weightclip.lab.sweep.worker import Job, Outcome, Shared, mark_failed, one_line, run_job

SLURM, LOCAL = "slurm", "local"

TASKS = 1000
"""Maximum size of an array (Slurm's default). With more jobs, each task runs several."""

WORKERS = 100
MINUTES = 24 * 60
SECONDS_TO_STOP = 10.0

SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
"""Parameters of submitit that have the same name for every kind of cluster."""


@dataclass(frozen=True)
class Slurm:
    """Runs jobs as tasks of array jobs. A lost task is resubmitted and its runs resume from their last checkpoints.

    Args:
        folder: directory for submitit's files and logs, on the shared file system.
        count: number of tasks that run at the same time.
        parameters: `cluster` ("slurm", or "local": processes of this machine), `time` in minutes, parameters of
            submitit (`SHARED`, `slurm_...`), and options of sbatch: `partition`, `account`, `reservation`, ...
        dry_run: whether nothing is submitted, so that sbatch is not required.
    """

    folder: Path
    count: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_installed("slurm", "submitit")
        check_name("--slurm cluster", self.cluster, (SLURM, LOCAL))
        submits = self.cluster == SLURM and not self.dry_run
        if submits and shutil.which("sbatch") is None:
            raise ValueError("--executor slurm: sbatch not found; expected a machine that submits jobs to Slurm")
        with tempfile.TemporaryDirectory() as folder:  # report invalid parameters early, without leaving files
            self._submitter(Path(folder), SLURM if submits else LOCAL)

    @property
    def cluster(self) -> str:
        return str(self.parameters.get("cluster", SLURM))

    @property
    def workers(self) -> int:
        return self.count or (WORKERS if self.cluster == SLURM else cores())

    def run(self, shared: Shared, jobs: Sequence[Job]) -> Generator[Report, None, None]:
        """Run the jobs, approximately in order."""
        shared = replace(shared.without_data(), store=shared.store.absolute())
        waiting = [_TrackedJob(f"job {number}", job, shared.store) for number, job in enumerate(jobs, start=1)]
        tasks: list[_SubmittedTask] = []
        try:
            while waiting or tasks:
                if waiting:
                    submitted = self._submit(shared, waiting)
                    waiting, tasks = [], [*tasks, *submitted]
                    number, last = counted(len(submitted), "task"), submitted[-1].handle.job_id
                    yield Message(f"{number} submitted, last: {last}; Ctrl-C cancels them; logs: {self.folder}")
                # Polling more tasks puts more load on the file system.
                time.sleep(min(0.5 + len(tasks) / 50, 30.0))
                held = locked_runs(shared.store)
                for one in tasks:
                    yield from one.poll(held)
                for one in [one for one in tasks if one.handle.done()]:
                    tasks.remove(one)
                    waiting += yield from one.end()
        finally:
            self._cancel(tasks)

    def _submit(self, shared: Shared, tracked: Sequence[_TrackedJob]) -> list[_SubmittedTask]:
        """Submit an array. Jobs are assigned to its tasks round-robin, so that the first seeds finish first."""
        number = min(len(tracked), TASKS if self.cluster == SLURM else self.workers)
        groups = [list(tracked[first::number]) for first in range(number)]
        submitter = self._submitter(self.folder, self.cluster, timeouts=ATTEMPTS * len(groups[0]) - 1)
        # A task inherits the environment, and this process may be a Slurm job itself.
        with one_thread_for_children(), _submitit().helpers.clean_env():
            try:
                handles = submitter.map_array(_Work(shared), [[one.job for one in group] for group in groups])
            except RuntimeError as error:
                raise ValueError(f"--executor slurm: {one_line(error)}") from error
        return [_SubmittedTask(handle, group) for handle, group in zip(handles, groups, strict=True)]

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
            raise ValueError(f"--slurm: {one_line(error)}") from error
        return submitter

    def _cancel(self, tasks: Sequence[_SubmittedTask]) -> None:
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
    """The function that a task executes."""

    shared: Shared

    def __call__(self, jobs: Sequence[Job]) -> list[tuple[Outcome, ...]]:
        data: dict[Any, Any] = {}
        return [run_job(self.shared, job, data, print) for job in jobs]

    def checkpoint(self, jobs: Sequence[Job]) -> Any:
        """Resubmit the same jobs; submitit calls this at the time limit or on preemption."""
        return _submitit().helpers.DelayedSubmission(self, jobs)


@dataclass
class _TrackedJob:
    """A job that is tracked through its locks and records."""

    name: str
    job: Job
    store: Path
    attempts: int = 0
    started: bool = False
    ended: bool = False
    done: float = 0.0

    def poll(self, held: Mapping[str, Note | None]) -> Iterator[Report]:
        notes = [note for run in self.job if (note := held.get(run.identity)) is not None]
        if notes and not self.started:
            self.started = True
            yield Started(self.name, self.job)
        if notes and notes[0].done > self.done:
            self.done = notes[0].done
            yield Advanced(self.name, self.done)
        if self.started and not notes:
            yield from self.end_if_done()

    def end_if_done(self) -> Iterator[Report]:
        if all(is_done(self.store, run) for run in self.job):
            yield self.end(tuple(Outcome(run.identity, "done") for run in self.job))

    def end(self, outcomes: tuple[Outcome, ...]) -> Ended:
        self.ended = True
        return Ended(self.name, self.job, outcomes)

    def mark_lost(self) -> None:
        self.attempts += 1
        self.started, self.done = False, 0.0


@dataclass(frozen=True)
class _SubmittedTask:
    """A task of an array: its handle in submitit, and its jobs."""

    handle: Any
    group: list[_TrackedJob]

    @property
    def array(self) -> str:
        return str(self.handle.job_id).partition("_")[0]

    def poll(self, held: Mapping[str, Note | None]) -> Iterator[Report]:
        for one in self.group:
            if not one.ended:
                yield from one.poll(held)

    def end(self) -> Generator[Report, None, list[_TrackedJob]]:
        """Report the outcomes of the jobs and return the jobs to resubmit."""
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
        for one in [one for one in lost if one.started] or lost:
            one.mark_lost()
        for one in [one for one in lost if one.attempts == ATTEMPTS]:
            reason = f"job was lost {ATTEMPTS} times"
            yield one.end(tuple(mark_failed(one.store, run, reason, str(error)) for run in one.job))
        again = [one for one in lost if not one.ended]
        if again:
            yield Message(f"job {self.handle.job_id} was lost; resubmitting its runs")
        return again


def _submitit() -> Any:
    """Import the optional library."""
    return import_module("submitit")
