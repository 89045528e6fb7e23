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


def kill_driver(driver: subprocess.Popen[bytes], moment: random.Random) -> None:
    driver.kill()


def kill_worker(driver: subprocess.Popen[bytes], moment: random.Random) -> None:
    found = workers(driver)
    if found:
        os.kill(moment.choice(found), signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_driver, kill_worker])
def test_kill_9_at_five_random_moments_loses_and_doubles_nothing(
    kill: Callable[[subprocess.Popen[bytes], random.Random], None],
) -> None:
    began = time.monotonic()
    assert start("undisturbed").wait(timeout=600) == 0
    took = time.monotonic() - began
    expected = tables("undisturbed")
    assert len(expected) == RUNS

    moment = random.Random(kill.__name__)
    driver = start("disturbed")
    killed = 0
    while killed < MOMENTS:
        wait = moment.uniform(0.05, 0.3) * took
        try:
            assert driver.wait(timeout=wait) == 0  # it was faster than we are: begin anew
            for path in Path("disturbed").rglob("*.parquet"):
                if moment.random() < 0.7:
                    path.unlink()
            driver = start("disturbed")
        except subprocess.TimeoutExpired:
            print(f"{kill.__name__} after {wait:.2f} s, {len(tables('disturbed'))} records there")
            kill(driver, moment)
            killed += 1
            if kill is kill_driver:
                driver.wait()
                driver = start("disturbed")
    assert driver.wait(timeout=600) == 0
    again = start("disturbed")
    assert again.wait(timeout=600) == 0

    found = tables("disturbed")
    assert found.keys() == expected.keys()
    assert all(found[name].equals(expected[name]) for name in expected)
    leftovers = [path for path in Path("disturbed").rglob("*") if path.suffix in (".tmp", ".npz", ".json")]
    assert [path for path in leftovers if ".sweeps" not in path.parts] == []
