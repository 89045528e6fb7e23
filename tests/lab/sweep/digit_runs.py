"""Small runs on the bundled digits and their records."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal

from weightclip.lab.callbacks import NO_CALLBACKS
from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.records.record import read_record
from weightclip.lab.sweep.executor import Ended, Report
from weightclip.lab.sweep.plan import Plan, make_plan
from weightclip.lab.sweep.worker import Outcome, Shared

PROBLEM = "input-permuted-mnist"
SMALL = {"hidden": (20,), "steps": 4000, "period": 500}


def digit_plan(seeds: int, *choices: dict[str, Any]) -> Plan:
    configs = [EXPERIMENT.configure(PROBLEM, {**SMALL, **choice}) for choice in choices]
    return make_plan(EXPERIMENT, configs, range(seeds))


def compile_kernels(*methods: str) -> None:
    """Compile all kernels of the methods into the cache, for writable data and for Ray's read-only data.

    Run this in a separate process, because code loaded from the cache rounds sums differently than in the process
    that compiled it.
    """
    plan = digit_plan(1, *({"method": method, "steps": 20, "period": 10} for method in methods))
    (data,) = plan.data.values()
    for writeable in (True, False):
        data.inputs.flags.writeable = data.labels.flags.writeable = writeable
        EXPERIMENT.run([run.config for run in plan.runs], data, None, False, NO_CALLBACKS)


def shared_by(plan: Plan, store: Path) -> Shared:
    return Shared(plan.experiment, store, data=plan.data)


def outcomes_of(reports: Iterable[Report]) -> list[Outcome]:
    return [one for report in reports if isinstance(report, Ended) for one in report.outcomes]


def tables(store: Path) -> dict[str, pl.DataFrame]:
    """Return the table of each record by the run's identity; each run has one record."""
    found = [read_record(path) for path in store.rglob("*.parquet")]
    assert len({record.identity for record in found}) == len(found)
    return {record.identity: record.table for record in found}


def assert_same_records(store: Path, uninterrupted: Path) -> None:
    """Both stores have the same runs with exactly equal numbers."""
    ours, theirs = tables(store), tables(uninterrupted)
    assert ours.keys() == theirs.keys()
    for identity, table in ours.items():
        assert_frame_equal(table, theirs[identity], check_exact=True)
