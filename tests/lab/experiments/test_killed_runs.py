"""Runs killed at random moments end with the same results as uninterrupted runs.

The moments are numbers of saved rows, because elapsed time is unreliable on a busy machine.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from processes import EVERY_ROW, saved_rows
from weightclip.lab import load
from weightclip.lab.records.record import read_record

KILLS = 5
TIMED = ("seconds", "speed", "frames_per_second", "updates_per_second", "resumed")
PPO = ["policy-collapse", "--method", "adam+wc", "--num-steps", "256", "--num-minibatches", "4", "--steps", "16k"]
DQN = [
    *["replay-ratio", "--suite", "minatar", "--method", "adam+wc", "--frames", "6000", "--points", "30"],
    *["--learning-starts", "300", "--buffer-size", "1000", "--eval-episodes", "1"],
]
ATARI = [
    *["replay-ratio", "--game", "SpaceInvaders", "--method", "adam+wc", "--frames", "8000", "--points", "20"],
    *["--num-envs", "2", "--replay-ratio", "0.1", "--learning-starts", "300", "--buffer-size", "1000"],
    *["--eval-episodes", "1"],
]
RUNS = {
    "Hopper": [*PPO, "--env", "Hopper-v4"],
    "Humanoid": [*PPO, "--env", "Humanoid-v4"],
    "lockstep": [*PPO, "--env", "Hopper-v4", "--seeds", "4"],
    "DQN": [*DQN, "--agent", "dqn", "--game", "seaquest"],
    "Rainbow": [*DQN, "--agent", "rainbow", "--game", "space_invaders"],
    "Atari": ATARI,
}


def start(arguments: list[str], out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, EVERY_ROW, "run", *arguments, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def kill_after_row(process: subprocess.Popen[bytes], out: Path, row: int, fraction: float) -> None:
    """Kill the process after it has saved a new row, at least the given one, and a fraction of the time of a row."""
    times = [time.monotonic()]
    rows = max(saved_rows(out), default=0)
    row = max(row, rows + 1)
    while rows < row:
        assert process.poll() is None, f"the run ended before row {row}"
        time.sleep(0.005)
        if (now := max(saved_rows(out), default=0)) > rows:
            rows = now
            times.append(time.monotonic())
    time.sleep(fraction * (times[-1] - times[-2]) if len(times) > 2 else 0.0)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, f"the run ended before it was killed after row {row}"


def is_part(path: Path) -> bool:
    """Whether a file has an additional table of a record."""
    return "." in path.stem.rpartition("_")[2]


def numbers(out: Path) -> pl.DataFrame:
    table = load(out)
    return table.drop(TIMED, strict=False).sort("seed", "samples")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_five_times_ends_as_if_uninterrupted(name: str, tmp_path: Path) -> None:
    generator = random.Random(name)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(RUNS[name], whole))
    rows = load(whole)["samples"].n_unique()
    for row in sorted(generator.sample(range(1, rows - 5), KILLS)):
        kill_after_row(start(RUNS[name], killed), killed, row, generator.random())
    finish(start(RUNS[name], killed))
    assert load(killed)["resumed"].unique().to_list() == ["exact"]
    assert load(whole)["resumed"].unique().to_list() == ["never"]
    assert_frame_equal(numbers(killed), numbers(whole), check_exact=True)
    records = [sorted(path for path in out.rglob("*.parquet") if not is_part(path)) for out in (killed, whole)]
    assert len(records[0]) == len(records[1]) > 0
    for found, expected in (map(read_record, pair) for pair in zip(*records, strict=True)):
        assert found.tables.keys() == expected.tables.keys()
        assert found.arrays.keys() == expected.arrays.keys()
        for name, table in expected.tables.items():  # episodes, covariances
            assert_frame_equal(found.tables[name], table, check_exact=True)
        for name, array in expected.arrays.items():  # networks
            np.testing.assert_array_equal(found.arrays[name], array, err_msg=name)
