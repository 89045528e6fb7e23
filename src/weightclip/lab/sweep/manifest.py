"""Manifests: lists of the runs of each sweep in the store, from which `weightclip status` shows the remaining runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from weightclip._renamed import new_keys
from weightclip.lab.files import write_whole
from weightclip.lab.records.store import find_record, has_failed, now
from weightclip.lab.sweep.locks import Note, locked_runs
from weightclip.lab.sweep.plan import Run

FOLDER = ".sweeps"


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    identity: str
    relative_path: str
    method: str


@dataclass(frozen=True)
class Manifest:
    """A sweep: its command, experiment, problem, time and runs."""

    command: str
    experiment: str
    problem: str
    when: str
    runs: tuple[PlannedRun, ...]


def write_manifest(store: Path, command: str, problem: str, runs: Sequence[Run]) -> Manifest:
    """Write the manifest of a sweep; it replaces an earlier one with the same runs."""
    planned = tuple(PlannedRun(run.identity, run.relative_path, run.method) for run in runs)
    manifest = Manifest(command, runs[0].experiment, problem, now(), planned)
    name = hashlib.sha256("".join(sorted(run.identity for run in runs)).encode()).hexdigest()[:12]
    write_whole(store / FOLDER / f"{name}.json", json.dumps(asdict(manifest)).encode())
    return manifest


def read_manifests(store: str | Path) -> list[Manifest]:
    """The sweeps of a store, oldest first; unreadable files are skipped."""
    found = []
    for path in sorted((Path(store) / FOLDER).glob("*.json")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            known = map(new_keys, facts.pop("runs"))
            runs = tuple(PlannedRun(run["identity"], run["relative_path"], run["method"]) for run in known)
            found.append(Manifest(**facts, runs=runs))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return sorted(found, key=lambda manifest: manifest.when)


def current(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Drop manifests whose runs are all in a later one: a sweep with more seeds replaces the earlier one."""
    identities = [{run.identity for run in manifest.runs} for manifest in manifests]
    return [
        manifest
        for index, manifest in enumerate(manifests)
        if not any(identities[index] <= later for later in identities[index + 1 :])
    ]


@dataclass(frozen=True)
class State:
    """The state of a sweep's runs.

    Args:
        done, failed: finished and failed runs.
        left: all other runs, including those that are running, wait for a worker, or have a damaged record.
        running: identity -> progress of a run that a worker executes.
        waiting: identities of locked runs that no worker has started.
        damaged: one line for each damaged file.
        seconds: identity -> duration of a finished run.
    """

    done: tuple[PlannedRun, ...]
    failed: tuple[PlannedRun, ...]
    left: tuple[PlannedRun, ...]
    running: Mapping[str, Note]
    waiting: frozenset[str]
    damaged: tuple[str, ...]
    seconds: Mapping[str, float]


def state_of(store: Path, manifest: Manifest) -> State:
    """The state of a sweep, from records, failure notes and locks."""
    held = locked_runs(store)
    done, failed, left, damaged = [], [], [], []
    seconds = {}
    for run in manifest.runs:
        found = None
        try:
            found = find_record(store, run)
        except ValueError as error:
            damaged.append(str(error))
        if found is not None:
            done.append(run)
            seconds[run.identity] = found.seconds
        elif run.identity not in held and has_failed(store, run):
            failed.append(run)
        else:
            left.append(run)
    ours = {run.identity: held[run.identity] for run in left if run.identity in held}
    under_way = {identity: note for identity, note in ours.items() if note is not None}
    waiting = frozenset(ours.keys() - under_way.keys())
    return State(tuple(done), tuple(failed), tuple(left), under_way, waiting, tuple(damaged), seconds)
