"""What runs will take on this machine, from short measurements that are made once."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from weightclip import __version__
from weightclip.lab.data.places import cache_directory
from weightclip.lab.experiment import Cost, Event, ignore
from weightclip.lab.files import write_whole
from weightclip.lab.sweep.plan import Plan


def calibrate(plan: Plan, event: Event = ignore) -> dict[str, Cost]:
    """Identity -> the cost of its run, 0 where that is not known.

    Runs that cost the same are measured once, and remembered in the cache.
    """
    path = cache_directory("calibration") / f"{platform.node() or 'machine'}.json"
    known = _read(path)
    unknown: set[str] = set()
    found: dict[str, Cost] = {}
    for run in plan.runs:
        key = _key(run.experiment, plan.experiment.alike(run.config))
        if key not in known and key not in unknown:
            event(f"measuring {run.method}")
            try:
                known[key] = plan.experiment.estimate(run.config, plan.data[run.data])
            except Exception as error:  # its runs will fail, each with a note; the others should not
                event(f"{run.method} cannot be measured: {error}")
                unknown.add(key)
            with suppress(OSError):  # a cache that cannot be written costs a measurement, no more
                write_whole(path, json.dumps({name: asdict(cost) for name, cost in known.items()}).encode())
        found[run.identity] = known.get(key, Cost(0.0, 0))
    return found


def _key(experiment: str, alike: object) -> str:
    return hashlib.sha256(repr((__version__, experiment, alike)).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Cost]:
    try:
        content: Mapping[str, Mapping[str, float]] = json.loads(path.read_text(encoding="utf-8"))
        return {name: Cost(float(cost["seconds"]), int(cost["bytes"])) for name, cost in content.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
