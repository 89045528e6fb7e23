"""A sweep survives `kill -9` of its driver and of its workers: the same command again ends with the same records."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from weightclip.lab.results.record import read_record
from weightclip.lab.sweep.claims import running

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


def workers(driver: subprocess.Popen[bytes]) -> list[int]:
    """The processes that run something; not the one that multiprocessing keeps for itself."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def kill_driver(driver: subprocess.Popen[bytes], moment: random.Random) -> bool:
    driver.kill()
    driver.wait()
    return True


def kill_worker(driver: subprocess.Popen[bytes], moment: random.Random) -> bool:
    """Whether there was one."""
    found = workers(driver)
    if found:
        os.kill(moment.choice(found), signal.SIGKILL)
    return bool(found)


def wait_for_work(driver: subprocess.Popen[bytes]) -> None:
    """Until it runs something: a claim is held, with a note that a worker has begun."""
    deadline = time.monotonic() + 600
    while not any(running(Path("disturbed")).values()) and driver.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kill", [kill_driver, kill_worker])
def test_kill_9_at_five_random_moments_loses_and_doubles_nothing(
    kill: Callable[[subprocess.Popen[bytes], random.Random], bool],
) -> None:
    began = time.monotonic()
    assert start("undisturbed").wait(timeout=600) == 0
    took = time.monotonic() - began
    expected = tables("undisturbed")
    assert len(expected) == RUNS

    moment = random.Random(kill.__name__)
    driver = start("disturbed")
    there: list[int] = []
    while len(there) < MOMENTS:
        wait_for_work(driver)
        wait = moment.uniform(0.0, 0.2) * took
        try:
            assert driver.wait(timeout=wait) == 0  # it was faster than we are: begin anew
            for path in Path("disturbed").rglob("*.parquet"):
                if moment.random() < 0.7:
                    path.unlink()
            driver = start("disturbed")
        except subprocess.TimeoutExpired:
            records = len(tables("disturbed"))
            if kill(driver, moment):
                there.append(records)
                print(f"{kill.__name__} {wait:.2f} s after the first claim, {records} records there")
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
