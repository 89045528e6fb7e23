import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import streaming_process
import torch
from polars.testing import assert_frame_equal
from tiny_data import tiny_dataset

import weightclip as wc
from processes import wait_for
from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks
from weightclip.lab.checkpoint import read_checkpoint, write_checkpoint
from weightclip.lab.experiments.streaming import training as streaming_runs
from weightclip.lab.experiments.streaming.config import Config
from weightclip.lab.experiments.streaming.metrics import METRICS
from weightclip.lab.experiments.streaming.problem import Problem
from weightclip.lab.experiments.streaming.reference import Reference
from weightclip.lab.experiments.streaming.training import run, run_config
from weightclip.lab.networks.mlp import mlp
from weightclip.lab.records.record import read_record

DATA = tiny_dataset()
BACKENDS = ["reference", "fused"]
BROKEN = ["cut", "flipped", "empty", "text"]


def config(method: str = "adam+wc", **settings: Any) -> Config:
    small = {"hidden": (8, 6), "backend": "reference", "lr": 0.01, "steps": 70, "period": 20}
    return Config("input-permuted-mnist", method, **{**small, **settings})


def only(directory: Path, pattern: str = "*.parquet") -> Path:
    (path,) = directory.rglob(pattern)
    return path


def interrupted_after(tasks: int) -> Callable[[int, float], None]:
    """Return a progress callback that simulates Ctrl-C in the task after the given number of tasks."""

    def progress(samples: int, accuracy: float) -> None:
        if samples > tasks * 20:
            raise KeyboardInterrupt

    return progress


def test_a_run_has_a_row_for_each_task() -> None:
    table = run_config(config(), DATA).table
    assert table["task"].to_list() == [1, 2, 3, 4]
    assert table["samples"].to_list() == [20, 40, 60, 70]
    assert table["cut_short"].to_list() == [False, False, False, True]
    assert table["seed"].to_list() == [0] * 4
    assert table.columns == ["seed", "task", "samples", "cut_short", *METRICS, "rank_1", "rank_2", "rank_3"]
    assert table.schema["rank_1"] == table.schema["task"] == pl.Int64


def test_online_accuracy_is_over_all_samples_so_far() -> None:
    table = run_config(config(), DATA).table
    right = (table["accuracy"] * pl.Series([20, 20, 20, 10])).cum_sum()
    assert table["online_accuracy"].to_list() == pytest.approx((right / table["samples"]).to_list())


def test_disabling_diagnostics_keeps_accuracy_loss_and_learning() -> None:
    full, plain = run_config(config(), DATA).table, run_config(config(diagnostics=False), DATA).table
    assert plain.columns == ["seed", "task", "samples", "cut_short", "accuracy", "online_accuracy", "loss"]
    assert_frame_equal(full.select(plain.columns), plain)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rank_and_lipschitz_bound_are_measured_at_the_end_of_a_task(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[np.ndarray[Any, Any]]] = []
    weights = Reference.weights

    def spy(self: Reference) -> list[np.ndarray[Any, Any]]:
        seen.append(weights(self))
        return seen[-1]

    monkeypatch.setattr(Reference, "weights", spy)
    table = run_config(config(dtype=dtype), DATA).table
    model = mlp(12, (8, 6), 4)
    for row, arrays in zip(table.iter_rows(named=True), seen, strict=True):
        with torch.no_grad():
            for p, array in zip(model.parameters(), arrays, strict=True):
                p.copy_(torch.from_numpy(array))
        assert row["lipschitz"] == pytest.approx(wc.lipschitz_bounds(model).now[2], rel=1e-7)
        matrices = [p for p in model.parameters() if p.ndim == 2]
        assert [row[f"rank_{i}"] for i in (1, 2, 3)] == [int(torch.linalg.matrix_rank(w)) for w in matrices]


def test_the_seed_determines_the_run() -> None:
    one, same, other = (run_config(config("adam+sp", seed=seed), DATA).table for seed in (1, 1, 2))
    assert_frame_equal(one, same)
    assert not one["loss"].equals(other["loss"])


def test_a_longer_run_starts_like_the_shorter_one() -> None:
    short, long = run_config(config(steps=40), DATA).table, run_config(config(steps=80), DATA).table
    assert_frame_equal(long.head(2), short)


@pytest.mark.parametrize("problem", ["input-permuted-mnist", "label-permuted-mnist", "stationary-mnist"])
def test_every_kind_of_problem_runs(problem: str) -> None:
    table = run_config(Config(problem, "sgd+wc", steps=40, period=20, hidden=(5,), backend="reference"), DATA).table
    assert len(table) == 2
    assert table["loss"].is_finite().all()


def test_the_record_contains_its_provenance(tmp_path: Path) -> None:
    record = run_config(config("adam+sp"), DATA, out=tmp_path)
    path = only(tmp_path)
    assert path.parent == tmp_path / "input-permuted-mnist" / "adam+sp"
    assert path.name == f"lr0.01_decay0.001_sigma0.1_seed0_{record.identity}.parquet"
    back = read_record(path)
    assert_frame_equal(back.table, record.table)
    assert back.config == record.config
    assert (back.config["variant"], back.config["backend"], back.config["seed"]) == ("paper", "reference", 0)
    assert (back.config["lr"], back.config["settings"]["beta2"], back.config["outputs"]) == (0.01, 0.999, 4)
    expected = {"name": "tiny", "samples": 60, "kind": "directory", "location": "memory", "checksum": "0" * 32}
    assert back.data == {**expected, "official": False}
    assert back.seconds > 0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_finished_run_is_read_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_config(config(), DATA, out=tmp_path)
    monkeypatch.setattr(streaming_runs, "_make_learner", None)
    again = run_config(config(), DATA, out=tmp_path)
    assert_frame_equal(again.table, first.table)
    assert again.seconds == first.seconds


def test_overwriting_repeats_a_run(tmp_path: Path) -> None:
    run_config(config(), DATA, out=tmp_path)
    before = only(tmp_path).stat().st_mtime_ns
    calls: list[int] = []
    run_config(
        config(),
        DATA,
        out=tmp_path,
        overwrite=True,
        callbacks=Callbacks(on_progress=lambda samples, _: calls.append(samples)),
    )
    assert calls[-1] == 70
    assert only(tmp_path).stat().st_mtime_ns > before


def test_an_interrupted_overwriting_run_resumes_without_overwriting(tmp_path: Path) -> None:
    expected = run_config(config(), DATA, out=tmp_path).table
    with pytest.raises(KeyboardInterrupt):
        run_config(config(), DATA, out=tmp_path, overwrite=True, callbacks=Callbacks(on_progress=interrupted_after(2)))
    seen: list[int] = []
    record = run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_progress=lambda n, _: seen.append(n)))
    assert min(seen) > 40
    assert_frame_equal(record.table, expected)


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("method", ["adam+wc", "adam+sp", "sgd+l2init", "madam"])
def test_an_interrupted_run_resumes_and_ends_with_the_same_numbers(tmp_path: Path, method: str, tasks: int) -> None:
    expected = run_config(config(method), DATA).table
    with pytest.raises(KeyboardInterrupt):
        run_config(config(method), DATA, out=tmp_path, callbacks=Callbacks(on_progress=interrupted_after(tasks)))
    assert not list(tmp_path.rglob("*.parquet"))
    assert only(tmp_path, "*.checkpoint.npz")
    seen: list[int] = []
    lines: list[str] = []
    record = run_config(
        config(method),
        DATA,
        out=tmp_path,
        callbacks=Callbacks(on_progress=lambda n, _: seen.append(n), on_event=lines.append),
    )
    assert min(seen) > tasks * 20  # finished tasks were not repeated
    assert lines == [f"input-permuted-mnist {method} seed 0: resuming after task {tasks}"]
    assert_frame_equal(record.table, expected, check_exact=True)
    assert not list(tmp_path.rglob("*.npz"))
    assert record.resumed == read_record(only(tmp_path)).resumed == "exact"


def test_an_uninterrupted_run_is_recorded_as_never_resumed(tmp_path: Path) -> None:
    assert run_config(config(), DATA, out=tmp_path).resumed == read_record(only(tmp_path)).resumed == "never"


def test_the_seconds_of_all_sessions_add_up(tmp_path: Path) -> None:
    def slow(samples: int, accuracy: float) -> None:
        time.sleep(0.05)
        interrupted_after(2)(samples, accuracy)

    with pytest.raises(KeyboardInterrupt):
        run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_progress=slow))
    assert run_config(config(), DATA, out=tmp_path, callbacks=NO_CALLBACKS).seconds > 0.1


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_checkpoint_is_reported_and_the_run_restarts(tmp_path: Path, damage: str) -> None:
    expected = run_config(config(), DATA).table
    with pytest.raises(KeyboardInterrupt):
        run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_progress=interrupted_after(2)))
    _break(only(tmp_path, "*.npz"), damage)
    lines: list[str] = []
    record = run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert len(lines) == 1
    assert "checkpoint is damaged" in lines[0]
    assert "restarting from the first task" in lines[0]
    assert_frame_equal(record.table, expected)


@pytest.mark.parametrize("diagnostics", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_with_other_columns_is_reported_and_the_run_restarts(
    tmp_path: Path, backend: str, diagnostics: bool
) -> None:
    one = config(backend=backend, diagnostics=diagnostics)
    expected = run_config(one, DATA).table
    with pytest.raises(KeyboardInterrupt):
        run_config(one, DATA, out=tmp_path, callbacks=Callbacks(on_progress=interrupted_after(2)))
    path = only(tmp_path, "*.npz")
    saved = read_checkpoint(path)
    rows = [{name: value for name, value in row.items() if name != "loss"} for row in saved.rows]
    write_checkpoint(replace(saved, rows=rows), path)
    lines: list[str] = []
    record = run_config(one, DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines == [f"{path}: the checkpoint is from another version: restarting from the first task"]
    assert_frame_equal(record.table, expected, check_exact=True)


def test_a_checkpoint_of_the_fused_backend_names_its_compiled_code(tmp_path: Path) -> None:
    for backend in BACKENDS:
        one = config(backend=backend)
        with pytest.raises(KeyboardInterrupt):
            run_config(one, DATA, out=tmp_path / backend, callbacks=Callbacks(on_progress=interrupted_after(2)))
        saved = read_checkpoint(only(tmp_path / backend, "*.npz")).numerics
        assert saved is not None
        assert saved["weightclip"] == wc.__version__
        assert ("compiled code" in saved) == (backend == "fused")
        assert run_config(one, DATA, out=tmp_path / backend).resumed == "exact"


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_record_is_reported_and_run_again(tmp_path: Path, damage: str) -> None:
    expected = run_config(config(), DATA, out=tmp_path).table
    _break(only(tmp_path), damage)
    lines: list[str] = []
    run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert len(lines) == 1
    assert lines[0].endswith(": the file is damaged or not a record: running again")
    assert "delete" not in lines[0]
    assert_frame_equal(read_record(only(tmp_path)).table, expected)


def _break(path: Path, damage: str) -> None:
    content = path.read_bytes()
    flipped = content[:30] + bytes(byte ^ 255 for byte in content[30:70]) + content[70:]
    path.write_bytes({"cut": content[: len(content) // 2], "flipped": flipped, "empty": b"", "text": b"hello"}[damage])


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_progress=interrupted_after(1)))
    path = only(tmp_path, "*.npz")
    np.savez(path, identity=np.array([print], dtype=object))
    lines: list[str] = []
    run_config(config(), DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert "damaged" in lines[0]


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"lr": 0.02}, {"steps": 71}, {"dtype": "float64"}, {"diagnostics": False}]
)
def test_another_configuration_is_another_run(tmp_path: Path, change: dict[str, Any]) -> None:
    run_config(config(), DATA, out=tmp_path)
    run_config(config(**change), DATA, out=tmp_path)
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_an_explicit_default_is_the_same_run(tmp_path: Path) -> None:
    run_config(config(), DATA, out=tmp_path)
    run_config(config(kappa=1.0, outputs=4, settings={"beta1": 0.9}), DATA, out=tmp_path)
    assert only(tmp_path)


def test_a_full_disk_leaves_no_broken_record_and_the_run_can_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_config(config(), DATA).table
    synced: list[int] = []
    fsync = os.fsync

    def failing_fsync(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 4:  # two checkpoints: a file and a directory each
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(OSError, match="No space left on device"):
        run_config(config(), DATA, out=tmp_path)
    monkeypatch.undo()
    assert [p.name.partition(".")[2].partition(".")[2] for p in tmp_path.rglob("*") if p.is_file()] == [
        "checkpoint.npz"
    ]
    assert_frame_equal(run_config(config(), DATA, out=tmp_path, callbacks=NO_CALLBACKS).table, expected)


def test_an_unwritable_directory_is_reported_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(streaming_runs, "_make_learner", None)
    with pytest.raises(OSError, match="Not a directory"):
        run_config(config(), DATA, out=tmp_path / "file")


def test_more_classes_than_outputs_raise_an_error() -> None:
    with pytest.raises(ValueError, match="outputs: got 3, expected at least the 4 classes of tiny"):
        run_config(config(outputs=3), DATA)
    assert run_config(config(outputs=9), DATA).config["outputs"] == 9


def test_a_network_larger_than_memory_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"hidden: got .*expected a network that fits in memory"):
        run_config(config(hidden=(10**12,)), DATA)


def test_divergence_is_recorded_without_an_error(tmp_path: Path) -> None:
    lines: list[str] = []
    table = run_config(config("sgd", lr=1e30), DATA, out=tmp_path, callbacks=Callbacks(on_event=lines.append)).table
    assert lines == ["input-permuted-mnist sgd seed 0: the loss diverged in task 1"]
    assert not table["loss"].is_finite().any()
    assert table["lipschitz"].is_nan().all()
    assert table["rank_1"].null_count() == len(table)
    assert table["accuracy"].is_finite().all()
    assert_frame_equal(read_record(only(tmp_path)).table, table)


def test_a_diverged_run_is_resumed(tmp_path: Path) -> None:
    expected = run_config(config("sgd", lr=1e30), DATA, callbacks=NO_CALLBACKS).table
    with pytest.raises(KeyboardInterrupt):
        run_config(config("sgd", lr=1e30), DATA, out=tmp_path, callbacks=Callbacks(on_progress=interrupted_after(2)))
    record = run_config(config("sgd", lr=1e30), DATA, out=tmp_path, callbacks=NO_CALLBACKS)
    assert_frame_equal(record.table, expected)


def test_progress_reports_the_online_accuracy() -> None:
    lines: list[tuple[int, float]] = []
    table = run_config(config(), DATA, callbacks=Callbacks(on_progress=lambda *report: lines.append(report))).table
    assert lines == list(zip(table["samples"], table["online_accuracy"], strict=True))


def test_the_number_of_threads_is_restored() -> None:
    torch.set_num_threads(2)
    inside: list[int] = []
    run_config(
        config(steps=20), DATA, callbacks=Callbacks(on_progress=lambda *_: inside.append(torch.get_num_threads()))
    )
    assert inside[0] == 1
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("method", "backend"),
    [
        ("adam+wc", "fused"),
        ("sgd+sp", "reference"),
        pytest.param("adam+wc", "reference", marks=pytest.mark.slow),
        pytest.param("sgd+sp", "fused", marks=pytest.mark.slow),
    ],
)
def test_kill_9_loses_at_most_the_current_task(tmp_path: Path, method: str, backend: str) -> None:
    """A run killed repeatedly at random moments ends with the same results as an uninterrupted one."""
    expected = run_config(streaming_process.config(backend, method), DATA).table
    moments = random.Random(0)
    finished = kills = 0
    while finished < streaming_process.TASKS - 2:
        process = streaming_process.start(tmp_path, backend, method)
        try:
            wait_for(partial(_has_saved_more, tmp_path, finished), "a task", interval=0.001)
            time.sleep(moments.uniform(0, 0.05))  # within a task
            saved = _tasks_saved(tmp_path)
        finally:
            process.kill()
            process.join()
        finished = _tasks_saved(tmp_path)
        assert finished >= saved  # saved tasks exist and can be read
        kills += 1
    assert kills > 1
    seen: list[int] = []
    settings = streaming_process.config(backend, method)
    record = run_config(settings, DATA, out=tmp_path, callbacks=Callbacks(on_progress=lambda n, _: seen.append(n)))
    assert all(samples > finished * streaming_process.PERIOD[backend] for samples in seen)
    assert_frame_equal(record.table, expected, check_exact=True)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".parquet"]


def _has_saved_more(directory: Path, tasks: int) -> bool:
    return _tasks_saved(directory) > tasks


def _tasks_saved(directory: Path) -> int:
    saved = list(directory.rglob("*.checkpoint.npz"))
    if not saved:
        return streaming_process.TASKS if list(directory.rglob("*.parquet")) else 0
    try:
        with np.load(saved[0]) as arrays:
            return len(arrays["rows"])
    except FileNotFoundError:  # replaced by the record
        return streaming_process.TASKS


def test_run_returns_the_rows_of_all_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Problem, "load", lambda problem, data_dir, event: DATA)
    settings: dict[str, Any] = {"method": "sgd+wc", "steps": 40, "period": 20, "hidden": (5,), "backend": "reference"}
    table = run("input-permuted-mnist", seeds=range(2), out=tmp_path, **settings)
    assert table.select("seed", "task").rows() == [(0, 1), (0, 2), (1, 1), (1, 2)]
    records = pl.concat([read_record(path).table for path in sorted(tmp_path.rglob("*.parquet"))])
    assert_frame_equal(table, records)
    assert_frame_equal(run("input-permuted-mnist", seed=1, **settings), table.filter(seed=1))
    assert_frame_equal(run("input-permuted-mnist", seeds=2, **settings), table)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kapa": 1.0}, "kapa: unknown argument of run, expected one of .*did you mean 'kappa'"),
        ({"seeds": 0}, "seeds: got 0, expected a whole number of at least 1"),
        ({"seeds": 1.5}, "seeds: got 1.5, expected a whole number"),
        ({"seeds": []}, "seeds: got none"),
        ({"seeds": [0], "seed": 1}, "seed: got 1, but seeds is given too"),
        ({"seeds": [0.5]}, "seed: got 0.5"),
        ({"period": 0}, "period: got 0"),
    ],
)
def test_errors_are_reported_before_data_is_downloaded(
    wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Problem, "load", None)
    with pytest.raises(ValueError, match=message):
        run("input-permuted-mnist", **wrong)


def test_the_lab_is_accessible_from_the_package() -> None:
    import weightclip.lab

    assert weightclip.lab.experiments.streaming.run is run
    assert weightclip.lab.records.read_record is read_record
    assert weightclip.lab.data.load is not None
    assert {"run", "Config"} <= set(dir(weightclip.lab.experiments.streaming))
    with pytest.raises(AttributeError, match="nothing"):
        _ = weightclip.lab.nothing
