"""Running a problem for some seeds: `weightclip run`, and `weightclip.lab.run` from Python."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from weightclip.checks import check_count
from weightclip.lab.config import check_field, rename_settings
from weightclip.lab.experiment import Event, Experiment, Watch
from weightclip.lab.files import make_directory
from weightclip.lab.progress import Display, display
from weightclip.lab.records.record import Record
from weightclip.lab.registry import experiment_of
from weightclip.lab.sweep.claims import Claim, claim, running
from weightclip.lab.sweep.live import NOWHERE, Live, showing
from weightclip.lab.sweep.plan import Run, batches, make_runs
from weightclip.lab.text import seeds_text

SECONDS_BETWEEN_LOOKS = 1.0


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
    """Run a problem; the tables of all seeds, one below the other.

    Args:
        problem: for example "input-permuted-mnist", "warm-start", "policy-collapse" or "replay-ratio".
        seeds: their number, or the seeds themselves; default: `seed`, or 0.
        out: a directory for the records. Finished runs are not run again; interrupted ones resume.
        data_dir: a directory with the data; default: see `weightclip.lab.data.load`.
        overwrite: run again what is in `out` already.
        progress: show a progress bar, in a notebook as well.
        settings: fields of the problem's configuration, such as `method`, `steps`, `kappa` or `env`.

    Examples:
        >>> table = run("input-permuted-mnist", lr=0.001, steps=1500, period=500, hidden=(50,), backend="reference",
        ...             progress=False)
        >>> table["task"].to_list(), table["accuracy"].round(1).to_list()
        ([1, 2, 3], [0.4, 0.4, 0.4])
    """
    experiment = experiment_of(problem)
    settings = rename_settings(experiment.config, settings)
    for name in settings:
        check_field("settings", name, [one.name for one in fields(experiment.config) if one.name != "problem"])
    configs = [experiment.configure(problem, {**settings, "seed": seed}) for seed in _seeds(seeds, settings)]
    found = run_configs(
        experiment,
        problem,
        configs,
        out=None if out is None else Path(out),
        data_dir=None if data_dir is None else Path(data_dir),
        overwrite=overwrite,
        progress=progress,
    )
    return pl.concat([record.table for record in found.records], how="diagonal_relaxed")


@dataclass(frozen=True)
class Finished:
    """Records, and the runs they are of, in the order of the configurations."""

    records: Sequence[Record]
    runs: Sequence[Run]


def run_configs(
    experiment: Experiment[Any],
    problem: str,
    configs: Sequence[Any],
    *,
    out: Path | None,
    data_dir: Path | None = None,
    overwrite: bool = False,
    live: Live = NOWHERE,
    progress: bool = True,
) -> Finished:
    """Run configurations that differ in their seeds alone, in lockstep where the experiment can."""
    if out is not None:
        make_directory(out)  # a directory that cannot be written is reported before data is fetched
    found: dict[str, Record] = {}
    length = experiment.length(configs[0])
    with display(len(configs), length, experiment.unit, experiment.shown, shows=progress) as shown:
        data = experiment.load(configs[0], data_dir, shown.say)
        if data is not None:
            shown.say(f"data: {data.source}")
        shown.say(f"method: {experiment.describe(configs[0])}")
        shown.say(f"seeds: {seeds_text(config.seed for config in configs)}")
        if note := experiment.length_note(configs[0]):
            shown.say(note)
        runs = make_runs(experiment, configs, data)
        pending, waited = runs, False
        while pending:
            before = len(found)
            for job in batches(pending):
                # What another process has just finished is not run again.
                found |= _run_free(experiment, job, data, out, overwrite and not waited, live, shown)
            pending = [run for run in runs if run.identity not in found]
            if pending and len(found) == before:
                if not waited and out is not None:
                    _say_who(out, pending, shown.say)
                waited = True
                time.sleep(SECONDS_BETWEEN_LOOKS)
    return Finished([found[run.identity] for run in runs], runs)


def _seeds(seeds: int | Iterable[int] | None, settings: Mapping[str, Any]) -> list[int]:
    if seeds is None:
        return [settings.get("seed", 0)]
    if "seed" in settings:
        raise ValueError(f"seed: got {settings['seed']!r}, but seeds are given as well; expected one of the two")
    if not isinstance(seeds, Iterable):
        return list(range(check_count("seeds", seeds)))
    several = list(dict.fromkeys(seeds))
    if not several:
        raise ValueError("seeds: got none, expected at least one")
    return several


def _run_free(
    experiment: Experiment[Any],
    job: Sequence[Run],
    data: Any,
    out: Path | None,
    overwrite: bool,
    live: Live,
    shown: Display,
) -> dict[str, Record]:
    """Run what of these no other process runs, or read its record: identity -> record."""
    with ExitStack() as held:
        mine: list[tuple[Run, Claim | None]] = []
        for run in job:
            claimed = None if out is None else claim(out, run.identity, run.place)
            if claimed is not None:
                held.callback(claimed.release)
                claimed.begin()
            if claimed is not None or out is None:
                mine.append((run, claimed))
        if not mine:
            return {}
        shown.begin(_name([run for run, _ in mine]), len(mine))
        return _run_mine(experiment, mine, data, out, overwrite, live, shown)


def _name(runs: Sequence[Run]) -> str:
    """Of runs in lockstep, short enough for a bar: `Hopper-v4 adam+wc seed 0–3`."""
    kind = " ".join(runs[0].place.split("/")[1:-1])
    return f"{kind} seed {seeds_text(run.config.seed for run in runs)}"


def _run_mine(
    experiment: Experiment[Any],
    mine: Sequence[tuple[Run, Claim | None]],
    data: Any,
    out: Path | None,
    overwrite: bool,
    live: Live,
    shown: Display,
) -> dict[str, Record]:
    runs = tuple(run for run, _ in mine)
    length = experiment.length(runs[0].config)

    def progress(steps: int, score: float) -> None:
        for _, claimed in mine:
            if claimed is not None:
                claimed.note(steps / length)
        shown.update(steps, score)

    with showing(live, experiment, runs) as row:
        watch = Watch(shown.say, progress, row)
        records = experiment.run([run.config for run in runs], data, out, overwrite, watch)
    return {run.identity: record for run, record in zip(runs, records, strict=True)}


def _say_who(out: Path, runs: Sequence[Run], say: Event) -> None:
    notes = running(out)
    for run in runs:
        note = notes.get(run.identity)
        who = f"process {note.process} on {note.node}" if note is not None else "another process"
        say(f"seed {run.config.seed}: {who} is running it; waiting for its record")
