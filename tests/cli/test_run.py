import errno
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from processes import SECONDS, start_process, wait_for
from weightclip.cli import main
from weightclip.lab.experiments.streaming import training as streaming_runs
from weightclip.lab.records.record import read_record

pytestmark = pytest.mark.usefixtures("empty_directory")

SMALL = ["run", "input-permuted-mnist", "--hidden", "8", "--steps", "90", "--period", "30", "--backend", "reference"]


def records(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.parquet"))


def has_ended_or_saved(process: "subprocess.Popen[str]", directory: Path) -> bool:
    """Return whether a run has a checkpoint or its process has ended."""
    return process.poll() is not None or bool(list(directory.rglob("*.checkpoint.npz")))


def test_a_run_prints_its_result_and_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--method", "sgd+wc", "--kappa", "2", "--seeds", "0-1"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    (source,) = (line for line in lines if line.startswith("data: mnist, "))
    assert "stand-in" in source
    assert any(
        line.startswith("method: sgd+wc: lr 0.001, kappa 2; ") and "backend reference; " in line for line in lines
    )
    assert "seeds: 0–1" in lines
    directory = Path("results/input-permuted-mnist/sgd+wc")
    for seed in (0, 1):
        record = read_record(next(directory.glob(f"*_seed{seed}_*.parquet")))
        first, last = record.table.row(0, named=True), record.table.row(-1, named=True)
        (line,) = (line for line in lines if line.startswith(f"seed {seed}: "))
        for part in (f"{first['accuracy']:.2%} in the first", f"{last['accuracy']:.2%} in the last of 3"):
            assert part in line
        assert f"{last['online_accuracy']:.2%} on average" in line
    assert any(line.startswith("mean of 2 seeds: ") for line in lines)
    for path in (*directory.glob("*.parquet"), *directory.glob("*.png")):
        assert any(str(path) in line for line in lines)
    assert len(list(directory.iterdir())) == 3


def test_the_record_equals_the_table_returned_in_python(tmp_path: Path) -> None:
    assert main([*SMALL, "--out", str(tmp_path / "out"), "--set", "beta1=0.5", "--seed", "3"]) == 0
    table = streaming_runs.run(
        "input-permuted-mnist",
        seed=3,
        hidden=(8,),
        steps=90,
        period=30,
        backend="reference",
        settings={"beta1": 0.5},
    )
    assert_frame_equal(read_record(records(tmp_path / "out")[0]).table, table)


def test_a_finished_run_is_repeated_only_on_request(tmp_path: Path) -> None:
    assert main(SMALL) == 0
    written = records(tmp_path)[0].stat().st_mtime_ns
    assert main(SMALL) == 0
    assert records(tmp_path)[0].stat().st_mtime_ns == written
    assert main([*SMALL, "--overwrite"]) == 0
    assert records(tmp_path)[0].stat().st_mtime_ns > written


def test_without_diagnostics(tmp_path: Path) -> None:
    assert main([*SMALL, "--no-diagnostics"]) == 0
    assert "plasticity" not in read_record(records(tmp_path)[0]).table.columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["input-permuted-mnits"], "did you mean 'input-permuted-mnist'?"),
        (["input-permuted-mnist", "--method", "adma+wc"], "did you mean 'adam'?"),
        (["input-permuted-mnist", "--method", "adam+l2int"], "did you mean 'l2init'?"),
        (["input-permuted-mnist", "--kappa", "0"], "kappa: got 0.0, expected a positive number"),
        (["input-permuted-mnist", "--kappa", "-2"], "kappa: got -2.0, expected a positive number"),
        (["input-permuted-mnist", "--lr", "-0.1"], "lr: got -0.1, expected a number of at least 0"),
        (["input-permuted-mnist", "--lr", "-1e-3"], "lr: got -0.001, expected a number of at least 0"),
        (["input-permuted-mnist", "--lr", "fast"], "--lr: got 'fast', expected a number"),
        (["input-permuted-mnist", "--period", "0"], "period: got 0, expected a whole number of at least 1"),
        (["input-permuted-mnist", "--steps", "0"], "steps: got 0, expected a whole number of at least 1"),
        (["input-permuted-mnist", "--steps", "many"], "--steps: got 'many', expected a whole number such as"),
        (["input-permuted-mnist", "--outputs", "9"], "outputs: got 9, expected at least the 10 classes of mnist"),
        (["input-permuted-mnist", "--seeds", "3-1"], "--seeds: got '3-1', expected a number of seeds such as 4, or"),
        (["input-permuted-mnist", "--set", "beta9=1"], "beta9: got 1.0, but adam+wc has no such setting"),
        (["input-permuted-mnist", "--rules", "none.py"], "rules: got 'none.py', expected a Python file"),
        (["input-permuted-mnist", "--data-dir", "nowhere"], "data_dir: nowhere has no mnist"),
        (["label-permuted-emnist"], "emnist: not available"),
        (["input-permuted-mnist", "--out", "file"], "file: File exists; choose a directory, not a file"),
        (["input-permuted-mnist", "--out", "file/inside"], "file/inside: Not a directory; choose a directory, not a"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_code_2_without_a_record(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["run", *arguments, "--backend", "reference"]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("weightclip: error: ")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.out + shown.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert main([*SMALL, "--out", str(tmp_path / "locked")]) == 2
    assert "Permission denied; choose a directory that you can write to" in capsys.readouterr().err


def test_an_unwritable_directory_is_reported_before_data_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def permission_denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", permission_denied)
    assert main([*SMALL, "--out", "locked"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "weightclip: error: locked: Permission denied; choose a directory that you can write to\n"


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_full_disk_is_reported_and_the_run_resumes_without_a_broken_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    done: list[object] = []
    replace = os.replace

    def failing_replace(source: object, target: object) -> None:
        if ".running" in str(target):  # progress notes are not counted; losing them is harmless
            replace(source, target)  # type: ignore[call-overload]
            return
        if len(done) == writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(target)
        replace(source, target)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing_replace)
        assert main(SMALL) == 2
    shown = capsys.readouterr().err
    assert "No space left on device; free some space, then run the same command again" in shown
    assert shown.count("\n") == 1
    assert not records(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    assert main(SMALL) == 0
    assert ("resuming after task" in capsys.readouterr().out) == (writes > 0)
    assert len(read_record(records(tmp_path)[0]).table) == 3


@pytest.mark.parametrize("overwrite", [False, True])
def test_ctrl_c_explains_how_to_resume(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(streaming_runs, "run_config", interrupted)
    assert main([*SMALL, *(["--overwrite"] * overwrite)]) == 130
    hint = "the same command without --overwrite resumes" if overwrite else "the same command resumes"
    assert hint in capsys.readouterr().out


def test_a_run_interrupted_by_ctrl_c_resumes_with_the_same_command(tmp_path: Path) -> None:
    """The interrupted run has the same results as an uninterrupted one."""
    long = [*SMALL[:5], "900", *SMALL[6:]]
    command = [sys.executable, "-m", "weightclip", *long]
    with start_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(partial(has_ended_or_saved, process, tmp_path), "a checkpoint", interval=0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopped; the same command resumes from the last checkpoint, if one exists" in out
    assert "Traceback" not in out + err
    assert not records(tmp_path)
    assert main(long) == 0
    uninterrupted = streaming_runs.run("input-permuted-mnist", hidden=(8,), steps=900, period=30, backend="reference")
    assert_frame_equal(read_record(records(tmp_path)[0]).table, uninterrupted, check_exact=True)


def test_help_lists_problems_methods_and_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("input-permuted-mnist", "stationary-cifar10", "warm-start", "replay-ratio", "--out"):
        assert name in shown
    assert main(["run", "input-permuted-mnist", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in (
        "adam+l2init",
        "--kappa",
        "--seeds",
        "--no-diagnostics",
        "method:",
        "problem:",
        "algorithm:",
        "output:",
    ):
        assert name in shown


def test_seeds_is_a_count_and_seed_is_a_single_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--seeds", "3"]) == 0
    assert "seeds: 0–2" in capsys.readouterr().out
    assert main([*SMALL, "--seed", "3"]) == 0
    assert "seeds: 3" in capsys.readouterr().out
    assert main([*SMALL, "--seed", "3", "--seeds", "4"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_truncated_task_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL[:5], "70", *SMALL[6:]]) == 0
    assert "in the last of 3, which was cut short" in capsys.readouterr().out
    assert read_record(records(tmp_path)[0]).table["cut_short"].to_list() == [False, False, True]
    assert main([*SMALL]) == 0
    assert "cut short" not in capsys.readouterr().out


def test_a_command_waits_for_a_run_of_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two processes with the same command, one executes the run and the other waits for its record."""
    long = [*SMALL[:5], "1500", *SMALL[6:]]
    command = [sys.executable, "-m", "weightclip", *long]
    with start_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        wait_for(partial(has_ended_or_saved, other, tmp_path), "a checkpoint", interval=0.01)
        assert main(long) == 0
        other.communicate(timeout=SECONDS)
    assert other.returncode == 0
    shown = capsys.readouterr().out
    assert f"seed 0: process {other.pid} on " in shown
    assert "is running it; waiting for its record" in shown
    assert "already finished" in shown
    assert len(records(tmp_path)) == 1
    assert not list((tmp_path / "results" / ".running").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the peak memory of one process")
def test_a_million_samples_take_less_than_600_mb(tmp_path: Path) -> None:
    """Measured in a separate process, including PyTorch, Numba and a first compilation."""
    code = (  # not getrusage, whose peak may be inherited from the parent process
        "import sys; from weightclip.cli import main;"
        "code = main(['run', 'input-permuted-mnist', '--method', 'sgd+wc', '--out', sys.argv[1]]);"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'));"
        "print(code, status['VmHWM'].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    exit_code, kilobytes = map(int, done.stdout.splitlines()[-1].split())
    assert exit_code == 0
    assert kilobytes * 1024 < 600e6
