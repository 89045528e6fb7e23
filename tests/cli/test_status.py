from pathlib import Path

import pytest
from polars import DataFrame

from weightclip.cli import main
from weightclip.lab.results.record import Record, write_record
from weightclip.lab.results.store import Failure, now, record_path, write_failure
from weightclip.lab.streaming.plugin import EXPERIMENT
from weightclip.lab.sweep.claims import claimed
from weightclip.lab.sweep.manifest import write_manifest
from weightclip.lab.sweep.plan import Run

pytestmark = pytest.mark.usefixtures("empty_directory")

STORE = Path("results")


def make_sweep(count: int = 5) -> list[Run]:
    configs = [EXPERIMENT.configure("input-permuted-mnist", {"method": "sgd", "seed": seed}) for seed in range(count)]
    runs = [Run("streaming", config, f"{config.seed:012x}", EXPERIMENT.place(config), "mnist") for config in configs]
    STORE.mkdir()
    write_manifest(STORE, "weightclip sweep it", "input-permuted-mnist", runs, {run.identity: 100.0 for run in runs})
    return runs


def test_status_counts_done_running_failed_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    done, failed, held, *_ = make_sweep()
    record = Record("streaming", done.identity, {}, DataFrame({"task": [1]}), {}, 1.0)
    write_record(record, record_path(STORE, done.place, done.identity))
    reason = "ValueError: no"
    write_failure(STORE, Failure(failed.place, failed.identity, "streaming", {}, reason, "Traceback ...\n", now()))
    with claimed(STORE, held.identity, held.place):
        assert main(["status", str(STORE)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "weightclip sweep it"
    (line,) = (line for line in out.splitlines() if line.startswith("all"))
    assert line.split() == ["all", "1", "1", "1", "3"]
    assert f"{held.place}: 0% after 0:00" in out
    assert "about 5:00 left with 1 running" in out
    assert f"{failed.place}: ValueError: no" in out
    assert "Traceback" not in out
    assert main(["status", str(STORE), "--failures"]) == 0
    assert "  Traceback ..." in capsys.readouterr().out


def test_when_nothing_runs_the_time_is_that_of_one_core(capsys: pytest.CaptureFixture[str]) -> None:
    make_sweep()
    assert main(["status"]) == 0
    assert "nothing is running; what is left takes about 8:20 on one core" in capsys.readouterr().out


def test_a_directory_without_sweeps_says_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    STORE.mkdir()
    assert main(["status", str(STORE)]) == 0
    assert "results has no sweep; it has 0 records" in capsys.readouterr().out
    assert main(["status", "elsewhere"]) == 2
    assert "DIR: got 'elsewhere', expected a directory with results" in capsys.readouterr().err
