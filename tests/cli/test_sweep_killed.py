"""A sweep survives `kill -9` of its driver and of its workers: the same command again ends with the same records."""

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

from processes import EVERY_ROW, SECONDS, saved_rows, started, wait_for
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
    """Starts the sweep with a store. Sweeps that still run at the end of the test are killed."""
    with ExitStack() as running:
        command = [sys.executable, "-m", "weightclip", *WORDS, "--out"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        yield lambda out: running.enter_context(started([*command, out], **quiet))


def records(out: str) -> list[Path]:
    return sorted(Path(out).rglob("*.parquet"))


def tables(out: str) -> dict[str, pl.DataFrame]:
    """The table of each record in a store by the record's path."""
    return {str(path.relative_to(out)): read_record(path).table for path in records(out)}


def workers(driver: subprocess.Popen[bytes]) -> dict[str, int]:
    """Run -> its process, of what this driver's workers have begun; not of one that imports, nor of a driver before."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    notes = [note for note in locked_runs(Path("disturbed")).values() if note is not None]
    return {note.relative_path: note.process for note in notes if str(note.process) in children}


class Killer:
    """Kills drivers, or workers, of the sweep in the store `disturbed`."""

    def __init__(self, what: str, draw: random.Random) -> None:
        self._draw = draw
        self._driver = what == "driver"
        self._killed: set[str] = set()

    def can_kill_or_has_ended(self, driver: subprocess.Popen[bytes], moment: int) -> bool:
        """Whether there are so many records and something to kill, or nothing runs."""
        return driver.poll() is not None or (len(records("disturbed")) >= moment and bool(self._victims(driver)))

    def kill(self, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was something to kill."""
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
        """The runs under way. No run is killed twice with its worker: one that dies three times is a failure."""
        return {run: process for run, process in workers(driver).items() if run not in self._killed}


@pytest.mark.parametrize("what", ["driver", "worker"])
def test_kill_9_at_five_random_moments_loses_and_duplicates_no_run(what: str, start: Start) -> None:
    """The moments are numbers of records in the store: elapsed time means little on a loaded machine."""
    assert start("undisturbed").wait(SECONDS) == 0
    expected = tables("undisturbed")
    assert len(expected) == RUNS

    draw = random.Random(what)
    killer = Killer(what, draw)
    driver = start("disturbed")
    moments = sorted(draw.sample(range(RUNS - 10), MOMENTS))
    there: list[int] = []
    while len(there) < MOMENTS:
        moment = moments[len(there)]
        wait_for(partial(killer.can_kill_or_has_ended, driver, moment), f"{moment} records", 0.01)
        number = len(tables("disturbed"))
        if driver.poll() is not None:  # it finished before the kill; restart it with fewer records
            assert driver.returncode == 0
            for path in records("disturbed"):
                if draw.random() < 0.7:
                    path.unlink()
            driver = start("disturbed")
        elif killer.kill(driver):
            there.append(number)
            print(f"a {what} was killed when there were {number} records")
            if driver.poll() is not None:
                driver = start("disturbed")
    assert any(0 < number < RUNS for number in there)
    assert driver.wait(SECONDS) == 0
    again = start("disturbed")
    assert again.wait(SECONDS) == 0

    found = tables("disturbed")
    assert found.keys() == expected.keys()
    assert all(found[name].equals(expected[name]) for name in expected)
    leftovers = [path for path in Path("disturbed").rglob("*") if path.suffix in (".tmp", ".npz", ".json")]
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
    """The number of rows in the store `disturbed`, whose finished runs have this many."""
    done = sum(re.search(r"_[0-9a-f]{12}$", path.stem) is not None for path in records("disturbed"))
    return rows * done + sum(saved_rows(Path("disturbed")))


@pytest.mark.parametrize("name", RL_SWEEPS)
def test_an_rl_sweep_killed_five_times_ends_like_an_uninterrupted_one(name: str) -> None:
    def start(out: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, EVERY_ROW, "sweep", *RL_SWEEPS[name], "--workers", "2", "--out", out]
        return running.enter_context(started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    draw = random.Random(name)
    with ExitStack() as running:
        assert start("undisturbed").wait(SECONDS) == 0
        whole = load("undisturbed")
        runs = whole["identity"].n_unique()
        rows = whole.height // runs
        driver = start("disturbed")
        for what, moment in zip(KILLS, sorted(draw.sample(range(1, runs * rows // 2), len(KILLS)))):
            killer = Killer(what, draw)
            moment = max(moment, progress(rows) + 1)
            while progress(rows) < moment or not killer.kill(driver):
                assert driver.poll() is None, "the sweep ended before it was killed"
                time.sleep(0.01)
            if what == "driver":
                driver = start("disturbed")
        assert driver.wait(SECONDS) == 0
    found = load("disturbed")
    assert set(found["resumed"]) <= {"never", "exact"}
    assert "exact" in set(found["resumed"])
    for table in (None, "episodes") if name != "DQN" else (None,):
        ours, theirs = (load(out, table=table).drop(TIMED, strict=False) for out in ("disturbed", "undisturbed"))
        assert_frame_equal(ours.sort(pl.all()), theirs.sort(pl.all()), check_exact=True)
