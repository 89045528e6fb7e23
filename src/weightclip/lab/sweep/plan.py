"""The plan of a sweep: its runs, their state in a store, and their estimated time."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from weightclip._validation import check_seed
from weightclip.lab.callbacks import Event, ignore
from weightclip.lab.config import MethodConfig, mark_resolved
from weightclip.lab.data import DataError
from weightclip.lab.data.download import no_downloads, offline
from weightclip.lab.experiment import Data, Experiment
from weightclip.lab.records.record import identity
from weightclip.lab.records.store import Cost, find_record, finished_runs, has_failed, relative_path


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        experiment: name of the experiment.
        config: resolved configuration.
        identity: hash of everything that determines the numbers of the run.
        relative_path: path of the record in a store, without identity and suffix.
        data: key of the data.
        batch: key of runs that are executed together.
    """

    experiment: str
    config: Any
    identity: str
    relative_path: str
    data: Hashable
    batch: Hashable | None = None

    @property
    def method(self) -> str:
        return str(self.config.method)


@dataclass(frozen=True)
class Plan:
    """Distinct runs, and the data that they need by its key: a result of `Experiment.load`, or `MISSING`."""

    experiment: Experiment[Any]
    runs: tuple[Run, ...]
    data: dict[Hashable, Data | str | None]


MISSING = "missing"
"""Placeholder for data that is not on this machine."""


def with_seeds(config: Any, seeds: Iterable[int]) -> list[Any]:
    """Copies of a resolved configuration, one per seed."""
    copies = [replace(config, seed=check_seed(seed)) for seed in seeds]
    return [mark_resolved(copy, config) for copy in copies] if getattr(config, "is_resolved", False) else copies


def make_plan(
    experiment: Experiment[Any],
    configs: Iterable[Any],
    seeds: Sequence[int],
    data_dir: Path | None = None,
    event: Event = ignore,
    fetch: bool = True,
) -> Plan:
    """One run for each configuration and seed, ordered by seed, so that an interrupted sweep has complete seeds.

    Without `fetch`, missing data is not downloaded. The runs that need it are identified by their configuration only.
    """
    by_config = [with_seeds(config, seeds) for config in configs]
    ordered = [config for same_seed in zip(*by_config, strict=True) for config in same_seed]
    data: dict[Hashable, Data | str | None] = {}
    runs: dict[str, Run] = {}
    for key, group in groupby(ordered, partial(data_key, experiment)):
        same_data = list(group)
        if key not in data:
            first = same_data[0]
            data[key] = experiment.load(first, data_dir, event) if fetch else _local(experiment, first, data_dir)
        runs |= {run.identity: run for run in make_runs(experiment, same_data, data[key])}
    return Plan(experiment, tuple(runs.values()), data)


def make_runs(experiment: Experiment[Any], configs: Iterable[Any], data: Data | str | None) -> list[Run]:
    """One run for each of the configurations, which all use this data."""
    return [
        Run(
            experiment=experiment.name,
            config=config,
            identity=identity(experiment.name, {"config": str(config)}, None)
            if data is MISSING
            else experiment.identify(config, data),
            relative_path=relative_path(experiment.schema, config),
            data=data_key(experiment, config),
            batch=_lockstep_key(experiment, config),
        )
        for config in configs
    ]


def data_key(experiment: Experiment[Any], config: Any) -> Hashable:
    """A key that is equal for configurations with the same data: the same problem and values of the axes."""
    return tuple(getattr(config, name) for name in ("problem", *experiment.schema.axes) if name != "method")


def _lockstep_key(experiment: Experiment[Any], config: Any) -> Hashable | None:
    """A key that is equal for configurations that train together; None if each trains separately."""
    if experiment.lockstep == 1:
        return None
    same = tuple((name, str(value)) for name, value in vars(config).items() if name != "seed")
    return same, config.seed // experiment.lockstep


def batches(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Group runs with equal batch keys; a run without a key forms its own group."""
    found: dict[Hashable, list[Run]] = {}
    for run in runs:
        found.setdefault(("alone", run.identity) if run.batch is None else ("batch", run.batch), []).append(run)
    return [tuple(group) for group in found.values()]


@dataclass(frozen=True)
class Inventory:
    """The runs of a plan by their state in a store.

    Args:
        done: runs with a record.
        failed: runs with a failure note, which are retried only on request.
        missing: runs to execute.
        costs: identity -> time and space of a finished run.
    """

    done: tuple[Run, ...]
    failed: tuple[Run, ...]
    missing: tuple[Run, ...]
    costs: Mapping[str, Cost] = field(default_factory=dict)


def take_inventory(plan: Plan, store: Path, retry_failed: bool = False) -> Inventory:
    """Look up the runs of a plan in a store; a damaged record counts as missing."""
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


LENGTHS = ("steps", "epochs", "frames")
"""Fields that give the length of a run. Its time is proportional to them."""


def known_costs(plan: Plan, store: Path) -> dict[str, Cost]:
    """Identity -> expected cost: the median of the finished runs that differ only in seed, settings and length.

    Of several lengths, the nearest one counts, and the cost is scaled to the length of the run.
    """
    folders = sorted({run.relative_path.partition("/")[0] for run in plan.runs})
    finished = finished_runs(store, plan.experiment.name, folders)
    excluded = {"seed", *plan.experiment.schema.settings, *getattr(plan.experiment.config, "execution_fields", ())}

    @cache
    def cost_of(key: str) -> Cost | None:
        # None in a configuration depends on the data; the record has the value.
        known = {name: value for name, value in json.loads(key).items() if value is not None}
        lengths = {name: known.pop(name) for name in LENGTHS if name in known}
        costs: dict[float, list[Cost]] = {}
        for config, cost in finished:
            if all(config.get(name) == value for name, value in known.items()):
                scale = math.prod(value / (config.get(name) or value) for name, value in lengths.items())
                costs.setdefault(scale, []).append(cost)
        if not costs:
            return None
        scale = min(costs, key=lambda one: abs(math.log(one)))
        nearest = costs[scale]
        return Cost(scale * median(one.seconds for one in nearest), round(scale * median(one.bytes for one in nearest)))

    found = {}
    for run in plan.runs:
        facts = run.config.facts() if isinstance(run.config, MethodConfig) else asdict(run.config)
        facts = {name: value for name, value in facts.items() if name not in excluded}
        if cost := cost_of(json.dumps(facts)):
            found[run.identity] = cost
    return found


PRIOR_WEIGHT = 0.1
"""Weight of the time of earlier runs, in runs of this sweep. The machine may have been less busy then."""


def kind_of(relative_path: str) -> str:
    """The kind of a run. Runs of a kind differ only in settings and seed and are expected to take the same time.

    Examples:
        >>> kind_of("input-permuted-mnist/adam+wc/lr0.001_kappa1_seed0")
        'input-permuted-mnist/adam+wc'
    """
    return relative_path.rpartition("/")[0]


def seconds_per_run(pieces: Iterable[tuple[str, float, float]], before: Mapping[str, float]) -> dict[str, float]:
    """Kind -> estimated seconds of a run on one worker.

    Args:
        pieces: kind, number of runs (or fraction of one) and seconds, for finished and running runs of this sweep.
        before: kind -> seconds of an earlier run.
    """
    done = dict.fromkeys(before, PRIOR_WEIGHT)
    total = {kind: PRIOR_WEIGHT * seconds for kind, seconds in before.items()}
    for kind, runs, seconds in pieces:
        done[kind] = done.get(kind, 0.0) + runs
        total[kind] = total.get(kind, 0.0) + seconds
    return {kind: total[kind] / runs for kind, runs in done.items() if runs > 0}


def seconds_left(left: Sequence[tuple[str, float]], per_run: Mapping[str, float], workers: int) -> float | None:
    """The remaining time in seconds; None if no time is known. Unknown kinds use the mean of the others.

    Args:
        left: kind and remaining runs (or fraction of one) of each job; a job runs on one worker.
        per_run: kind -> seconds of a run.
        workers: number of jobs that run at the same time.

    Examples:
        >>> seconds_left([("a", 1.0), ("a", 1.0), ("b", 0.5)], {"a": 10.0}, workers=1)
        25.0
    """
    if not per_run:
        return None if left else 0.0
    mean = sum(per_run.values()) / len(per_run)
    times = [runs * per_run.get(kind, mean) for kind, runs in left]
    return max(sum(times) / max(workers, 1), max(times, default=0.0))


def _local(experiment: Experiment[Any], config: Any, data_dir: Path | None) -> Data | str | None:
    """The data if it is on this machine, else `MISSING`."""
    if offline():
        return experiment.load(config, data_dir)
    try:
        with no_downloads():
            data = experiment.load(config, data_dir)  # may be the bundled digits instead of a download
    except DataError:
        return MISSING
    return MISSING if data is not None and data.source.kind == "bundled" else data
