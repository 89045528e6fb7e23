"""Subprocesses of tests: bounded waits, and no process that outlives its test."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

SECONDS = 600.0
"""Timeout of all waits."""

EVERY_ROW = str(Path(__file__).with_name("checkpoint_every_row.py"))
"""A script that runs the command with a checkpoint after every row."""


def wait_for(happened: Callable[[], bool], what: str, interval: float = 0.05) -> None:
    """Poll until a condition holds. The AssertionError of a timeout contains the description."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(interval)


@contextmanager
def start_process(words: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a command in a new process group. At the end of the block, the whole group is killed and reaped."""
    with subprocess.Popen(words, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def is_running(group: int) -> bool:
    """Return whether a process group has a process, including the leader until it is reaped."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def saved_rows(out: Path) -> list[int]:
    """Return the number of rows in each checkpoint below a directory."""
    found = []
    for file in out.rglob("*.checkpoint.npz"):
        # The run may have just finished, or a test may have damaged the file.
        with suppress(OSError, ValueError, EOFError, KeyError, BadZipFile), file.open("rb") as opened:
            found.append(len(np.load(opened)["rows"]))
    return found
