import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import SECONDS, is_running, start_process, wait_for
from weightclip.cli import main
from weightclip.lab.records.record import read_record
from weightclip.lab.text import clock_text

pytestmark = pytest.mark.usefixtures("empty_directory")

SMALL = ["sweep", "input-permuted-mnist", "--hidden", "8", "--steps", "90", "--period", "30", "--backend", "reference"]


def records(directory: str = "results") -> list[Path]:
    return sorted(Path(directory).rglob("*.parquet"))


def test_a_dry_run_counts_runs_without_executing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--methods", "sgd,sgd+wc", "--grid", "paper", "--seeds", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "input-permuted-mnist: 48 runs: 0 done, 48 to run" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert lines["sgd"][1:] == ["8", "8"]
    assert lines["sgd+wc"][1:] == ["40", "40"]
    assert "time and space: unknown until a similar run, also a shorter one, has finished in results" in out
    assert not Path("results").exists()


def test_time_and_space_are_estimated_from_runs_with_other_seeds_and_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", *SMALL[1:], "--method", "sgd", "--seed", "7"]) == 0
    (path,) = records()
    seconds = read_record(path).seconds
    capsys.readouterr()
    words = [*SMALL, "--methods", "sgd,sgd+wc", "--lr", "0.1,0.2", "--seeds", "3", "--dry-run"]
    assert main(words) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["sgd"][1:4] == ["6", "6", f"0:{round(6 * seconds):02}"]
    assert lines["sgd"][-1] in ("kB", "bytes")
    assert lines["sgd+wc"][-2:] == ["unknown", "unknown"]
    assert "for 6 of them, unknown for the others" in " ".join(lines["time"])
    assert main([*words, "--steps", "900"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["sgd"][3] == clock_text(6 * 10 * seconds)  # extrapolated from the shorter run


def test_an_option_with_several_values_makes_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--methods", "sgd,sgd+wc", "--kappa", "1,2,4", "--dry-run"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert (lines["sgd"][1], lines["sgd+wc"][1]) == ("1", "3")  # only methods that have the setting
    assert main([*SMALL, "--methods", "sgd", "--activation", "relu,tanh", "--dry-run"]) == 0
    assert "2 runs: 0 done, 2 to run" in capsys.readouterr().out
    assert main([*SMALL, "--methods", "sgd", "--kappa", "1,2"]) == 2
    assert "--kappa: got a value, but sgd has no such setting, only lr" in capsys.readouterr().err


def test_a_sweep_executes_missing_runs_with_the_papers_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep and a run write the same records: one continues where the other stopped."""
    for method in ("sgd", "adam+wc"):
        assert main(["run", *SMALL[1:], "--method", method]) == 0
    capsys.readouterr()
    assert main([*SMALL, "--methods", "sgd,adam+wc", "--kappa", "1,2", "--seeds", "0,2", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "6 runs: 2 done, 4 to run" in out
    assert "4 runs done, 0 failed" in out
    found = [read_record(path).config for path in records()]
    assert sorted((one["method"], one["lr"], one["kappa"] or 0.0, one["seed"]) for one in found) == [
        ("adam+wc", 0.0001, 1.0, 0),
        ("adam+wc", 0.0001, 1.0, 2),
        ("adam+wc", 0.0001, 2.0, 0),
        ("adam+wc", 0.0001, 2.0, 2),
        ("sgd", 0.001, 0.0, 0),
        ("sgd", 0.001, 0.0, 2),
    ]
    assert main([*SMALL, "--methods", "sgd,adam+wc", "--best", "--seeds", "0,2"]) == 0
    assert "4 done, 0 to run" in capsys.readouterr().out
    (swept,) = (path for path in records() if "adam+wc" in path.parts and "kappa1_seed2" in path.name)
    assert main(["run", *SMALL[1:], "--method", "adam+wc", "--seed", "2", "--out", "run"]) == 0
    (run,) = records("run")
    assert swept.relative_to("results") == run.relative_to("run")
    assert read_record(swept).table.equals(read_record(run).table)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "sdg"], "method: got 'sdg', expected one of"),
        (["--grid", "papr"], "grid: got 'papr', expected 'paper' or a TOML file, for example with [grid] lr = [0.01"),
        (["--executor", "cloud"], "--executor: got 'cloud', expected one of"),
        (["--workers", "0"], "--workers: got 0"),
        (["--seeds", "x"], "--seeds: got 'x'"),
        (["--grid", "paper", "--best"], "not allowed with argument"),
        (["--lr", "-1"], "lr: got -1"),
        (["--slurm", "partition"], "--slurm: got 'partition', expected NAME=VALUE"),
        (
            ["--slurm", "partition=cpu"],
            "--slurm: got 'partition=cpu', which needs --executor slurm, but --executor is",
        ),
        (["--address", "auto"], "--address: got 'auto', which needs --executor ray, but --executor is local"),
        (["--methods", ""], "--methods: got '', expected comma-separated values, or all"),
        (
            ["--seeds", "0"],
            "--seeds: got '0', expected a number of seeds such as 4, or 0-3 or 0,2,5 (--seed 0 runs seed 0)",
        ),
        (["--best", "nope.toml"], "--best: got 'nope.toml', expected 'paper' or a TOML file"),
        (
            ["--best", "label-permuted-emnist"],
            "for example with [best.input-permuted-mnist] sgd = { lr = 0.001 }; it is a problem",
        ),
    ],
)
def test_an_error_prints_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--grid", "grid = 3", "grid: got 3, expected a table"),
        ("--grid", "[grid]\nmethods = 3", "grid.methods: got 3, expected a table"),
        ("--grid", "[grid]\n", "grid: got no settings, expected lists of values, for example [grid] lr = ["),
        ("--grid", "[grid]\nlr = 0.1", "grid: got lr = 0.1, expected a list of values, for example lr = [0.1]"),
        ("--grid", "[search]\nlr = [0.1]", "[grid] is missing; expected for example [grid] lr = [0.01, 0.001]"),
        ("--grid", "[grid]\nlr = ['a']", "lr: got 'a', expected"),
        ("--grid", "[grid]\nseeds = 0\nlr = [1]", "grid.seeds: got 0"),
        ("--best", "[grid]\nlr = [1]", "got [grid], expected [best.input-permuted-mnist]"),
        ("--best", "[best.other]\nsgd = {}", "got [best.other], expected [best.input-permuted-mnist]"),
        ("--best", "[best.input-permuted-mnist]\nsdg = { lr = 1 }", "method: got 'sdg', expected"),
        ("--best", "[best.input-permuted-mnist]\nsgd = { lr = 'a' }", "lr: got 'a', expected"),
    ],
)
def test_an_error_in_a_file_names_the_file(
    option: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.toml").write_text(text)
    assert main([*SMALL, "--methods", "sgd", option, "mine.toml"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"weightclip: error: {option} mine.toml: {message}")
    assert shown.err.count("\n") == 1


def test_an_error_on_the_command_line_does_not_name_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text("[grid]\nlr = [0.1]")
    assert main([*SMALL, "--methods", "sgd", "--grid", "mine.toml", "--activation", "x"]) == 2
    assert capsys.readouterr().err.startswith("weightclip: error: activation: got 'x'")


def test_methods_without_a_best_setting_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text("[best.input-permuted-mnist]\nsgd = { lr = 0.5 }\n")
    assert main([*SMALL, "--methods", "sgd,adam", "--best", "mine.toml", "--dry-run"]) == 0
    assert "mine.toml has no setting for adam: using the defaults" in capsys.readouterr().out


def test_a_problem_parsed_as_the_value_of_best_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--best", "input-permuted-mnist"]) == 2
    assert "'input-permuted-mnist' was parsed as the value of --best" in capsys.readouterr().err
    assert main(["sweep", "--workers", "2"]) == 2
    assert "PROBLEM: got none" in capsys.readouterr().err


def test_a_dry_run_on_slurm_does_not_require_slurm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="needs submitit")
    monkeypatch.setenv("PATH", "")
    words = [*SMALL, "--methods", "sgd", "--executor", "slurm", "--slurm", "partition=cpu"]
    assert main([*words, "--dry-run"]) == 0
    assert "1 run: 0 done, 1 to run" in capsys.readouterr().out
    assert main(words) == 2


def test_an_unknown_problem_of_a_sweep_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "input-permuted-mnits"]) == 2
    assert "did you mean 'input-permuted-mnist'?" in capsys.readouterr().err


def test_ctrl_c_stops_everything_and_explains_how_to_resume() -> None:
    words = [*SMALL, "--methods", "sgd", "--seeds", "6", "--workers", "2"]
    command = [sys.executable, "-m", "weightclip", *words, "--steps", "1200"]
    with start_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(records()) >= 1, "a record")
        os.killpg(process.pid, signal.SIGINT)  # to the whole process group, as a terminal does
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 130, err
        assert err == ""
        assert "of 6 runs ended; the same command resumes" in out
        assert 1 <= len(records()) < 6
        wait_for(lambda: not is_running(process.pid), "the end of all processes")
