"""The time left of a sweep, from what finished and running runs of the same kind took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PRIOR_WEIGHT = 0.1
"""What a run took before counts as much as this fraction of a run now: other runs may share the cores now."""


def kind_of(relative_path: str) -> str:
    """Runs with equal kinds are expected to take equally long: those that differ in settings and seed alone.

    Examples:
        >>> kind_of("input-permuted-mnist/adam+wc/lr0.001_kappa1_seed0")
        'input-permuted-mnist/adam+wc'
    """
    return relative_path.rpartition("/")[0]


def seconds_each(pieces: Iterable[tuple[str, float, float]], before: Mapping[str, float]) -> dict[str, float]:
    """Kind -> seconds of a run on one worker.

    Args:
        pieces: of finished and running runs: their kind, the number of runs (or the fraction of one) done here, and the
            seconds that took.
        before: kind -> seconds of a run that was finished earlier.
    """
    done = dict.fromkeys(before, PRIOR_WEIGHT)
    took = {kind: PRIOR_WEIGHT * seconds for kind, seconds in before.items()}
    for kind, runs, seconds in pieces:
        done[kind] = done.get(kind, 0.0) + runs
        took[kind] = took.get(kind, 0.0) + seconds
    return {kind: took[kind] / runs for kind, runs in done.items() if runs > 0}


def seconds_left(left: Sequence[tuple[str, float]], each: Mapping[str, float], workers: int) -> float | None:
    """The time that is left; None where nothing is known yet. A kind without a time takes the mean of the others.

    Args:
        left: of each job, its kind and the runs (or the fraction of one) left of it; a job is on one worker.
        each: kind -> seconds of a run.
        workers: that run jobs at the same time.

    Examples:
        >>> seconds_left([("a", 1.0), ("a", 1.0), ("b", 0.5)], {"a": 10.0}, workers=1)
        25.0
    """
    if not each:
        return None if left else 0.0
    usual = sum(each.values()) / len(each)
    times = [runs * each.get(kind, usual) for kind, runs in left]
    return max(sum(times) / max(workers, 1), max(times, default=0.0))
