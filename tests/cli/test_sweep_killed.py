"""A sweep survives `kill -9` of its driver and its workers: repeating the command yields the same records."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from processes import EVERY_ROW, SECONDS, saved_rows, start_process, wait_for
from weightclip.lab import load
from weightclip.lab.records.record import read_record
from weightclip.lab.sweep.locks import locked_runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_directory")]

WORDS = [
    *("sweep", "input-permuted-mnist", "--methods", "sgd,sgd+wc,adam+sp", "--seeds", "20", "--workers", "2"),
    *("--hidden", "20", "--steps", "6000", "--period", "500"),
]
RUNS = 60
MOMENTS = 5

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a sweep with the given store. Sweeps that still run at the end of the test are killed."""
    with ExitStack() as running:
        command = [sys.executable, "-m", "weightclip", *WORDS, "--out"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        yield lambda out: running.enter_context(start_process([*command, out], **quiet))


def records(out: str) -> list[Path]:
    return sorted(Path(out).rglob("*.parquet"))


def tables(out: str) -> dict[str, pl.DataFrame]:
    """Return the table of each record in a store by the record's path."""
    return {str(path.relative_to(out)): read_record(path).table for path in records(out)}


def workers(driver: subprocess.Popen[bytes]) -> dict[str, int]:
    """Run -> process id of the runs that this driver's workers have started, without those of earlier drivers."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    notes = [note for note in locked_runs(Path("interrupted")).values() if note is not None]
    return {note.relative_path: note.process for note in notes if str(note.process) in children}


class Killer:
    """Kills drivers or workers of the sweep in the store `interrupted`."""

    def __init__(self, what: str, draw: random.Random) -> None:
        self._draw = draw
        self._driver = what == "driver"
        self._killed: set[str] = set()

    def can_kill_or_has_ended(self, driver: subprocess.Popen[bytes], moment: int) -> bool:
        """Return whether `moment` records exist and a process can be killed, or the sweep has ended."""
        return driver.poll() is not None or (len(records("interrupted")) >= moment and bool(self._victims(driver)))

    def kill(self, driver: subprocess.Popen[bytes]) -> bool:
        """Kill a process; return whether there was one."""
        victims = self._victims(driver)
        if not victims:
            return False
        if self._driver:
            driver.kill()
            driver.wait()
            return True
        run = self._draw.choice(sorted(victims))
        self._killed.add(run)
        os.kill(victims[run], signal.SIGKILL)
        return True

    def _victims(self, driver: subprocess.Popen[bytes]) -> dict[str, int]:
        """Return the current runs, except those killed before, because a run that dies three times fails."""
        return {run: process for run, process in workers(driver).items() if run not in self._killed}


@pytest.mark.parametrize("what", ["driver", "worker"])
def test_kill_9_at_five_random_moments_loses_and_duplicates_no_run(what: str, start: Start) -> None:
    """The moments are numbers of records in the store, because elapsed time is unreliable on a busy machine."""
    assert start("uninterrupted").wait(SECONDS) == 0
    expected = tables("uninterrupted")
    assert len(expected) == RUNS

    draw = random.Random(what)
    killer = Killer(what, draw)
    driver = start("interrupted")
    moments = sorted(draw.sample(range(RUNS - 10), MOMENTS))
    there: list[int] = []
    while len(there) < MOMENTS:
        moment = moments[len(there)]
        wait_for(partial(killer.can_kill_or_has_ended, driver, moment), f"{moment} records", 0.01)
        number = len(tables("interrupted"))
        if driver.poll() is not None:  # finished before the kill; restart with fewer records
            assert driver.returncode == 0
            for path in records("interrupted"):
                if draw.random() < 0.7:
                    path.unlink()
            driver = start("interrupted")
        elif killer.kill(driver):
            there.append(number)
            print(f"a {what} was killed when there were {number} records")
            if driver.poll() is not None:
                driver = start("interrupted")
    assert any(0 < number < RUNS for number in there)
    assert driver.wait(SECONDS) == 0
    again = start("interrupted")
    assert again.wait(SECONDS) == 0

    found = tables("interrupted")
    assert found.keys() == expected.keys()
    assert all(found[name].equals(expected[name]) for name in expected)
    leftovers = [path for path in Path("interrupted").rglob("*") if path.suffix in (".tmp", ".npz", ".json")]
    assert [path for path in leftovers if ".sweeps" not in path.parts] == []


RL_SWEEPS = {
    "PPO in lockstep": [
        *("policy-collapse", "--envs", "Hopper-v4", "--methods", "adam,adam+wc", "--seeds", "2"),
        *("--steps", "6k", "--num-steps", "256", "--num-minibatches", "4"),
    ],
    "DQN": [
        *("replay-ratio", "--suite", "minatar", "--games", "seaquest", "--agents", "dqn", "--methods", "adam,adam+wc"),
        *("--replay-ratios", "0.25", "--seeds", "2", "--frames", "4000", "--points", "40"),
        *("--learning-starts", "300", "--buffer-size", "1000", "--eval-episodes", "1"),
    ],
}
KILLS = ("worker", "driver", "worker", "driver", "worker")
TIMED = ("seconds", "speed", "frames_per_second", "updates_per_second", "resumed")


def progress(rows: int) -> int:
    """Return the number of rows in the store `interrupted`, given the rows of a finished run."""
    done = sum(re.search(r"_[0-9a-f]{12}$", path.stem) is not None for path in records("interrupted"))
    return rows * done + sum(saved_rows(Path("interrupted")))


@pytest.mark.parametrize("name", RL_SWEEPS)
def test_an_rl_sweep_killed_five_times_ends_like_an_uninterrupted_one(name: str) -> None:
    def start(out: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, EVERY_ROW, "sweep", *RL_SWEEPS[name], "--workers", "2", "--out", out]
        return running.enter_context(start_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    draw = random.Random(name)
    with ExitStack() as running:
        assert start("uninterrupted").wait(SECONDS) == 0
        whole = load("uninterrupted")
        runs = whole["identity"].n_unique()
        rows = whole.height // runs
        driver = start("interrupted")
        for what, moment in zip(KILLS, sorted(draw.sample(range(1, runs * rows // 2), len(KILLS)))):
            killer = Killer(what, draw)
            moment = max(moment, progress(rows) + 1)
            while progress(rows) < moment or not killer.kill(driver):
                assert driver.poll() is None, "the sweep ended before it was killed"
                time.sleep(0.01)
            if what == "driver":
                driver = start("interrupted")
        assert driver.wait(SECONDS) == 0
    found = load("interrupted")
    assert set(found["resumed"]) <= {"never", "exact"}
    assert "exact" in set(found["resumed"])
    for table in (None, "episodes") if name != "DQN" else (None,):
        ours, theirs = (load(out, table=table).drop(TIMED, strict=False) for out in ("interrupted", "uninterrupted"))
        assert_frame_equal(ours.sort(pl.all()), theirs.sort(pl.all()), check_exact=True)
