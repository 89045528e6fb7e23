import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weightclip.cli import main
from weightclip.lab.results.record import read_record
from weightclip.lab.sweep.manifest import read_manifests

pytestmark = pytest.mark.usefixtures("empty_directory")

SMALL = ["sweep", "input-permuted-mnist", "--hidden", "8", "--steps", "90", "--period", "30", "--backend", "reference"]


def records(directory: str = "results") -> list[Path]:
    return sorted(Path(directory).rglob("*.parquet"))


def test_a_dry_run_counts_runs_time_and_space_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--methods", "sgd,sgd+wc", "--grid", "paper", "--seeds", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "input-permuted-mnist: 48 runs: 0 done, 48 to run" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert lines["sgd"][1:3] == ["8", "8"]
    assert lines["sgd+wc"][1:3] == ["40", "40"]
    assert "on one core" in out
    assert "kB" in lines["about"]
    assert not Path("results").exists()


def test_a_sweep_runs_what_is_missing_with_the_papers_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--methods", "sgd,adam+wc", "--best", "--seeds", "1", "--workers", "1"]) == 0
    capsys.readouterr()
    assert main([*SMALL, "--methods", "sgd,adam+wc", "--seeds", "0,2", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "4 runs: 2 done, 2 to run" in out
    assert "2 runs done, 0 failed" in out
    found = [read_record(path) for path in records()]
    assert sorted(
        (one.config["method"], one.config["lr"], one.config["kappa"], one.config["seed"]) for one in found
    ) == [
        ("adam+wc", 0.0001, 1.0, 0),
        ("adam+wc", 0.0001, 1.0, 2),
        ("sgd", 0.001, None, 0),
        ("sgd", 0.001, None, 2),
    ]
    assert main([*SMALL, "--methods", "sgd,adam+wc", "--seeds", "0,2"]) == 0
    assert "4 done, 0 to run" in capsys.readouterr().out


def test_a_sweep_and_a_run_leave_the_same_record() -> None:
    assert main([*SMALL, "--methods", "sgd+wc", "--seeds", "1", "--workers", "1", "--out", "swept"]) == 0
    assert main(["run", *SMALL[1:], "--method", "sgd+wc", "--out", "run"]) == 0
    (swept,), (run,) = records("swept"), records("run")
    assert swept.relative_to("swept") == run.relative_to("run")
    assert read_record(swept).table.equals(read_record(run).table)


def test_the_store_keeps_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*SMALL, "--methods", "sgd", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", ["weightclip", *words])
    assert main() == 0
    (manifest,) = read_manifests(Path("results"))
    assert manifest.command == f"weightclip {' '.join(words)}"


def test_a_failed_run_is_told_and_noted_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("grid.toml").write_text("[grid]\nhidden = [[4], [1_000_000_000_000]]\n")
    words = ["sweep", "input-permuted-mnist", "--methods", "sgd", "--grid", "grid.toml", *SMALL[4:], "--workers", "1"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "sgd cannot be measured: hidden: got (1000000000000,), expected a network that fits into memory" in out
    assert "failed: input-permuted-mnist/sgd/lr0.001_seed0: ValueError: hidden" in out
    assert "1 runs done, 1 failed" in out
    assert main(words) == 0
    assert "1 done, 0 to run, 1 failed before (--retry-failed runs them again)" in capsys.readouterr().out
    assert main(["status", "--failures"]) == 0
    assert "Traceback (most recent call last):" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "sdg"], "method: got 'sdg', expected one of"),
        (["--grid", "papr"], "grid: got 'papr', expected 'paper' or a TOML file"),
        (["--executor", "cloud"], "--executor: got 'cloud', expected one of"),
        (["--workers", "0"], "--workers: got 0"),
        (["--seeds", "x"], "--seeds: got 'x'"),
        (["--grid", "paper", "--best"], "not allowed with argument"),
        (["--lr", "-1"], "lr: got -1"),
        (["--slurm", "partition"], "--slurm: got 'partition', expected NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert not Path("results").exists()


def test_an_unknown_problem_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "input-permuted-mnits"]) == 2
    assert "did you mean 'input-permuted-mnist'?" in capsys.readouterr().err


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weightclip", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_stops_everything_and_says_how_to_go_on() -> None:
    words = ["sweep", "input-permuted-mnist", "--hidden", "8", "--methods", "sgd", "--seeds", "6", "--workers", "2"]
    process = start([*words, "--steps", "300k"])
    deadline = time.monotonic() + 120
    while len(records()) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == ""
    assert "of 6 runs ended; the same command goes on" in out
    assert 1 <= len(records()) < 6
    while is_running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(process.pid)
