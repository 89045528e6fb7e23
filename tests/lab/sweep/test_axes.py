"""Sweeps over several axes, and commands with failing experiments."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from toy_experiment import Toy

from weightclip.cli import main
from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.records.record import read_record
from weightclip.lab.records.store import checkpoint_path, failures
from weightclip.lab.sweep.executor import Started
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.manifest import read_manifests
from weightclip.lab.sweep.worker import Job, Shared

pytestmark = pytest.mark.usefixtures("empty_directory")

STORE = Path("results")
WORDS = ["sweep", "toy", "--workers", "1"]


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("weightclip.lab.registry.experiments", lambda: {"streaming": EXPERIMENT, "toy": Toy()})


def records() -> list[Path]:
    return sorted(STORE.rglob("*.parquet"))


def test_all_valid_combinations_of_values_are_run() -> None:
    assert main(WORDS) == 0
    configs = [read_record(path).config for path in records()]
    assert sorted((one["method"], one["stages"]) for one in configs) == [("fast", 1), ("fast", 2), ("slow", 1)]


def test_some_values_of_an_axis_are_run() -> None:
    assert main([*WORDS, "--stages", "2"]) == 0
    assert [read_record(path).config["stages"] for path in records()] == [2]


def test_a_grid_is_searched_at_each_value_of_an_axis(capsys: pytest.CaptureFixture[str]) -> None:
    Path("grid.toml").write_text("[grid]\nseeds = 2\nlr = [0.1, 0.2]\n")
    assert main([*WORDS, "--grid", "grid.toml", "--dry-run"]) == 0
    assert "toy: 12 runs: 0 done, 12 to run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stages", "3"], "stages: got 3, expected 1 or 2"),
        (["--stages", "x"], "--stages: got 'x', expected a whole number"),
        (["--stages", ""], "--stages: got '', expected comma-separated values, or all"),
        (["--stages", "2", "--methods", "slow"], "stages: got 2, but slow has one stage"),
    ],
)
def test_an_invalid_value_prints_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_the_exit_code_is_1_until_failed_runs_are_retried(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--methods", "fast", "--stages", "1"]
    assert main([*words, "--fault", "fail"]) == 1
    assert "--failures shows the tracebacks" in capsys.readouterr().out
    assert main(words) == 1
    assert "0 to run, 1 failed earlier" in capsys.readouterr().out
    assert main([*words, "--seeds", "2"]) == 1
    assert "1 run done, 0 failed, 1 earlier" in capsys.readouterr().out
    assert main([*words, "--dry-run"]) == 0
    assert main([*words, "--retry-failed"]) == 0
    assert main(words) == 0


def test_without_a_failure_note_the_message_does_not_mention_one(capsys: pytest.CaptureFixture[str]) -> None:
    STORE.mkdir()
    (STORE / "toy").touch()  # neither records nor notes can be written below a file
    assert main([*WORDS, "--methods", "fast", "--stages", "1"]) == 1
    out = capsys.readouterr().out
    assert "0 runs done, 1 failed" in out
    assert "--failures shows the tracebacks" not in out
    assert failures(STORE) == []


def test_only_a_sweep_and_not_a_dry_run_removes_checkpoints_of_finished_runs() -> None:
    assert main([*WORDS, "--methods", "fast", "--stages", "1"]) == 0
    checkpoint = checkpoint_path(records()[0])
    checkpoint.touch()
    assert main([*WORDS, "--methods", "fast", "--stages", "1", "--dry-run"]) == 0
    assert checkpoint.exists()
    assert main([*WORDS, "--methods", "fast", "--stages", "1"]) == 0
    assert not checkpoint.exists()


def test_a_sweep_whose_executor_does_not_start_has_no_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no cluster")

    monkeypatch.setattr(Local, "run", fail)
    assert main(WORDS) == 2
    assert read_manifests(STORE) == []


def test_ctrl_c_on_a_terminal_ends_the_table_before_the_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Local, shared: Shared, jobs: Sequence[Job]) -> Iterator[Started]:
        yield Started("1", jobs[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(Local, "run", interrupt)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert main(WORDS) == 130
    last = capsys.readouterr().out.split("method")[-1]
    assert "1 running" not in last
    assert "to go" not in last
    assert last.splitlines()[-1].endswith("stopped: 0 of 3 runs ended; the same command resumes")


def test_the_store_contains_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["weightclip", *WORDS, "--methods", "fast"])
    assert main() == 0
    (manifest,) = read_manifests(STORE)
    assert manifest.command == f"weightclip {' '.join([*WORDS, '--methods', 'fast'])}"


def test_a_failed_run_is_reported_and_recorded_and_the_others_are_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("grid.toml").write_text('[grid]\nlr = [0.1]\n[grid.methods.slow]\nfault = ["fail"]\n')
    words = [*WORDS, "--stages", "1", "--grid", "grid.toml"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "failed: toy/stages1/slow/lr0.1_seed0: RuntimeError: it went wrong" in out
    assert "1 run done, 1 failed" in out
    assert main(words) == 1
    assert "1 done, 0 to run, 1 failed earlier (use --retry-failed)" in capsys.readouterr().out
    assert main(["status", "--failures"]) == 0
    assert "Traceback (most recent call last):" in capsys.readouterr().out


def test_each_configuration_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = []
    configure = Toy.configure
    monkeypatch.setattr(Toy, "configure", lambda self, *words: resolved.append(words) or configure(self, *words))
    assert main([*WORDS, "--methods", "fast", "--lr", "0.1,0.2", "--stages", "1", "--seeds", "3"]) == 0
    assert len(records()) == 6
    assert len(resolved) == 2  # seeds share a configuration
