"""Run a problem for one or more seeds: `weightclip run` and `weightclip.lab.run`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from weightclip._validation import check_count
from weightclip.lab.callbacks import Callbacks, Event
from weightclip.lab.config import expected_names, rename_settings
from weightclip.lab.experiment import Experiment, describe, score_text
from weightclip.lab.files import make_directory
from weightclip.lab.progress import show_progress
from weightclip.lab.records.record import Record
from weightclip.lab.registry import experiment_of
from weightclip.lab.sweep.locks import locked_runs
from weightclip.lab.sweep.loggers import NO_LOGGERS, Loggers
from weightclip.lab.sweep.plan import Run, batches, make_runs, with_seeds
from weightclip.lab.sweep.worker import lock_free, run_locked
from weightclip.lab.text import seeds_text

POLL_SECONDS = 1.0


def run(
    problem: str,
    *,
    seeds: int | Iterable[int] | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    **settings: Any,
) -> pl.DataFrame:
    """Run a problem and return one table with the rows of all seeds.

    Args:
        problem: name of the problem, such as "input-permuted-mnist", "warm-start", "policy-collapse" or "replay-ratio".
        seeds: number of seeds, or the seeds themselves (default: `seed`, or 0).
        out: directory for the records. Finished runs are not repeated; interrupted ones resume.
        data_dir: directory with the data (default: see `weightclip.lab.data.load`).
        overwrite: whether to repeat runs that are finished in `out`.
        progress: whether to show a progress bar; notebooks are supported.
        settings: fields of the problem's configuration, such as `method`, `steps`, `kappa` or `env`.

    Examples:
        >>> table = run("input-permuted-mnist", lr=0.001, steps=1500, period=500, hidden=(50,), backend="reference",
        ...             progress=False)
        >>> table["task"].to_list(), table["accuracy"].round(1).to_list()
        ([1, 2, 3], [0.4, 0.4, 0.4])
    """
    experiment = experiment_of(problem)
    settings = rename_settings(experiment.config, settings)
    known = [one.name for one in fields(experiment.config) if one.name != "problem"]
    for name in settings:
        if name not in known:
            raise ValueError(f"{name}: unknown argument of run, {expected_names(name, known)}")
    several = _seeds(seeds, settings)
    configs = with_seeds(experiment.configure(problem, {**settings, "seed": several[0]}), several)
    finished = run_configs(
        experiment,
        configs,
        out=None if out is None else Path(out),
        data_dir=None if data_dir is None else Path(data_dir),
        overwrite=overwrite,
        progress=progress,
    )
    return pl.concat([record.table for record in finished.records], how="diagonal_relaxed")


@dataclass(frozen=True)
class Finished:
    """Finished runs and their records, in the order of the configurations."""

    records: Sequence[Record]
    runs: Sequence[Run]


def run_configs(
    experiment: Experiment[Any],
    configs: Sequence[Any],
    *,
    out: Path | None,
    data_dir: Path | None = None,
    overwrite: bool = False,
    loggers: Loggers = NO_LOGGERS,
    progress: bool = True,
) -> Finished:
    """Run configurations that differ only in their seeds, in lockstep where the experiment supports it.

    If another process has locked a run, wait for it. Unlike in a sweep, exceptions propagate.
    """
    if out is not None:
        make_directory(out)  # report an unwritable directory before downloading data
    experiment.check_machine(configs[0])
    found: dict[str, Record] = {}
    length = experiment.length(configs[0])
    with show_progress(
        len(configs), length, experiment.schema.unit, score_text(experiment.schema), enabled=progress
    ) as display:
        data = experiment.load(configs[0], data_dir, display.say)
        if data is not None:
            display.say(f"data: {data.source}")
        display.say(f"method: {describe(experiment, configs[0])}")
        display.say(f"seeds: {seeds_text(config.seed for config in configs)}")
        runs = make_runs(experiment, configs, data)
        callbacks = Callbacks(display.say, display.update)
        pending, waited = runs, False
        while pending:
            before = len(found)
            for job in batches(pending):
                with ExitStack() as locks:
                    locked = lock_free(out, job, locks)
                    if not locked:
                        continue
                    display.begin(_name([run for run, _ in locked]), len(locked))
                    # Records that another process has just finished are not overwritten.
                    again = overwrite and not waited
                    records = run_locked(experiment, locked, data, out, callbacks, loggers, again)
                    found |= {run.identity: record for (run, _), record in zip(locked, records, strict=True)}
            pending = [run for run in runs if run.identity not in found]
            if pending and len(found) == before:
                if not waited and out is not None:
                    _report_waiting(out, pending, display.say)
                waited = True
                time.sleep(POLL_SECONDS)
    return Finished([found[run.identity] for run in runs], runs)


def _seeds(seeds: int | Iterable[int] | None, settings: Mapping[str, Any]) -> list[int]:
    if seeds is None:
        return [settings.get("seed", 0)]
    if "seed" in settings:
        raise ValueError(f"seed: got {settings['seed']!r}, but seeds is given too; expected only one of them")
    if not isinstance(seeds, Iterable):
        return list(range(check_count("seeds", seeds)))
    several = list(dict.fromkeys(seeds))
    if not several:
        raise ValueError("seeds: got none, expected at least one")
    return several


def _name(runs: Sequence[Run]) -> str:
    """A short name of runs in lockstep for the progress bar: `Hopper-v4 adam+wc seed 0–3`."""
    kind = " ".join(runs[0].relative_path.split("/")[1:-1])
    return f"{kind} seed {seeds_text(run.config.seed for run in runs)}"


def _report_waiting(out: Path, runs: Sequence[Run], say: Event) -> None:
    notes = locked_runs(out)
    for run in runs:
        note = notes.get(run.identity)
        owner = f"process {note.process} on {note.node}" if note is not None else "another process"
        say(f"seed {run.config.seed}: {owner} is running it; waiting for its record")
