"""The time limit of `--quick`: rounds until a deadline, and a timer that interrupts the benchmark.

All times are seconds since the start of the process. They include imports, which take long on a slow core.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

LAST_ROUND = 33.0
"""With `--quick`, a round starts only if it is expected to end before this time."""

CUT = 38.0
"""With `--quick`, measurements are interrupted at this time, to leave some seconds for the rest of the 45."""

SECOND_CUT = 2.0
"""Seconds after which cleanup is interrupted as well."""


class OutOfTime(BaseException):
    """Raised by `time_limit`; not an Exception, so that libraries do not catch it."""


def _age() -> float:
    """Return the age of the process in seconds; 0 if the system does not report it."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (AttributeError, IndexError, OSError, ValueError):
        return 0.0


_STARTED = time.perf_counter() - _age()


def elapsed() -> float:
    """Return the seconds since the start of the process."""
    return time.perf_counter() - _STARTED


def deadline(quick: bool) -> float:
    """Return the deadline for `rounds`: `LAST_ROUND`, or infinity without `--quick`."""
    return LAST_ROUND if quick else math.inf


def rounds(most: int, until: float) -> Iterator[int]:
    """Yield up to `most` round numbers, at least one, and no later one that would end after `until`.

    A round is expected to take as long as the previous one.
    """
    took = 0.0
    for number in range(most):
        began = elapsed()
        if number and began + took > until:
            return
        yield number
        took = elapsed() - began


@contextmanager
def time_limit(quick: bool) -> Iterator[None]:
    """With `--quick`, interrupt the block at the time `CUT`; results collected so far are kept."""
    if not quick or not hasattr(signal, "setitimer"):  # not available on Windows
        yield
        return

    def cut(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, CUT - elapsed()), SECOND_CUT)
    try:
        yield
    except OutOfTime:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(f"cut after {elapsed():.0f} s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def without_warm_up(times: Sequence[float]) -> Sequence[float]:
    """Return all rounds except the first, or the first if there is no other."""
    return times[1:] or times


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the median over the rounds of time / other; None if there was no round.

    Examples:
        >>> median_ratio([2.0, 6.0, 5.0], [1.0, 2.0])  # the third round was interrupted
        2.5
    """
    ratios = [time / other for time, other in zip(times, others, strict=False)]
    return median(ratios) if ratios else None


def leave(quick: bool) -> None:
    """With `--quick`, end the process immediately, because Python's shutdown takes seconds on a slow core."""
    if quick:
        sys.stdout.flush()
        os._exit(0)


def print_claim(name: str, ratio: float | None, digits: int = 2) -> None:
    """Print `name: ratio`, or that the time limit was reached before it was measured."""
    print(f"{name}: {'not measured in time' if ratio is None else f'{ratio:.{digits}f}'}")
