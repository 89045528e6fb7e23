import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from digit_runs import PROBLEM, assert_same_records, digit_plan, outcomes_of, shared_by, tables
from polars.testing import assert_frame_equal
from ray_cluster import Cluster, Node, cluster, short_folder
from toy_experiment import attempts, toy_plan

from processes import SECONDS, start_process, wait_for
from weightclip.lab.experiments.streaming.training import run_config
from weightclip.lab.records.store import failures
from weightclip.lab.sweep import executor, ray
from weightclip.lab.sweep.executor import ATTEMPTS, Ended, Message, Report, Started, sweep
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.locks import lock_run, locked, locked_runs
from weightclip.lab.sweep.loggers import Loggers
from weightclip.lab.sweep.plan import Plan, batches
from weightclip.lab.sweep.ray import Ray

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")

HERE = Path(__file__).parent


def messages(plan: Plan, store: Path, shared_store: bool = True) -> list[object]:
    """Return the messages of a worker that executes all runs of a plan."""
    data = next(iter(plan.data.values()))
    with locked(store, plan.runs[0].identity, plan.runs[0].relative_path) as lock:
        assert lock is not None
        token = lock.token()
        if shared_store:
            token.write()
        return [one for some in ray._serve(plan.experiment, plan.runs, data, store, token) for one in some]


def test_missing_ray_suggests_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'^--executor ray: requires ray: pip install "weightclip\[ray\]"$'):
        Ray()


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.2:9", "no.such.host.invalid:6379"])
def test_an_unreachable_address_is_reported_immediately(address: str) -> None:
    with pytest.raises(ValueError, match=rf"^--address: got '{address}', expected the address of a Ray cluster"):
        _ = Ray(address).workers


@needs_ray
@pytest.mark.parametrize("address", ["6379", "host:", "host:port", ":6379"])
def test_an_invalid_address_is_reported(address: str) -> None:
    with pytest.raises(ValueError, match=rf"^--address: got '{address}', expected auto or HOST:PORT$"):
        _ = Ray(address).workers


@needs_ray
def test_runs_of_another_process_do_not_require_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "_connected", lambda executor: pytest.fail("there is nothing to run"))
    plan = toy_plan(2)
    held = [lock_run(tmp_path, run.identity, run.relative_path) for run in plan.runs]
    reports = list(Ray(count=2).run(shared_by(plan, tmp_path), batches(plan.runs)))
    assert [one.status for one in outcomes_of(reports)] == ["locked", "locked"]
    for one in held:
        assert one is not None
        one.release()


def test_a_worker_without_the_store_sends_rows_progress_and_the_record(tmp_path: Path) -> None:
    plan = digit_plan(1, {"backend": "reference", "steps": 60, "period": 20})
    (run,), (data,) = plan.runs, plan.data.values()
    found = messages(plan, tmp_path / "store", shared_store=False)
    (record,) = found[-1]
    assert_frame_equal(record.table, run_config(run.config, data).table, check_exact=True)
    assert [one[1]["task"] for one in found if isinstance(one, tuple)] == [1, 2, 3]
    assert any(isinstance(one, float) for one in found)
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_a_worker_with_access_to_the_store_writes_the_record(tmp_path: Path) -> None:
    plan = toy_plan(2)
    last = messages(plan, tmp_path)[-1]
    assert isinstance(last, ray._Stored)
    assert [one.status for one in last.outcomes] == ["done", "done"]
    assert tables(tmp_path).keys() == {run.identity for run in plan.runs}


def test_a_worker_sends_the_end_of_even_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "SECONDS_BETWEEN_REPORTS", 0.0)
    for _ in range(30):
        assert isinstance(messages(toy_plan(1), tmp_path, shared_store=False)[-1], list)


def test_a_worker_reports_how_a_run_failed(tmp_path: Path) -> None:
    (failed,) = messages(toy_plan(1, {"fault": "fail"}), tmp_path)
    assert isinstance(failed, ray._Failed)
    assert failed.reason == "RuntimeError: it went wrong"
    assert 'raise RuntimeError("it went' in failed.trace


def test_only_the_newest_of_consecutive_fractions_is_sent() -> None:
    queue = ray.SimpleQueue()
    for one in ("a line", 0.1, 0.2, (0, {"task": 1}), 0.3, 0.4):
        queue.put(one)
    assert ray._newest(queue) == ["a line", 0.2, (0, {"task": 1}), 0.4]


class UnresponsiveRay:
    """A fake Ray whose workers never respond, with the given error; it records the calls."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(Exception): ...

        class NodeDiedError(RayError): ...

    def __init__(self, error: type[Exception] = exceptions.RayError) -> None:
        self._error = error
        self.submitted: list[Iterator[int]] = []
        self.canceled: list[Iterator[int]] = []

    def submit(self, runs: object, token: object) -> Iterator[int]:
        self.submitted.append(iter([1]))
        return self.submitted[-1]

    def get(self, reference: int, timeout: float) -> None:
        raise self._error("no response")

    def cancel(self, stream: Iterator[int], force: bool) -> None:
        self.canceled.append(stream)


def test_an_unresponsive_worker_is_stopped_before_another_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = UnresponsiveRay()
    monkeypatch.setattr(ray, "_ray", lambda: silent)
    plan = toy_plan(1)
    task = ray._Task("job 1", plan.runs, shared_by(plan, tmp_path))
    assert task.lock()
    assert locked_runs(tmp_path) == {plan.runs[0].identity: None}  # it is queued in the cluster
    task.start(silent)
    reports = [report for _ in range(ATTEMPTS) for report in task.receive()]
    assert [type(report) for report in reports] == [Message, Message, Ended]
    assert silent.canceled == silent.submitted
    assert len(silent.canceled) == ATTEMPTS


def test_the_death_of_a_node_does_not_count_as_one_of_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = UnresponsiveRay(UnresponsiveRay.exceptions.NodeDiedError)
    monkeypatch.setattr(ray, "_ray", lambda: silent)
    plan = toy_plan(1)
    task = ray._Task("job 1", plan.runs, shared_by(plan, tmp_path))
    assert task.lock()
    task.start(silent)
    reports = [report for _ in range(ray.NODE_ATTEMPTS) for report in task.receive()]
    assert ray.NODE_ATTEMPTS > ATTEMPTS
    assert [type(report) for report in reports] == [*[Message] * (ray.NODE_ATTEMPTS - 1), Ended]
    assert [failure.reason for failure in failures(tmp_path)] == [f"node died {ray.NODE_ATTEMPTS} times"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set up all processes of the clusters: no downloads, compiled kernels, and the toy experiment installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIGHTCLIP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("WEIGHTCLIP_OFFLINE", "1")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        compile_all = "from digit_runs import compile_kernels; compile_kernels('sgd', 'adam+wc', 'adam+sp')"
        subprocess.run([sys.executable, "-c", compile_all], check=True, timeout=SECONDS)
        yield


@pytest.fixture(scope="module")
def two_nodes(environment: None) -> Iterator[Cluster]:
    with cluster() as found:
        add_node(found)
        yield found


def add_node(found: Cluster) -> Node:
    """Add nodes one by one, because nodes that start at the same time may choose the same ports."""
    before = Ray(found.address).workers
    node = found.add()
    wait_for(lambda: Ray(found.address).workers > before, "another core")
    return node


both_stores = pytest.mark.parametrize("shared_store", [True, False], ids=["shared", "not-shared"])


@needs_ray
@pytest.mark.slow
@both_stores
def test_records_are_written_by_workers_with_access_to_the_store_or_sent_to_the_driver(
    two_nodes: Cluster, tmp_path: Path, shared_store: bool
) -> None:
    plan = toy_plan(3, {}, {"lr": 0.2})
    outcomes = sweep(plan, plan.runs, tmp_path, Ray(two_nodes.address, shared_store=shared_store))
    assert [one.status for one in outcomes] == ["done"] * 6
    found = tables(tmp_path)
    assert found.keys() == {run.identity for run in plan.runs}
    assert {table["stored"][0] for table in found.values()} == {shared_store}
    assert {path.name for path in tmp_path.iterdir()} == {".running", "toy"}
    assert not locked_runs(tmp_path)


@needs_ray
@pytest.mark.slow
def test_all_runs_are_done_and_both_nodes_are_used(two_nodes: Cluster, tmp_path: Path) -> None:
    plan = digit_plan(6, {"method": "sgd", "steps": 20_000}, {"method": "adam+wc", "steps": 20_000})
    worked: set[Node] = set()

    def record_nodes(report: Report) -> None:
        worked.update(node for node in two_nodes.nodes if node.is_working())

    outcomes = sweep(plan, plan.runs, tmp_path / "ray", Ray(two_nodes.address), on_report=record_nodes)
    assert {one.status for one in outcomes} == {"done"}
    assert worked == set(two_nodes.nodes)
    sweep(plan, plan.runs, tmp_path / "local", Local(2))
    assert_same_records(tmp_path / "ray", tmp_path / "local")
    assert not locked_runs(tmp_path / "ray")


@needs_ray
@pytest.mark.slow
def test_killing_a_node_loses_no_run(two_nodes: Cluster, tmp_path: Path) -> None:
    plan = digit_plan(8, {"method": "sgd"}, {"method": "adam+wc"})
    victim = add_node(two_nodes)
    ended = 0

    def kill(report: Report) -> None:
        nonlocal ended
        ended += isinstance(report, Ended)
        if ended == 5 and isinstance(report, Started):
            ended += 1
            victim.kill()

    outcomes = sweep(plan, plan.runs, tmp_path / "ray", Ray(two_nodes.address), on_report=kill)
    assert sorted(one.identity for one in outcomes) == sorted(run.identity for run in plan.runs)
    sweep(plan, plan.runs, tmp_path / "local", Local(2))
    assert_same_records(tmp_path / "ray", tmp_path / "local")


@needs_ray
@pytest.mark.slow
def test_a_failing_run_is_recorded_and_does_not_stop_the_others(two_nodes: Cluster, tmp_path: Path) -> None:
    plan = digit_plan(1, {"method": "sgd"}, {"method": "sgd", "hidden": (10**9,)}, {"method": "adam"})
    outcomes = sweep(plan, plan.runs, tmp_path, Ray(two_nodes.address))
    assert sorted(one.status for one in outcomes) == ["done", "done", "failed"]
    (failure,) = failures(tmp_path)
    assert failure.identity == plan.runs[1].identity
    assert "expected a network that fits in memory" in failure.reason
    assert "Traceback" in failure.traceback
    assert "_make_learner" in failure.traceback


@needs_ray
@pytest.mark.slow
@both_stores
def test_a_dead_worker_is_replaced_until_it_has_died_too_often(
    two_nodes: Cluster, tmp_path: Path, shared_store: bool
) -> None:
    notes = {name: tmp_path / name for name in ("once", "always")}
    for folder in notes.values():
        folder.mkdir()
    once = {"fault": "die once", "notes": str(notes["once"])}
    always = {"fault": "die", "lr": 0.2, "notes": str(notes["always"])}
    plan = toy_plan(1, once, always, {"lr": 0.3})
    received: list[Report] = []
    executor = Ray(two_nodes.address, shared_store=shared_store)
    outcomes = sweep(plan, plan.runs, tmp_path / "store", executor, on_report=received.append)
    status = {one.identity: one.status for one in outcomes}
    assert [status[run.identity] for run in plan.runs] == ["done", "failed", "done"]
    assert list(attempts(notes["once"]).values()) == [2]
    assert list(attempts(notes["always"]).values()) == [ATTEMPTS]
    assert [failure.reason for failure in failures(tmp_path / "store")] == [f"worker died {ATTEMPTS} times"]
    assert sum(isinstance(one, Message) for one in received) == ATTEMPTS


@needs_ray
@pytest.mark.slow
def test_batched_runs_are_executed_together_and_rows_are_logged(two_nodes: Cluster, tmp_path: Path) -> None:
    plan = toy_plan(3, together=True)
    loggers = Loggers(tensorboard=tmp_path / "live")
    sweep(plan, plan.runs, tmp_path / "store", Ray(two_nodes.address), loggers=loggers)
    assert [table["together"][0] for table in tables(tmp_path / "store").values()] == [3, 3, 3]
    shown = [path for path in loggers.tensorboard.rglob("*tfevents*") if path.stat().st_size > 100]
    assert len(shown) == 3


@needs_ray
@pytest.mark.slow
def test_closing_stops_running_jobs_and_releases_their_locks(two_nodes: Cluster, tmp_path: Path) -> None:
    plan = toy_plan(4, {"method": "slow", "rows": 10_000, "notes": str(tmp_path)})
    reports = Ray(two_nodes.address).run(shared_by(plan, tmp_path / "store"), batches(plan.runs))
    while not isinstance(next(reports), Started):
        pass
    assert len(locked_runs(tmp_path / "store")) == 4  # twice the number of cores
    (process, *_) = (int(note.name.split("-")[2]) for note in tmp_path.glob("*-*-*"))
    reports.close()
    assert not locked_runs(tmp_path / "store")
    wait_for(lambda: not Path(f"/proc/{process}").exists(), "the worker's end")


@needs_ray
@pytest.mark.slow
def test_without_an_address_a_cluster_is_started_and_stopped(tmp_path: Path, environment: None) -> None:
    import ray as library

    plan = digit_plan(2, {"method": "sgd"})
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        outcomes = sweep(plan, plan.runs, tmp_path, Ray(count=2))
    assert [one.status for one in outcomes] == ["done", "done"]
    assert not library.is_initialized()


@needs_ray
@pytest.mark.slow
def test_nodes_without_the_package_are_reported_in_one_line(
    tmp_path: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weightclip.py").write_text("raise ImportError('weightclip is not here')")
    plan = digit_plan(1, {})
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        found = cluster()
        one = found.__enter__()
    try:
        with pytest.raises(
            ValueError, match=r"^--executor ray: a worker cannot run this: weightclip is not here; every"
        ):
            sweep(plan, plan.runs, tmp_path / "store", Ray(one.address))
    finally:
        found.__exit__(None, None, None)


def command(seeds: int, store: Path, *options: str) -> list[str]:
    """Return the command for a sweep of runs of about half a second."""
    words = ["sweep", PROBLEM, "--methods", "sgd,adam+wc,adam+sp", "--seeds", str(seeds), "--out", str(store)]
    return [sys.executable, "-m", "weightclip", *words, "--hidden", "20", "--steps", "20k", "--period", "500", *options]


def run(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)


def has_ended_or_written(driver: subprocess.Popen[bytes], store: Path, records: int) -> bool:
    return driver.poll() is not None or len(list(store.rglob("*.parquet"))) >= records


@needs_ray
@pytest.mark.slow
def test_killing_nodes_at_random_moments_loses_no_run(tmp_path: Path, environment: None) -> None:
    """Five of six nodes are killed at different moments."""
    draw = random.Random(0)
    moments = sorted(draw.sample(range(1, 51), 5))
    pauses = [draw.uniform(0.0, 0.5) for _ in moments]
    print(f"a node is killed {', '.join(f'{p:.2f} s after record {m}' for m, p in zip(moments, pauses))}")
    uninterrupted, store = tmp_path / "uninterrupted", tmp_path / "store"
    run(command(20, uninterrupted))
    with cluster() as found:
        victims = [add_node(found) for _ in moments]
        over_ray = command(20, store, "--executor", "ray", "--address", found.address)
        with start_process(over_ray, stdout=subprocess.DEVNULL) as driver:
            for victim, moment, pause in zip(victims, moments, pauses):
                wait_for(partial(has_ended_or_written, driver, store, moment), f"{moment} records")
                time.sleep(pause)
                victim.kill()
            driver.wait(SECONDS)
        run(over_ray)
    assert len(tables(store)) == 60
    assert_same_records(store, uninterrupted)
    assert not failures(store)


@needs_ray
@pytest.mark.slow
@both_stores
def test_kill_9_of_the_driver_releases_its_runs_and_the_same_command_finishes_them(
    two_nodes: Cluster, tmp_path: Path, shared_store: bool
) -> None:
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    rows = {"method": "slow", "rows": 10, "notes": str(notes)}
    code = (
        "from pathlib import Path; from toy_experiment import toy_plan; "
        "from weightclip.lab.sweep.executor import sweep;"
        f"from weightclip.lab.sweep.ray import Ray; plan = toy_plan(4, {rows!r});"
        f"sweep(plan, plan.runs, Path({str(store)!r}), Ray({two_nodes.address!r}, shared_store={shared_store}))"
    )
    with start_process([sys.executable, "-c", code]) as driver:
        wait_for(lambda: has_ended_or_written(driver, store, 1), "a record")
        driver.kill()
        driver.wait(SECONDS)
    assert locked_runs(store) == {}
    plan = toy_plan(4, rows)
    sweep(plan, plan.runs, store, Ray(two_nodes.address, shared_store=shared_store))
    assert tables(store).keys() == {run.identity for run in plan.runs}
    assert not list((store / ".running").iterdir())


@needs_ray
@pytest.mark.slow
def test_when_the_cluster_dies_the_command_ends_and_another_cluster_resumes(
    tmp_path: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # instead of 60
    uninterrupted, store = tmp_path / "uninterrupted", tmp_path / "store"
    run(command(4, uninterrupted))
    with cluster() as found:
        over_ray = command(4, store, "--executor", "ray", "--address", found.address)
        with start_process(over_ray, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
            wait_for(partial(has_ended_or_written, driver, store, 3), "3 records")
            found.head.kill()
            assert driver.wait(SECONDS) != 0
    assert 3 <= len(tables(store)) < 12
    with cluster() as another:
        run(command(4, store, "--executor", "ray", "--address", another.address))
    assert_same_records(store, uninterrupted)
