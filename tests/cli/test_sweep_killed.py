"""A sweep survives `kill -9` of its driver and of its workers: the same command again ends with the same records."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from weightclip.lab.records.record import read_record
from weightclip.lab.sweep.locks import locked_runs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_directory")]

WORDS = [
    *("sweep", "input-permuted-mnist", "--methods", "sgd,sgd+wc,adam+sp", "--seeds", "20", "--workers", "2"),
    *("--hidden", "20", "--steps", "6000", "--period", "500"),
]
RUNS = 60
MOMENTS = 5


def start(out: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "weightclip", *WORDS, "--out", out]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tables(out: str) -> dict[str, pl.DataFrame]:
    """The table of each record in a store by the record's path."""
    return {str(path.relative_to(out)): read_record(path).table for path in sorted(Path(out).rglob("*.parquet"))}


def workers(driver: subprocess.Popen[bytes]) -> dict[str, int]:
    """Run -> its process, of what this driver's workers have begun; not of one that imports, nor of a driver before."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    notes = [note for note in locked_runs(Path("disturbed")).values() if note is not None]
    return {note.relative_path: note.process for note in notes if str(note.process) in children}


class Killer:
    """Kills drivers, or workers."""

    def __init__(self, what: str) -> None:
        self.moment = random.Random(what)
        self._driver = what == "driver"
        self._places: set[str] = set()

    def kill(self, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was something to kill. No run twice: one that dies three times is a failure."""
        if self._driver:
            driver.kill()
            driver.wait()
            return True
        found = {place: process for place, process in workers(driver).items() if place not in self._places}
        if found:
            place = self.moment.choice(sorted(found))
            self._places.add(place)
            os.kill(found[place], signal.SIGKILL)
        return bool(found)


def wait_for_work(driver: subprocess.Popen[bytes]) -> None:
    """Until it runs something, or has nothing to run."""
    deadline = time.monotonic() + 600
    while driver.poll() is None and not workers(driver):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["driver", "worker"])
def test_kill_9_at_five_random_moments_loses_and_doubles_nothing(what: str) -> None:
    began = time.monotonic()
    assert start("undisturbed").wait(timeout=600) == 0
    took = time.monotonic() - began
    expected = tables("undisturbed")
    assert len(expected) == RUNS

    killer = Killer(what)
    driver = start("disturbed")
    there: list[int] = []
    while len(there) < MOMENTS:
        wait_for_work(driver)
        wait = killer.moment.uniform(0.0, 0.2) * took
        try:
            assert driver.wait(timeout=wait) == 0  # it was faster than we are: begin anew
            for path in Path("disturbed").rglob("*.parquet"):
                if killer.moment.random() < 0.7:
                    path.unlink()
            driver = start("disturbed")
        except subprocess.TimeoutExpired:
            records = len(tables("disturbed"))
            if killer.kill(driver):
                there.append(records)
                print(f"a {what} was killed {wait:.2f} s after it had begun to work, {records} records there")
            if driver.poll() is not None:
                driver = start("disturbed")
    assert any(0 < records < RUNS for records in there)
    assert driver.wait(timeout=600) == 0
    again = start("disturbed")
    assert again.wait(timeout=600) == 0

    found = tables("disturbed")
    assert found.keys() == expected.keys()
    assert all(found[name].equals(expected[name]) for name in expected)
    leftovers = [path for path in Path("disturbed").rglob("*") if path.suffix in (".tmp", ".npz", ".json")]
    assert [path for path in leftovers if ".sweeps" not in path.parts] == []
