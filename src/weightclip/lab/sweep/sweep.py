"""A sweep: run what is missing of a plan, and only that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from weightclip.lab.records.store import Cost, find_record, has_failed, is_done
from weightclip.lab.sweep.claims import running
from weightclip.lab.sweep.executor import Ended, Executor, Report, Shared
from weightclip.lab.sweep.live import NOWHERE, Live
from weightclip.lab.sweep.plan import Plan, Run, batches
from weightclip.lab.sweep.work import Outcome

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Inventory:
    """What a store has of a plan.

    Args:
        done: the record is there.
        failed: a note says how it failed; not run again unless asked for.
        missing: to be run.
        costs: identity -> what a run that is done took.
    """

    done: tuple[Run, ...]
    failed: tuple[Run, ...]
    missing: tuple[Run, ...]
    costs: Mapping[str, Cost] = field(default_factory=dict)


def look(plan: Plan, store: Path, retry_failed: bool = False) -> Inventory:
    """What of the plan is in the store; a damaged record counts as none."""
    done, failed, missing = [], [], []
    costs = {}
    for run in plan.runs:
        cost = None
        with suppress(ValueError):
            cost = find_record(store, run)
        if cost is not None:
            done.append(run)
            costs[run.identity] = cost
        elif has_failed(store, run) and not retry_failed:
            failed.append(run)
        else:
            missing.append(run)
    return Inventory(tuple(done), tuple(failed), tuple(missing), costs)


def sweep(
    plan: Plan,
    missing: tuple[Run, ...],
    store: Path,
    executor: Executor,
    data_dir: Path | None = None,
    live: Live = NOWHERE,
    on_report: Callable[[Report], None] = lambda report: None,
) -> list[Outcome]:
    """Run what is missing. What somebody else runs is left to them, and looked for until it is there or free again."""
    shared = Shared(plan.experiment, store, data_dir, plan.data, live)
    waiting = {run.identity: run for run in missing}
    ready = list(missing)
    outcomes: list[Outcome] = []

    def end(ended: Iterable[Outcome]) -> None:
        for one in ended:
            if one.status != "claimed" and one.identity in waiting:
                del waiting[one.identity]
                outcomes.append(one)

    while waiting:
        with closing(executor.run(shared, batches(ready))) as reports:
            for report in reports:
                if isinstance(report, Ended):
                    end(report.outcomes)
                on_report(report)
        ready = []
        while waiting and not ready:
            held = running(store)
            for run in [run for run in waiting.values() if is_done(store, run)]:
                outcome = Outcome(run.identity, "done")
                end([outcome])
                on_report(Ended("", (run,), (outcome,)))
            ready = [run for run in waiting.values() if run.identity not in held]
            if waiting and not ready:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    return outcomes
