"""A sweep of small runs with a checkpoint after every row, also as a command: python descent_sweep.py STORE."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

from descent_experiment import descent_plan

from weightclip.lab import checkpoint
from weightclip.lab.files import make_directory
from weightclip.lab.records.store import remove_remains
from weightclip.lab.sweep.executor import Report, sweep
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.locks import locked_runs
from weightclip.lab.sweep.manifest import write_manifest
from weightclip.lab.sweep.plan import Plan, take_inventory
from weightclip.lab.sweep.worker import Outcome

PLAN = descent_plan(rows=4)
LONGER_PLAN = descent_plan(rows=30, pause=0.03)

checkpoint.MAX_FRACTION = math.inf


def drive(
    plan: Plan, store: Path, workers: int, retry_failed: bool, on_report: Callable[[Report], None] = lambda report: None
) -> list[Outcome]:
    """Run the steps of `weightclip sweep`."""
    inventory = take_inventory(plan, store, retry_failed)
    remove_remains(store, inventory.done)
    locked_runs(store)
    if not inventory.missing:
        return []
    make_directory(store)
    write_manifest(store, "sweep", "descent", plan.runs)
    return sweep(plan, inventory.missing, store, Local(workers), on_report=on_report)


if __name__ == "__main__":
    print(drive(LONGER_PLAN, Path(sys.argv[1]), workers=2, retry_failed=True))
