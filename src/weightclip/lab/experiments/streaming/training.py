"""Run a configuration: train a learner on a stream of tasks; each task gives a row of the record's table."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import torch
from numpy.typing import NDArray

from weightclip.diagnostics import rank, singular_values
from weightclip.lab._run import run as run
from weightclip.lab.callbacks import Callbacks, Event, Progress, ignore
from weightclip.lab.checkpoint import Arrays, Row
from weightclip.lab.data import Dataset
from weightclip.lab.device import threads
from weightclip.lab.experiments.streaming.config import NAME, Config, check_outputs, resolve
from weightclip.lab.experiments.streaming.kernel import rules_text
from weightclip.lab.experiments.streaming.metrics import (
    BASIC_METRICS,
    METRICS,
    compare_with_paper,
    make_schema,
    rank_name,
    with_ranks,
)
from weightclip.lab.experiments.streaming.problem import Task, find_problem, make_task
from weightclip.lab.experiments.streaming.rules import external_rules
from weightclip.lab.records.columns import CUT_SHORT
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial


class Learner(Protocol):
    """A backend: trains a network one sample at a time.

    `learn` trains on one task and returns the mean of each metric over its steps, by the names in `METRICS`; `progress`
    is called periodically with the number of steps done in the task and the accuracy so far. `state` is everything that
    `load_state` needs to resume bit for bit. `weights` are the current parameters, in the order of
    `model.parameters()`.
    """

    def learn(self, task: Task, progress: Progress = ignore) -> dict[str, float]: ...

    def weights(self) -> list[NDArray[Any]]: ...

    def state(self) -> Arrays: ...

    def load_state(self, state: Arrays) -> None: ...


LOGGED = Callbacks(on_event=logging.getLogger(__name__).warning)


def run_config(
    config: Config,
    dataset: Dataset,
    out: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Callbacks = LOGGED,
) -> Record:
    """Run one configuration, resume it, or read its record if it is finished.

    Args:
        config: configuration of the run.
        dataset: data that the tasks are drawn from.
        out: directory for the record and, until it is complete, the checkpoint; None keeps everything in memory.
        overwrite: whether to restart, regardless of the files in `out`.
        callbacks: called with messages for the user (default: they are logged), with the number of samples and the
            average online accuracy, and with the row of each finished task.
    """
    requested, config = config, complete(config, dataset)

    def make() -> Learner:
        learner = _make_learner(config, dataset)
        _report_compilation(learner, callbacks.on_event)
        return learner

    def learn(learner: Learner, index: int, rows: Sequence[Row]) -> Row:
        return _run_task(config, dataset, learner, index, rows[-1] if rows else None, callbacks.on_progress)

    schema = make_schema() if not config.diagnostics else with_ranks(make_schema(), len(config.hidden) + 1)
    trial = Trial(
        schema=schema,
        identity=identify(config, dataset),
        relative_path=relative_path(make_schema(), config),
        label=f"{config.problem} {config.method} seed {config.seed}",
        config=config.facts(),
        data=dataset.facts(),
        comparison=compare_with_paper(config, make_schema()),
        rules=_rules_source(config),
        rows=-(-config.steps // _period(config)),
        make=make,
        learn=learn,
        table=lambda rows: _table(config, rows),
        columns=("task", "samples", *(schema.metrics if config.diagnostics else BASIC_METRICS)),
        kernel=lambda learner: getattr(learner, "kernel", None),
    )
    with threads(1):  # more threads are slower on networks of this size
        store = None if out is None else Path(out)
        return run_trial(trial, store, overwrite, callbacks.on_event, partial(callbacks.on_row, requested))


def complete(config: Config, dataset: Dataset) -> Config:
    """The configuration, checked and with every field filled in."""
    config = resolve(config)
    return replace(config, outputs=check_outputs(config, dataset.classes, dataset.name))


def identify(config: Config, dataset: Dataset) -> str:
    """The identity of the run of a complete configuration: a hash of everything that determines its numbers."""
    method = config.parsed_method()
    rules = rules_text(method) if external_rules(method) else None
    return identity(NAME, config.facts(), dataset.checksum, rules)


def _rules_source(config: Config) -> str | None:
    """The source of rules outside this package: the user's file, or the rules of another package."""
    if config.rules is not None:
        return Path(config.rules).read_text(encoding="utf-8")
    method = config.parsed_method()
    return rules_text(method) if external_rules(method) else None


def _make_learner(config: Config, dataset: Dataset) -> Learner:
    try:
        return _engine(config, dataset)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):  # PyTorch raises a RuntimeError
            raise ValueError(f"hidden: got {config.hidden}, expected a network that fits in memory") from error
        raise


def _report_compilation(learner: Learner, on_event: Event) -> None:
    if not getattr(learner, "compiled", True):
        on_event("compiling the learner, once for each method and network type")


def _engine(config: Config, dataset: Dataset) -> Learner:
    if config.backend == "reference":
        from weightclip.lab.experiments.streaming.reference import make_reference

        return make_reference(config, dataset)
    from weightclip.lab.experiments.streaming.fused import Fused

    return Fused(config, dataset)


def _run_task(
    config: Config, dataset: Dataset, learner: Learner, index: int, last: Row | None, on_progress: Progress
) -> Row:
    """Train on one task and return its row of the table."""
    seen = index * _period(config)
    task = _task(config, dataset, index)
    correct = round(last["online_accuracy"] * seen) if last else 0

    def progress(steps: int, accuracy: float) -> None:
        if steps < len(task.rows):  # the end is reported below
            on_progress(seen + steps, (correct + accuracy * steps) / (seen + steps))

    means = learner.learn(task, progress)
    samples = seen + len(task.rows)
    online_accuracy = (correct + round(means["accuracy"] * len(task.rows))) / samples
    on_progress(samples, online_accuracy)
    measured = {**means, "online_accuracy": online_accuracy}
    if config.diagnostics:
        measured |= _weight_metrics(learner)
    known = {name: measured[name] for name in METRICS if name in measured}
    ranks = {name: value for name, value in measured.items() if name not in known}
    return {"task": index + 1, "samples": samples, **known, **ranks}


def _task(config: Config, dataset: Dataset, index: int) -> Task:
    period = _period(config)
    steps = min(period, config.steps - index * period)
    n, d = dataset.inputs.shape
    permute = find_problem(config.problem).permute
    return make_task(permute, index, steps, period, config.seed, n, d, dataset.classes)


def _weight_metrics(learner: Learner) -> Row:
    """The rank of each weight matrix, and the Lipschitz bound of the network, from the same singular values.

    All activations are 1-Lipschitz, so the bound for p = 2 is the product of the spectral norms. NaN if weights are not
    finite.
    """
    ranks: Row = {}
    bound = 1.0
    for layer, matrix in enumerate((torch.from_numpy(w) for w in learner.weights() if w.ndim >= 2), start=1):
        values = singular_values(matrix)
        bound *= float(values[0])
        ranks[rank_name(layer)] = math.nan if values.isnan().any() else float(rank(matrix, values))
    return {"lipschitz": bound, **ranks}


def _table(config: Config, rows: list[Row]) -> pl.DataFrame:
    """The table, with integer counts and ranks (null for NaN). `cut_short` marks a shorter last task."""
    whole = [name for name in rows[0] if name in ("task", "samples") or name not in METRICS]
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64))
    table = table.with_columns(pl.col(whole).fill_nan(None).cast(pl.Int64))
    table = table.insert_column(0, pl.Series("seed", [config.seed] * len(rows), dtype=pl.Int64))
    return table.insert_column(3, (table["samples"] < table["task"] * _period(config)).alias(CUT_SHORT))


def _period(config: Config) -> int:
    assert config.period is not None  # resolved
    return config.period
