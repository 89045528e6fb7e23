import re
import time
from pathlib import Path

import pytest
from polars import DataFrame

from weightclip.cli import main
from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.records.record import Record, write_record
from weightclip.lab.records.store import Failure, now, record_path, relative_path, write_failure
from weightclip.lab.sweep import locks
from weightclip.lab.sweep.locks import locked
from weightclip.lab.sweep.manifest import FOLDER, write_manifest
from weightclip.lab.sweep.plan import Run

pytestmark = pytest.mark.usefixtures("empty_directory")

STORE = Path("results")


def make_sweep(count: int = 5) -> list[Run]:
    configs = [EXPERIMENT.configure("input-permuted-mnist", {"method": "sgd", "seed": seed}) for seed in range(count)]
    paths = [relative_path(EXPERIMENT.schema, config) for config in configs]
    runs = [Run("streaming", one, f"{one.seed:012x}", path, "mnist") for one, path in zip(configs, paths)]
    STORE.mkdir()
    write_manifest(STORE, "weightclip sweep it", "input-permuted-mnist", runs)
    return runs


def finish(run: Run, seconds: float) -> None:
    record = Record(EXPERIMENT.schema, run.identity, {}, DataFrame({"task": [1]}), {}, seconds)
    write_record(record, record_path(STORE, run.relative_path, run.identity))


def test_status_counts_done_running_failed_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    done, failed, held, *_ = make_sweep()
    finish(done, 100.0)
    reason = "ValueError: no"
    write_failure(
        STORE, Failure(failed.relative_path, failed.identity, "streaming", {}, reason, "Traceback ...\n", now())
    )
    with locked(STORE, held.identity, held.relative_path) as mine:
        assert mine is not None
        mine.start()
        assert main(["status", str(STORE)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "weightclip sweep it"
    (line,) = (line for line in out.splitlines() if line.startswith("all"))
    assert line.split() == ["all", "1", "1", "1", "2"]
    assert re.search(rf"  0% after \d+:\d\d, process .*: {re.escape(str(held.relative_path))}\n", out)
    assert "about 5:00 left with 1 running" in out
    assert f"{failed.relative_path}: ValueError: no" in out
    assert "Traceback" not in out
    assert main(["status", str(STORE), "--failures"]) == 0
    assert "  Traceback ..." in capsys.readouterr().out


def test_without_workers_the_time_left_is_for_one_core(capsys: pytest.CaptureFixture[str]) -> None:
    done, *_ = make_sweep()
    assert main(["status"]) == 0
    assert "time left: unknown; nothing is running" in capsys.readouterr().out
    finish(done, 100.0)
    assert main(["status"]) == 0
    assert "nothing is running; 4 runs left, about 6:40 on one core" in capsys.readouterr().out


def test_a_directory_without_sweeps_shows_its_records(capsys: pytest.CaptureFixture[str]) -> None:
    STORE.mkdir()
    assert main(["status", str(STORE)]) == 0
    assert "results has no sweep; it has 0 records" in capsys.readouterr().out
    (STORE / "a_0123456789ab.parquet").mkdir()
    (STORE / "b_0123456789ab.episodes.parquet").touch()  # a supplementary file of a record
    (STORE / "b_0123456789ab.parquet").touch()
    assert main(["status", str(STORE)]) == 0
    assert "results has no sweep; it has 1 record\n" in capsys.readouterr().out
    assert main(["status", "elsewhere"]) == 2
    assert "DIR: got 'elsewhere', expected a directory with results" in capsys.readouterr().err


def test_the_time_left_counts_progress_of_this_session(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten runs of 600 s, one of which resumed at 60 % ten seconds ago."""
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_NOTES", 0.0)
    first, *_ = make_sweep(10)
    with locked(STORE, first.identity, first.relative_path) as mine:
        assert mine is not None
        mine.start()
        mine.update(0.6)
        began = time.time()
        monkeypatch.setattr(time, "time", lambda: began + 10)
        mine.update(0.6 + 10 / 600)
        assert main(["status"]) == 0
    assert "about 1:33:50 left with 1 running" in capsys.readouterr().out


def test_queued_runs_do_not_count_as_running(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = make_sweep()
    with (
        locked(STORE, first.identity, first.relative_path) as mine,
        locked(STORE, second.identity, second.relative_path),
    ):
        assert mine is not None
        mine.start()
        assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "time left: unknown" in out
    assert "1 run queued by a sweep, waiting for a worker" in out
    (line,) = (line for line in out.splitlines() if line.startswith("all"))
    assert line.split() == ["all", "0", "1", "0", "4"]


def test_a_damaged_record_is_named_and_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    damaged, directory, *_ = make_sweep()
    path = record_path(STORE, damaged.relative_path, damaged.identity)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    record_path(STORE, directory.relative_path, directory.identity).mkdir()
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert f"{path}: it is damaged, or not Parquet (ComputeError); it is counted as left" in out
    assert f"{directory.relative_path}_{directory.identity}.parquet: Is a directory; it is counted as left" in out
    (line,) = (line for line in out.splitlines() if line.startswith("all"))
    assert line.split() == ["all", "0", "0", "0", "5"]


def test_several_directories_are_shown_in_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    make_sweep()
    Path("more").mkdir()
    assert main(["status", "results", "more"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["results:", "weightclip sweep it"]
    assert lines[-2:] == ["more:", "more has no sweep; it has 0 records"]


def test_an_extended_sweep_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    runs = make_sweep()
    write_manifest(STORE, "weightclip sweep less", "input-permuted-mnist", runs[:2])
    (less,) = (path for path in (STORE / FOLDER).iterdir() if "sweep less" in path.read_text())
    less.write_text(less.read_text().replace('"when": "2', '"when": "1'))
    assert main(["status"]) == 0
    assert "sweep less" not in capsys.readouterr().out
