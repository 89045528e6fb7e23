"""What runs will take: what those that are done took, or short measurements, which are made once on a machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median

from weightclip import __version__
from weightclip.lab.data.places import cache_directory
from weightclip.lab.experiment import Cost, Event, ignore
from weightclip.lab.files import write_whole
from weightclip.lab.sweep.plan import Plan, batches
from weightclip.lab.sweep.sweep import Inventory

UNKNOWN = Cost(0.0, 0)
SHORTEST = 0.1
"""Seconds for which the share of a core can be told: the time of processes that have ended comes in hundredths."""


def calibrate(plan: Plan, inventory: Inventory, event: Event = ignore) -> dict[str, Cost]:
    """Identity -> the cost of its run, 0 where that is not known.

    Runs that cost the same have the median of those of them that are done; where none is, and some are to be run, one
    is measured, and remembered in the cache.
    """
    together = {run.identity: len(batch) for batch in batches(inventory.missing) for run in batch}
    keys = {
        run.identity: _key(run.experiment, plan.experiment.alike(run.config), together.get(run.identity, 1))
        for run in plan.runs
    }
    took: dict[str, list[Cost]] = {}
    for identity, cost in inventory.costs.items():
        took.setdefault(keys[identity], []).append(cost)
    found = {key: _median(costs) for key, costs in took.items()}
    path = cache_directory("calibration") / f"{platform.node() or 'machine'}.json"
    known = _read(path)
    for run in inventory.missing:
        key = keys[run.identity]
        if key not in found and key not in known:
            number = together[run.identity]
            what = f"{run.place.rpartition('/')[0]}{f', {number} seeds together' if number > 1 else ''}"
            event(f"measuring {what}")
            try:
                known[key] = alone(partial(plan.experiment.estimate, run.config, plan.data[run.data], number))
            except Exception as error:  # its runs will fail, each with a note; the others should not
                event(f"{what} cannot be measured: {error}")
                found[key] = UNKNOWN
                continue
            with suppress(OSError):  # a cache that cannot be written costs a measurement, no more
                write_whole(path, json.dumps({name: asdict(cost) for name, cost in known.items()}).encode())
    return {identity: found.get(key, known.get(key, UNKNOWN)) for identity, key in keys.items()}


def alone(measure: Callable[[], Cost]) -> Cost:
    """What is measured, as it would be with a core of its own: less the share of the time that other processes had."""
    began, busy = time.perf_counter(), _busy()
    cost = measure()
    took = time.perf_counter() - began
    if took < SHORTEST:
        return cost
    return replace(cost, seconds=cost.seconds * min(1.0, (_busy() - busy) / took))


def _busy() -> float:
    """Seconds of cores that this process has had, and those that it started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(median(cost.seconds for cost in costs), round(median(cost.bytes for cost in costs)))


def _key(experiment: str, alike: object, together: int) -> str:
    return hashlib.sha256(repr((__version__, experiment, alike, together)).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Cost]:
    try:
        content: Mapping[str, Mapping[str, float]] = json.loads(path.read_text(encoding="utf-8"))
        return {name: Cost(float(cost["seconds"]), int(cost["bytes"])) for name, cost in content.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
