"""Sweeps never lose, duplicate or change a record, regardless of failures of processes, disk, files and clock."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from descent_experiment import Descent
from descent_sweep import LONGER_PLAN, PLAN, drive
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from polars.testing import assert_frame_equal
from simulation import Machine, Process, current, simulated

from processes import SECONDS, saved_rows, start_process, wait_for
from weightclip.lab.callbacks import NO_CALLBACKS
from weightclip.lab.checkpoint import read_checkpoint
from weightclip.lab.records.record import Record, read_record
from weightclip.lab.records.store import checkpoint_path, failures, record_path
from weightclip.lab.sweep.executor import Ended, Report
from weightclip.lab.sweep.locks import FOLDER, locked_runs
from weightclip.lab.sweep.plan import Plan, Run, take_inventory
from weightclip.lab.sweep.worker import Outcome

STEPS = 20_000
"""More steps than any sweep needs; a sweep that exceeds them would wait forever."""

ROWS_BEFORE = st.integers(1, 60)

FILES = {
    "record": "descent/*/*seed?_????????????.parquet",
    "part": "descent/*/*.weights.parquet",
    "checkpoint": "descent/*/*.npz",
    "failure note": "descent/*/*.failed.json",
    "temporary file": "descent/*/.*.tmp",
    "lock": f"{FOLDER}/????????????",
    "progress": f"{FOLDER}/*.json",
}


CHANGES = st.sampled_from(("flip", "truncate", "empty", "remove"))
PLACES = st.integers(0, 9999) | st.integers(0, 300)  # the values of a record come first
HOURS = st.sampled_from((-5, 5))


def event(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


EVENTS = st.one_of(
    event("start_sweep", st.integers(1, 2), st.booleans(), st.just(0) | HOURS),
    event("run_one_process", st.integers(0, 3), st.integers(1, 100)),
    event("kill", st.integers(0, 3)),
    event("kill_all"),
    event("fill_disk", st.sampled_from((1, 2, 10))),
    event(
        "fail_write",
        st.sampled_from(("fsync", "os.rename", "os.remove")),
        st.sampled_from((".parquet", ".weights.parquet", ".checkpoint.npz", ".failed.json")),
        st.booleans(),
    ),
    event("fail_write", st.just("fsync"), st.just(".parquet"), st.booleans()),
    event("damage", st.sampled_from(sorted(FILES)), st.integers(0, 3), CHANGES, PLACES),
    event("damage", st.just("record"), st.integers(0, 3), st.just("flip"), PLACES),
    event("overwrite_with_another", st.sampled_from(("record", "checkpoint")), st.integers(0, 3)),
    event("shift_times", HOURS),
)


@cache
def uninterrupted() -> dict[str, Record]:
    """Identity -> record."""
    configs = [run.config for plan in (PLAN, LONGER_PLAN) for run in plan.runs]
    return {record.identity: record for record in Descent().run(configs, None, None, False, NO_CALLBACKS)}


def assert_uninterrupted(record: Record) -> None:
    """Everything except times equals the uninterrupted run bit for bit."""
    expected = uninterrupted()[record.identity]
    assert_frame_equal(record.table, expected.table, check_exact=True)
    assert_frame_equal(record.tables["weights"], expected.tables["weights"], check_exact=True)
    assert (record.config, record.schema) == (expected.config, expected.schema)


def path_of(store: Path, run: Run) -> Path:
    return record_path(store, run.relative_path, run.identity)


def assert_complete(store: Path, plan: Plan) -> None:
    """Every run has one correct record and the store has no other files."""
    assert len(take_inventory(plan, store).done) == len(plan.runs)
    for run in plan.runs:
        assert_uninterrupted(read_record(path_of(store, run)))
    names = [path.relative_to(store) for path in store.rglob("*") if path.is_file()]
    found = {str(name) for name in names if name.parts[0] != ".sweeps"}
    ends = (".parquet", ".weights.parquet")
    assert found == {f"{run.relative_path}_{run.identity}{end}" for run in plan.runs for end in ends}


def damage(path: Path, change: str, place: int) -> None:
    """Damage a file at a relative position from 0 to 9999."""
    content = bytearray(path.read_bytes())
    if change == "remove":
        path.unlink()
    elif change == "flip" and content:
        content[place * len(content) // 10_000] ^= 1 << place % 8
        path.write_bytes(content)
    else:
        os.truncate(path, 0 if change == "empty" else place * len(content) // 10_000)


def shift_times(store: Path, hours: int) -> None:
    """Shift modification times, as if the clock of the file server differed or jumped."""
    when = time.time() + 3600 * hours
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):
            os.utime(path, (when, when))


class Histories(RuleBasedStateMachine):
    """Drivers and their workers share a store. At any time, any of them runs for some steps or is killed."""

    @initialize()
    def make_store(self) -> None:
        self.store = Path(tempfile.mkdtemp()) / "store"
        self.machine = Machine(self.store)
        self.turn = 0
        self.known: dict[Path, bytes] = {}
        self.unreported: dict[Path, int] = {}
        self.damaged: set[Path] = set()
        self.executed: dict[str, Process] = {}
        Descent.executing = self.executing

    @rule(steps=st.integers(0, 250), event=EVENTS)
    def apply_event(self, steps: int, event: tuple[Any, ...]) -> None:
        """Run all processes, with at least one sweep, and then apply an event.

        There is one rule for all events, because Hypothesis chooses values more evenly than rules.
        """
        if not self.drivers():
            self.machine.start(lambda: self.drive(1, retry_failed=True))
        self.take_turns(steps)
        name, *arguments = event
        getattr(self, name)(*arguments)

    def start_sweep(self, workers: int, retry_failed: bool, hours: int) -> None:
        """Start a second sweep, on a machine whose clock may differ by hours."""
        if len(self.drivers()) < 2:
            self.machine.start(lambda: self.drive(workers, retry_failed), skew=3600.0 * hours)

    def run_one_process(self, which: int, steps: int) -> None:
        """Run a single process while all others are suspended."""
        for process in self.machine.live()[which : which + 1]:
            for _ in range(steps):
                if process in self.machine.runnable():
                    process.step()

    def kill(self, which: int) -> None:
        for process in self.machine.live()[which : which + 1]:
            process.kill()

    def kill_all(self) -> None:
        for process in self.machine.live():
            process.kill()

    def fill_disk(self, operations: int) -> None:
        """Fill the disk until other processes have removed files."""
        self.machine.full = operations

    def fail_write(self, operation: str, end: str, full: bool) -> None:
        """Kill a process or fill the disk when the process writes or removes a file."""
        for _ in range(400):
            for process in self.machine.live():
                name = os.path.basename(process.path)
                if process.operation == operation and re.search(f"_[0-9a-f]{{12}}{re.escape(end)}", name):
                    if full:
                        self.machine.full = 1
                    else:
                        process.kill()
                    return
            self.take_turns(1)

    def damage(self, kind: str, which: int, change: str, place: int) -> None:
        for path in sorted(self.store.glob(FILES[kind]))[which : which + 1]:
            if change != "remove" or kind not in ("lock", "temporary file"):  # removed only by their processes
                damage(path, change, place)
                self.expect_report(path)

    def overwrite_with_another(self, kind: str, which: int) -> None:
        """Replace a record or a checkpoint with another run's."""
        found = sorted(self.store.glob(FILES[kind]))
        if len(found) > 1:
            path, other = found[which % len(found)], found[(which + 1) % len(found)]
            path.write_bytes(other.read_bytes())
            self.expect_report(path)

    def shift_times(self, hours: int) -> None:
        shift_times(self.store, hours)

    # The checks.

    @invariant()
    def check_finished_records(self) -> None:
        for run in PLAN.runs:
            path = path_of(self.store, run)
            content = path.read_bytes() if path.exists() else None
            if path in self.known:
                assert content == self.known[path], f"{path} changed"
            elif content is not None and not self.is_valid(path):
                assert path in self.damaged, f"{path} is damaged"
            elif content is not None:
                assert_uninterrupted(read_record(path))
                self.damaged.discard(path)
                if run.identity not in self.executed:  # a damaged record is valid again when its part is rewritten
                    self.known[path] = content
        unexpected = [one.reason + one.traceback for one in failures(self.store) if not self.is_expected(one.reason)]
        assert not unexpected, unexpected
        for process in self.machine.processes:
            if process.error is not None and not self.is_expected(str(process.error)):
                raise AssertionError("a process failed") from process.error

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        try:
            self.check_next_sweep_completes()
        finally:
            Descent.executing = type(self)._unwatched
            for process in self.machine.live():
                process.kill()
            shutil.rmtree(self.store.parent)

    def check_next_sweep_completes(self) -> None:
        """After all events, running sweeps finish and the next sweep completes the store."""
        self.machine.full = 0
        self.machine.kill_orphans()
        self.finish()
        self.check_finished_records()
        outcomes: list[Outcome] = []
        self.machine.start(lambda: outcomes.extend(self.drive(2, retry_failed=True)))
        self.finish()
        self.check_finished_records()
        assert {one.status for one in outcomes} <= {"done"}, outcomes
        for path, first in self.unreported.items():
            assert any(str(path) in line for line in self.machine.lines[first:]), f"{path} was not reported"
        assert_complete(self.store, PLAN)

    # Helpers.

    _unwatched: Callable[[str], object] = Descent.executing

    def drive(self, workers: int, retry_failed: bool) -> list[Outcome]:
        return drive(PLAN, self.store, workers, retry_failed, self.check_report)

    def check_report(self, report: Report) -> None:
        """A run that is reported as done has a record unless the record was damaged."""
        if isinstance(report, Ended):
            paths = {run.identity: path_of(self.store, run) for run in report.job}
            for one in report.outcomes:
                assert one.status != "done" or paths[one.identity].exists() or self.was_damaged(paths[one.identity])

    @contextmanager
    def executing(self, identity: str) -> Iterator[None]:
        """No two processes execute the same run at the same time."""
        process = current()
        if process is None:
            yield
            return
        assert identity not in self.executed, "two processes execute the same run"
        self.executed[identity] = process
        try:
            yield
        finally:
            del self.executed[identity]

    def expect_report(self, path: Path) -> None:
        """A damaged file is reported by the run that finds it."""
        records = [path_of(self.store, run) for run in PLAN.runs]
        record = next((one for one in records if path.name.lstrip(".").startswith(one.stem)), None)
        if record is None:
            return
        if ".parquet" in path.name:
            self.damaged.add(record)
        self.known.pop(record, None)
        self.unreported.pop(path, None)
        identity = record.stem.rpartition("_")[2]
        if identity in self.executed or not path.exists():
            return
        unusable_record = path == record and not self.is_valid(record)
        unusable_checkpoint = path == checkpoint_path(record) and not self.is_usable(path, identity)
        if unusable_record or (unusable_checkpoint and not record.exists()):
            self.unreported[path] = len(self.machine.lines)

    def is_valid(self, record: Path) -> bool:
        try:
            return read_record(record).identity == record.stem.rpartition("_")[2]
        except (ValueError, OSError):
            return False

    def is_usable(self, checkpoint: Path, identity: str) -> bool:
        try:
            return read_checkpoint(checkpoint).identity == identity
        except ValueError:
            return False

    def was_damaged(self, record: Path) -> bool:
        return record in self.damaged

    def is_expected(self, reason: str) -> bool:
        return "No space left on device" in reason or reason == "worker died 3 times"

    def drivers(self) -> list[Process]:
        return [process for process in self.machine.live() if process.parent is None]

    def take_turns(self, steps: int) -> None:
        for _ in range(steps):
            runnable = self.machine.runnable()
            if not runnable:
                return
            self.turn += 1
            runnable[self.turn % len(runnable)].step()

    def finish(self) -> None:
        self.take_turns(STEPS)
        assert not self.machine.live(), "a sweep waits forever"


class KilledProcesses(RuleBasedStateMachine):
    """Histories with real processes, `kill -9` and a longer plan, which proceed by saved rows instead of time."""

    @initialize()
    def make_store(self) -> None:
        self.store = Path(tempfile.mkdtemp()) / "store"
        self.running = ExitStack()
        self.drivers: list[subprocess.Popen[bytes]] = []

    @rule(rows=ROWS_BEFORE)
    def start_another_sweep(self, rows: int) -> None:
        self.proceed(rows)
        if len(self.live()) < 2:
            self.start()

    @rule(rows=ROWS_BEFORE)
    def kill_driver(self, rows: int) -> None:
        self.proceed(rows)
        for driver in self.live()[:1]:
            driver.kill()
            driver.wait()

    @rule(rows=ROWS_BEFORE, which=st.integers(0, 3))
    def kill_worker(self, rows: int, which: int) -> None:
        self.proceed(rows)
        notes = [note for note in locked_runs(self.store).values() if note is not None]
        if notes:
            with suppress(ProcessLookupError):
                os.kill(notes[which % len(notes)].process, signal.SIGKILL)

    @rule(
        rows=ROWS_BEFORE,
        kind=st.sampled_from(("record", "part", "checkpoint")),
        which=st.integers(0, 3),
        change=st.sampled_from(("flip", "truncate", "empty")),
        place=st.integers(0, 9999),
    )
    def damage(self, rows: int, kind: str, which: int, change: str, place: int) -> None:
        """Kill all processes and damage a file."""
        self.proceed(rows)
        self.kill_all()
        found = sorted(self.store.glob(FILES[kind]))
        if found:
            damage(found[which % len(found)], change, place)

    @rule(rows=ROWS_BEFORE, hours=st.sampled_from((-5, 5)))
    def shift_times(self, rows: int, hours: int) -> None:
        self.proceed(rows)
        shift_times(self.store, hours)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            for driver in self.drivers:
                driver.wait(SECONDS)
            paths = [path_of(self.store, run) for run in take_inventory(LONGER_PLAN, self.store).done]
            before = {path: path.read_bytes() for path in paths}
            assert self.start().wait(SECONDS) == 0
            assert {path: path.read_bytes() for path in before} == before
            assert_complete(self.store, LONGER_PLAN)
        finally:
            self.running.close()
            shutil.rmtree(self.store.parent)

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).with_name("descent_sweep.py")), str(self.store)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.drivers.append(self.running.enter_context(start_process(command, **quiet)))
        return self.drivers[-1]

    def live(self) -> list[subprocess.Popen[bytes]]:
        return [driver for driver in self.drivers if driver.poll() is None]

    def kill_all(self) -> None:
        """Kill all drivers. Their workers end and release their locks."""
        for driver in self.live():
            driver.kill()
            driver.wait()
        wait_for(lambda: not locked_runs(self.store), "the end of all workers")

    def proceed(self, rows: int) -> None:
        """Wait until the given number of new rows was saved or a sweep has ended."""
        if not self.live():
            self.start()
        ended = len(self.drivers) - len(self.live())
        target = self.progress() + rows
        wait_for(lambda: self.progress() >= target or len(self.drivers) - len(self.live()) > ended, "rows", 0.005)

    def progress(self) -> int:
        done = sum(path_of(self.store, run).exists() for run in LONGER_PLAN.runs)
        return done * LONGER_PLAN.runs[0].config.rows + sum(saved_rows(self.store))


def check(histories: int) -> None:
    options = settings(max_examples=histories, stateful_step_count=12, suppress_health_check=list(HealthCheck))
    with pytest.MonkeyPatch.context() as patch, simulated(patch):
        run_state_machine_as_test(Histories, settings=options)


def test_ten_histories() -> None:
    check(10)


@pytest.mark.slow
def test_two_hundred_histories() -> None:
    check(200)


@pytest.mark.slow
def test_ten_histories_of_real_processes() -> None:
    options = settings(
        max_examples=10, stateful_step_count=5, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
    )
    run_state_machine_as_test(KilledProcesses, settings=options)
