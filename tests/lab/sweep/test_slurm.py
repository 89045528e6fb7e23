import os
import signal
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import fake_slurm
import pytest
from digit_runs import assert_same_records, digit_plan, outcomes_of, shared_by
from toy_experiment import attempts, toy_plan

from processes import wait_for
from weightclip.lab.records.store import failures
from weightclip.lab.sweep import executor, slurm
from weightclip.lab.sweep.executor import ATTEMPTS, Ended, Message, Report, Started, sweep
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.locks import lock_run, locked_runs
from weightclip.lab.sweep.plan import batches
from weightclip.lab.sweep.slurm import Slurm

needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")

LOCAL = {"cluster": "local"}


@pytest.fixture(autouse=True)
def _importable_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the toy experiment importable in tasks, and do not wait for missing results."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    if find_spec("submitit") is not None:
        import submitit

        monkeypatch.setattr(submitit.Job, "_results_timeout_s", 1)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a fake Slurm that runs submitted jobs on this machine."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    fake_slurm.install(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield folder
    fake_slurm.scancel(folder, *(path.stem for path in folder.glob("*.sbatch")))


def on_this_machine(tmp_path: Path, count: int = 2) -> Slurm:
    return Slurm(tmp_path / "logs", count, LOCAL)


def held_processes(store: Path) -> list[int]:
    return [note.process for note in locked_runs(store).values() if note is not None]


def follow(reports: Generator[Report, None, None], until: Callable[[Report], bool]) -> None:
    while not until(next(reports)):
        pass


def test_missing_submitit_suggests_an_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'^--executor slurm: requires submitit: pip install "weightclip\[slurm\]"$'):
        Slurm(tmp_path)


@needs_submitit
def test_missing_slurm_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^--executor slurm: sbatch not found"):
        Slurm(tmp_path)


@needs_submitit
def test_counting_runs_does_not_require_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Slurm(tmp_path, dry_run=True).workers == slurm.WORKERS
    with pytest.raises(ValueError, match=r"^--slurm time: got 'x', expected minutes$"):
        Slurm(tmp_path, parameters={"time": "x"}, dry_run=True)


@needs_submitit
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("time", "2:00:00", "^--slurm time: got '2:00:00', expected minutes$"),
        ("mem_gb", "much", "^--slurm: .*'much'$"),
        ("slurm_partiton", "cpu", "^--slurm: .*partiton"),
        ("cluster", "pbs", r"^--slurm cluster: got 'pbs', expected one of slurm, local$"),
    ],
)
def test_invalid_parameters_are_reported_before_anything_is_written(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Slurm(tmp_path / "logs", parameters={**LOCAL, name: value})
    assert not (tmp_path / "logs").exists()


@needs_submitit
def test_the_number_of_concurrent_tasks_is_configurable_and_defaults_to_100(tmp_path: Path, cluster: Path) -> None:
    assert Slurm(tmp_path).workers == slurm.WORKERS
    assert Slurm(tmp_path, 7).workers == 7


@needs_submitit
@pytest.mark.slow
def test_all_runs_are_done_and_a_failing_one_is_recorded(tmp_path: Path) -> None:
    small = {"method": "sgd", "backend": "reference", "steps": 60, "period": 20}
    plan = digit_plan(2, small, {**small, "hidden": (10**9,)})
    store = tmp_path / "slurm"
    reports: list[Report] = []
    outcomes = sweep(plan, plan.runs, store, on_this_machine(tmp_path), on_report=reports.append)
    assert sorted(one.status for one in outcomes) == ["done", "done", "failed", "failed"]
    assert {failure.identity for failure in failures(store)} == {plan.runs[1].identity, plan.runs[3].identity}
    assert "Traceback" in failures(store)[0].traceback
    assert sum(isinstance(one, Ended) for one in reports) == 4
    good = digit_plan(2, small)
    sweep(good, good.runs, tmp_path / "local", Local(2))
    assert_same_records(store, tmp_path / "local")


@needs_submitit
@pytest.mark.slow
def test_a_lost_task_is_resubmitted(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    plan = toy_plan(2, {"fault": "die once", "notes": str(notes)})
    said: list[Report] = []
    outcomes = sweep(plan, plan.runs, tmp_path / "store", on_this_machine(tmp_path), on_report=said.append)
    assert [one.status for one in outcomes] == ["done", "done"]
    assert list(attempts(notes).values()) == [2, 2]
    assert sum(isinstance(one, Message) and "was lost" in one.line for one in said) == 2


@needs_submitit
@pytest.mark.slow
def test_a_run_whose_tasks_are_always_lost_fails(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    plan = toy_plan(1, {"fault": "die", "notes": str(notes)}, {"lr": 0.2})
    outcomes = sweep(plan, plan.runs, tmp_path / "store", on_this_machine(tmp_path))
    assert {one.identity: one.status for one in outcomes} == {
        plan.runs[0].identity: "failed",
        plan.runs[1].identity: "done",
    }
    assert list(attempts(notes).values()) == [ATTEMPTS]
    assert [failure.reason for failure in failures(tmp_path / "store")] == [f"job was lost {ATTEMPTS} times"]


@needs_submitit
@pytest.mark.slow
def test_a_task_that_reaches_its_time_limit_resumes_later(tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    plan = toy_plan(1, {"fault": "hang once", "notes": str(notes)})
    short = Slurm(tmp_path / "logs", 1, {**LOCAL, "time": 10})  # the time is up ten minutes before the limit
    reports = short.run(shared_by(plan, store), batches(plan.runs))
    follow(reports, lambda one: isinstance(one, Started))
    os.kill(held_processes(store)[0], signal.SIGUSR2)
    assert [one.status for one in outcomes_of(list(reports))] == ["done"]
    assert list(attempts(notes).values()) == [2]


@needs_submitit
def test_closing_ends_the_tasks_and_each_task_has_one_thread(tmp_path: Path) -> None:
    store = tmp_path / "store"
    plan = toy_plan(2, {"method": "slow", "rows": 10_000})
    reports = on_this_machine(tmp_path).run(shared_by(plan, store), batches(plan.runs))
    started = []
    follow(reports, lambda one: started.append(isinstance(one, Started)) or sum(started) == 2)
    processes = held_processes(store)
    for process in processes:
        assert "NUMBA_NUM_THREADS=1" in Path(f"/proc/{process}/environ").read_text().split("\0")
    reports.close()
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in processes), "the end of the tasks")
    assert not locked_runs(store)


@needs_submitit
def test_runs_of_another_process_are_not_submitted(tmp_path: Path) -> None:
    plan = toy_plan(2)
    held = lock_run(tmp_path / "store", plan.runs[0].identity, plan.runs[0].relative_path)
    assert held is not None
    reports = list(on_this_machine(tmp_path).run(shared_by(plan, tmp_path / "store"), batches(plan.runs)))
    assert {one.identity: one.status for one in outcomes_of(reports)} == {
        plan.runs[0].identity: "locked",
        plan.runs[1].identity: "done",
    }
    held.release()


@needs_submitit
def test_an_array_has_the_given_options(tmp_path: Path, cluster: Path) -> None:
    parameters = {"time": 90, "partition": "cpu", "mem_gb": "2.5", "reservation": "mine", "slurm_qos": "low"}
    plan = toy_plan(3)
    outcomes = sweep(plan, plan.runs, tmp_path / "store", Slurm(tmp_path / "logs", 2, parameters))
    assert [one.status for one in outcomes] == ["done"] * 3
    (script,) = cluster.glob("*.sbatch")
    options = script.read_text()
    for option in ("array=0-2%2", "time=90", "partition=cpu", "mem=2560MB", "reservation=mine", "qos=low"):
        assert f"#SBATCH --{option}\n" in options


@needs_submitit
def test_with_more_jobs_than_the_array_limit_a_task_runs_several(
    tmp_path: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "TASKS", 2)
    plan = toy_plan(5)
    outcomes = sweep(plan, plan.runs, tmp_path / "store", Slurm(tmp_path / "logs", 2))
    assert sorted(one.identity for one in outcomes) == sorted(run.identity for run in plan.runs)
    assert "--array=0-1%2" in next(cluster.glob("*.sbatch")).read_text()


@needs_submitit
def test_a_slurm_array_is_resumed_after_a_loss_and_canceled_as_a_whole(tmp_path: Path, cluster: Path) -> None:
    store = tmp_path / "store"
    plan = toy_plan(3, {"method": "slow", "rows": 10_000})
    reports = Slurm(tmp_path / "logs", 2).run(shared_by(plan, store), batches(plan.runs))
    follow(reports, lambda one: isinstance(one, Started))
    os.kill(held_processes(store)[0], signal.SIGKILL)
    follow(reports, lambda one: isinstance(one, Message) and "was lost" in one.line)
    follow(reports, lambda one: isinstance(one, Message) and "1 task submitted" in one.line)
    reports.close()
    assert sorted(path.name for path in cluster.glob("*.canceled")) == ["1.canceled", "2.canceled"]


@needs_submitit
def test_an_error_of_sbatch_is_reported_in_one_line(tmp_path: Path, cluster: Path) -> None:
    (cluster / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified' >&2\nexit 1\n")
    plan = toy_plan(1)
    with pytest.raises(ValueError, match=r"^--executor slurm: .*invalid partition specified"):
        sweep(plan, plan.runs, tmp_path / "store", Slurm(tmp_path / "logs", parameters={"partition": "none"}))
