"""Waiting for other processes, never for ever."""

import time
from collections.abc import Callable

SECONDS = 240.0
"""What no wait exceeds."""


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
