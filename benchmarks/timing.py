"""The time limit of `--quick`: rounds until a deadline, and a timer that cuts what still runs then.

All times are seconds since the process started, imports included: these are a large part of them on a slow core.
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
"""With `--quick`, measuring is cut at this time. What follows has some seconds, as `--quick` ends within 45."""

SECOND_CUT = 2.0
"""Seconds after which cleaning up is cut as well."""


class OutOfTime(BaseException):
    """Raised by `time_limit`; no Exception, so that libraries do not catch it."""


def _age() -> float:
    """How long the process has been running; 0 if the system does not report it."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (AttributeError, IndexError, OSError, ValueError):
        return 0.0


_STARTED = time.perf_counter() - _age()


def elapsed() -> float:
    """Seconds since the process started."""
    return time.perf_counter() - _STARTED


def deadline(quick: bool) -> float:
    """The time for `rounds`: `LAST_ROUND`, or infinity without `--quick`."""
    return LAST_ROUND if quick else math.inf


def rounds(most: int, until: float) -> Iterator[int]:
    """Yield 0, 1, ...: at most so many, at least one, and no other that would end after `until`.

    A round is expected to take as long as the one before it.
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
    """With `--quick`, leave the block at the time `CUT`, wherever it is; results collected so far remain."""
    if not quick or not hasattr(signal, "setitimer"):  # Windows has no such timer
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
    """All rounds except the first one, or that one if there is no other."""
    return times[1:] or times


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float | None:
    """The median over the rounds of time / other; None if there was no round.

    Examples:
        >>> median_ratio([2.0, 6.0, 5.0], [1.0, 2.0])  # the third round was cut
        2.5
    """
    ratios = [time / other for time, other in zip(times, others, strict=False)]
    return median(ratios) if ratios else None


def leave(quick: bool) -> None:
    """With `--quick`, end the process at once: on a slow core, Python takes seconds to take its modules apart."""
    if quick:
        sys.stdout.flush()
        os._exit(0)


def print_claim(name: str, ratio: float | None, digits: int = 2) -> None:
    """Print `name: ratio`, or that the time was up before it could be measured."""
    print(f"{name}: {'not measured in time' if ratio is None else f'{ratio:.{digits}f}'}")
