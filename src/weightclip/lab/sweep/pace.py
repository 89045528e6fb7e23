"""The time left of a sweep: what its runs were thought to take, corrected by what has been done of them so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SECONDS_TO_KNOW = 60.0
SHARE_TO_KNOW = 0.05


def slowness(done: Iterable[tuple[float, float]], total: float) -> float:
    """How many times as long as was thought the work takes.

    As long as little was done, the measurement beforehand makes up for it: the first seconds of runs, on cores that
    others use too, say little of hours.

    Args:
        done: for each piece of work, the seconds that it was thought to take and those that it took.
        total: the seconds that all work was thought to take.
    """
    pieces = list(done)
    thought, took = sum(one for one, _ in pieces), sum(one for _, one in pieces)
    unknown = max(min(SECONDS_TO_KNOW, SHARE_TO_KNOW * total) - thought, 0.0)
    return (took + unknown) / (thought + unknown) if thought + unknown > 0 else 1.0


def seconds_left(runs: Sequence[float], workers: int) -> float:
    """What runs that take so long each take on several workers: no run is on two of them.

    Examples:
        >>> seconds_left([10.0, 10.0, 10.0, 10.0], 2), seconds_left([10.0], 2)
        (20.0, 10.0)
    """
    return max(sum(runs) / max(workers, 1), max(runs, default=0.0))
