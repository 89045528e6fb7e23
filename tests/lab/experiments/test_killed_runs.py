"""Runs that are killed at random moments end with the numbers of undisturbed runs."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from weightclip.lab import load

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
    command = [
        sys.executable,
        "-c",
        "from weightclip_command import main; raise SystemExit(main())",
        "run",
        *arguments,
        "--out",
        str(out),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def wait_for_checkpoints(process: subprocess.Popen[bytes], out: Path, number: int) -> bool:
    """Wait until a checkpoint has been written `number` times; False if the run ended before."""
    seen: set[int] = {file.stat().st_mtime_ns for file in out.rglob("*.checkpoint.npz")}
    first = len(seen)
    while process.poll() is None:
        for file in out.rglob("*.checkpoint.npz"):
            try:
                seen.add(file.stat().st_mtime_ns)
            except FileNotFoundError:  # the run has just finished
                continue
        if len(seen) - first >= number:
            return True
        time.sleep(0.01)
    return False


def numbers(out: Path) -> pl.DataFrame:
    table = load(out)
    return table.drop(TIMED, strict=False).sort("seed", "samples")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_five_times_ends_as_if_undisturbed(name: str, tmp_path: Path) -> None:
    generator = random.Random(name)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(RUNS[name], whole))
    kills = 0
    while kills < KILLS:
        process = start(RUNS[name], killed)
        if not wait_for_checkpoints(process, killed, generator.randint(1, 3)):
            finish(process)
            break
        time.sleep(generator.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    finish(start(RUNS[name], killed))
    assert kills == KILLS, f"the run ended after {kills} kills; expected a longer one"
    assert load(killed)["resumed"].unique().to_list() == ["exact"]
    assert load(whole)["resumed"].unique().to_list() == ["never"]
    assert_frame_equal(numbers(killed), numbers(whole), check_exact=True)
