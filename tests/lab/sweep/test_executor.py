import multiprocessing
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from toy_experiment import Toy, attempts, toy_plan

from weightclip.lab.records.record import read_record
from weightclip.lab.records.store import checkpoint_path, failures, record_path
from weightclip.lab.sweep.executor import ATTEMPTS, Ended, Message, Report, Started, sweep
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.locks import lock_run
from weightclip.lab.sweep.plan import Plan, take_inventory
from weightclip.lab.sweep.worker import Outcome, Shared, mark_done, run_job


def run(plan: Plan, store: Path, workers: int = 2, retry_failed: bool = False, reports: Any = None) -> list[Outcome]:
    missing = take_inventory(plan, store, retry_failed).missing
    return sweep(plan, missing, store, Local(workers), on_report=reports.append if reports is not None else _ignore)


def _ignore(report: Report) -> None:
    pass


def records(store: Path) -> list[Path]:
    return sorted(store.rglob("*.parquet"))


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return sorted(one.status for one in outcomes)


def test_every_run_writes_a_record_and_is_reported(tmp_path: Path) -> None:
    plan = toy_plan(3, {"lr": 1.0}, {"lr": 2.0})
    reports: list[Report] = []
    assert statuses(run(plan, tmp_path, reports=reports)) == ["done"] * 6
    assert records(tmp_path) == sorted(record_path(tmp_path, one.relative_path, one.identity) for one in plan.runs)
    assert sum(isinstance(report, Started) for report in reports) == 6
    assert sum(isinstance(report, Ended) for report in reports) == 6


def test_only_missing_runs_are_executed(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    run(toy_plan(2, {"notes": str(notes)}), store)
    more = toy_plan(3, {"notes": str(notes)}, {"notes": str(notes), "method": "slow"})
    assert len(take_inventory(more, store).missing) == 4
    run(more, store)
    assert sorted(attempts(notes).values()) == [1] * 6


def test_a_run_with_a_damaged_record_is_repeated(tmp_path: Path) -> None:
    plan = toy_plan(2)
    run(plan, tmp_path)
    records(tmp_path)[0].write_bytes(b"damaged")
    assert len(take_inventory(plan, tmp_path).missing) == 1


def test_a_failure_is_recorded_and_does_not_stop_the_sweep(tmp_path: Path) -> None:
    plan = toy_plan(2, {"lr": 1.0, "fault": "fail"}, {"lr": 2.0})
    assert statuses(run(plan, tmp_path)) == ["done", "done", "failed", "failed"]
    first, _ = failures(tmp_path)
    assert first.reason == "RuntimeError: it went wrong"
    assert "raise RuntimeError" in first.traceback
    assert first.config["lr"] == 1.0


def test_failed_runs_are_retried_only_on_request(tmp_path: Path) -> None:
    run(toy_plan(2, {"fault": "fail"}), tmp_path)
    fixed = toy_plan(2)
    assert len(take_inventory(fixed, tmp_path).failed) == 2
    assert run(fixed, tmp_path) == []
    assert statuses(run(fixed, tmp_path, retry_failed=True)) == ["done", "done"]
    assert failures(tmp_path) == []


def test_the_job_of_a_worker_that_dies_restarts(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    plan = toy_plan(2, {"lr": 1.0, "fault": "die once", "notes": str(notes)}, {"lr": 2.0})
    reports: list[Report] = []
    assert statuses(run(plan, store, reports=reports)) == ["done"] * 4
    assert set(attempts(notes).values()) == {2}
    assert sum("worker died" in report.line for report in reports if isinstance(report, Message)) == 2


def test_a_job_that_kills_every_worker_eventually_fails(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    plan = toy_plan(1, {"lr": 1.0, "fault": "die", "notes": str(notes)}, {"lr": 2.0})
    assert statuses(run(plan, store)) == ["done", "failed"]
    assert set(attempts(notes).values()) == {ATTEMPTS}
    assert failures(store)[0].reason == f"worker died {ATTEMPTS} times"


def test_batched_runs_are_executed_together(tmp_path: Path) -> None:
    run(toy_plan(3, {"lr": 1.0}, {"lr": 2.0}, together=True), tmp_path)
    assert {value for path in records(tmp_path) for value in read_record(path).table["together"]} == {3}


def test_a_sweep_waits_for_runs_of_another_process(tmp_path: Path) -> None:
    plan = toy_plan(2)
    theirs = plan.runs[0]
    held = lock_run(tmp_path, theirs.identity, theirs.relative_path)
    assert held is not None

    def finish(report: Report) -> None:
        if isinstance(report, Ended) and any(one.status == "locked" for one in report.outcomes):
            Toy().run([theirs.config], None, tmp_path)
            held.release()

    outcomes = sweep(plan, plan.runs, tmp_path, Local(1), on_report=finish)
    assert statuses(outcomes) == ["done", "done"]
    assert len(records(tmp_path)) == 2


def test_runs_abandoned_by_another_process_are_executed(tmp_path: Path) -> None:
    plan = toy_plan(2)
    held = lock_run(tmp_path, plan.runs[0].identity, plan.runs[0].relative_path)
    assert held is not None

    def give_up(report: Report) -> None:
        if isinstance(report, Ended) and any(one.status == "locked" for one in report.outcomes):
            held.release()

    assert statuses(sweep(plan, plan.runs, tmp_path, Local(1), on_report=give_up)) == ["done", "done"]
    assert len(records(tmp_path)) == 2


def test_concurrent_sweeps_execute_each_run_once(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    plan = toy_plan(4, {"method": "slow", "notes": str(notes)}, {"method": "slow", "lr": 2.0, "notes": str(notes)})
    outcomes: list[list[Outcome]] = []
    threads = [threading.Thread(target=lambda: outcomes.append(run(plan, store, workers=1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(attempts(notes).values()) == [1] * 8
    assert [statuses(one) for one in outcomes] == [["done"] * 8] * 2
    assert pl.concat([read_record(path).table for path in records(store)]).height == 24


def test_an_interrupted_sweep_leaves_no_process(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    plan = toy_plan(4, {"method": "slow", "rows": 1000, "notes": str(notes)})

    def stop(report: Report) -> None:
        if isinstance(report, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(plan, plan.runs, store, Local(2), on_report=stop)
    assert not multiprocessing.active_children()


def test_a_record_of_other_data_is_a_failure(tmp_path: Path) -> None:
    run, other = toy_plan(2).runs
    (record,) = Toy().run([other.config], None, None)
    assert mark_done(tmp_path, run, record).status == "failed"
    assert "data differs" in failures(tmp_path)[0].reason


def test_the_worker_and_not_the_inventory_removes_the_checkpoint_of_a_finished_run(tmp_path: Path) -> None:
    plan = toy_plan(1)
    Toy().run([plan.runs[0].config], None, tmp_path)
    checkpoint = checkpoint_path(records(tmp_path)[0])
    checkpoint.touch()
    assert len(take_inventory(plan, tmp_path).done) == 1
    assert checkpoint.exists()
    assert statuses(sweep(plan, plan.runs, tmp_path, Local(1))) == ["done"]
    assert not checkpoint.exists()


def test_a_directory_at_the_path_of_a_record_is_not_a_record(tmp_path: Path) -> None:
    plan = toy_plan(1)
    (one,) = plan.runs
    record_path(tmp_path, one.relative_path, one.identity).mkdir(parents=True)
    assert take_inventory(plan, tmp_path).missing == plan.runs
    assert statuses(run(plan, tmp_path)) == ["failed"]
    assert "IsADirectoryError" in failures(tmp_path)[0].reason


def test_an_error_outside_a_run_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = toy_plan(1)
    monkeypatch.setattr(Toy, "load", lambda self, config, data_dir: (tmp_path / "data").read_bytes())
    (outcome,) = run_job(Shared(Toy(), tmp_path / "store"), plan.runs, {})
    (failure,) = failures(tmp_path / "store")
    assert outcome.reason == failure.reason
    assert "FileNotFoundError" in failure.reason
    assert "Traceback" in failure.traceback
    (tmp_path / "file").touch()
    (outcome,) = run_job(Shared(Toy(), tmp_path / "file"), plan.runs, {})  # notes cannot be written
    assert "NotADirectoryError" in outcome.reason


def test_a_run_that_failed_in_a_concurrent_sweep_is_not_retried(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    plan = toy_plan(1, {"fault": "fail", "notes": str(notes)})
    run(plan, store)
    (outcome,) = run_job(Shared(Toy(), store), plan.runs, {})
    assert (outcome.status, outcome.reason) == ("failed", "RuntimeError: it went wrong")
    assert sorted(attempts(notes).values()) == [1]
    (failure,) = failures(store)
    run_job(Shared(Toy(), store, retried={failure.identity: failure.when}), plan.runs, {})
    assert sorted(attempts(notes).values()) == [2]
