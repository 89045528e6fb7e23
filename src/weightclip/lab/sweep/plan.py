"""The plan of a sweep: its runs, each identified by content."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from weightclip.lab.data import DataError
from weightclip.lab.data.download import OFFLINE_VARIABLE, offline
from weightclip.lab.experiment import Event, Experiment, ignore
from weightclip.lab.records.record import identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.sweep.grid import Settings

if TYPE_CHECKING:
    from weightclip.lab.records.store import Cost


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        experiment: its name.
        config: its configuration.
        identity, place: of its record in a store.
        data: the key of its data; `Experiment.data_key`.
        batch: runs with equal keys go together; `Experiment.batch`.
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
    """Runs, each once, and the data that they need by its key."""

    experiment: Experiment[Any]
    runs: tuple[Run, ...]
    data: dict[Hashable, Any]


def make_plan(
    experiment: Experiment[Any],
    problem: str,
    choices: Iterable[Settings],
    seeds: Sequence[int],
    data_dir: Path | None = None,
    event: Event = ignore,
    fetch: bool = True,
) -> Plan:
    """A run for each choice of settings and each seed, seed by seed, so that an interrupted sweep has whole seeds.

    Without `fetch`, data that is not on this machine is not fetched. No run that needs it can be finished then, and its
    runs are identified by their place alone.
    """
    choices = list(choices)
    configs = [experiment.configure(problem, {**choice, "seed": seed}) for seed in seeds for choice in choices]
    data: dict[Hashable, Any] = {}
    runs: dict[str, Run] = {}
    for key, same in groupby(configs, partial(data_key, experiment)):
        alike = list(same)
        if key not in data:
            data[key] = experiment.load(alike[0], data_dir, event) if fetch else _local(experiment, alike[0], data_dir)
        runs |= {run.identity: run for run in make_runs(experiment, alike, data[key])}
    return Plan(experiment, tuple(runs.values()), data)


MISSING = "missing"
"""In the place of data that is not on this machine."""


def _local(experiment: Experiment[Any], config: Any, data_dir: Path | None) -> Any:
    if offline():
        return experiment.load(config, data_dir)
    before = os.environ.get(OFFLINE_VARIABLE)
    os.environ[OFFLINE_VARIABLE] = "1"
    try:
        data = experiment.load(config, data_dir)  # the bundled digits stand in for data that a sweep would fetch
        return MISSING if data is not None and data.source.kind == "bundled" else data
    except DataError:
        return MISSING
    finally:
        if before is None:
            del os.environ[OFFLINE_VARIABLE]
        else:
            os.environ[OFFLINE_VARIABLE] = before


def make_runs(experiment: Experiment[Any], configs: Iterable[Any], data: Any) -> list[Run]:
    """A run for each of the configurations, which all need that data."""
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
    """Equal for configurations with the same data: those with the same problem and values of the axes."""
    return tuple(getattr(config, name) for name in ("problem", *experiment.schema.axes) if name != "method")


def _lockstep_key(experiment: Experiment[Any], config: Any) -> Hashable | None:
    """Equal for configurations that are trained together; None if each is trained by itself."""
    if experiment.lockstep == 1:
        return None
    same = tuple((name, str(value)) for name, value in vars(config).items() if name != "seed")
    return same, config.seed // experiment.lockstep


def batches(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """The runs, those with equal batch keys together."""
    found: dict[Hashable, list[Run]] = {}
    for run in runs:
        found.setdefault(("alone", run.identity) if run.batch is None else ("batch", run.batch), []).append(run)
    return [tuple(together) for together in found.values()]


def known_costs(plan: Plan, store: Path) -> dict[str, Cost]:
    """Identity -> the median cost of finished runs in the store that differ in seed and settings alone."""
    from weightclip.lab.records.store import Cost, finished_runs

    folders = sorted({run.relative_path.partition("/")[0] for run in plan.runs})
    finished = finished_runs(store, plan.experiment.name, folders)
    left_out = {"seed", *plan.experiment.schema.settings, *getattr(plan.experiment.config, "how", ())}

    @cache
    def cost_of(key: str) -> Cost | None:
        # None is what the data decides; a record has the value.
        known = {name: value for name, value in json.loads(key).items() if value is not None}
        costs = [cost for config, cost in finished if all(config.get(name) == known[name] for name in known)]
        if not costs:
            return None
        return Cost(median(one.seconds for one in costs), round(median(one.bytes for one in costs)))

    found = {}
    for run in plan.runs:
        facts = {name: value for name, value in asdict(run.config).items() if name not in left_out}
        if cost := cost_of(json.dumps(facts)):
            found[run.identity] = cost
    return found
