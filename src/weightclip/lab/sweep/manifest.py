"""Manifests: what a sweep wants, kept in its store, so that anybody can see what is left of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from weightclip.lab.files import write_whole
from weightclip.lab.records.store import find_record, has_failed, now
from weightclip.lab.sweep.claims import Note, running
from weightclip.lab.sweep.plan import Run

FOLDER = ".sweeps"


@dataclass(frozen=True)
class Wanted:
    """A run of a sweep."""

    identity: str
    relative_path: str
    method: str


@dataclass(frozen=True)
class Manifest:
    """A sweep: the command, its experiment and problem, and its runs."""

    command: str
    experiment: str
    problem: str
    when: str
    runs: tuple[Wanted, ...]


def write_manifest(store: Path, command: str, problem: str, runs: Sequence[Run]) -> Manifest:
    """Keep what a sweep wants. The same runs again replace what was kept before."""
    wanted = tuple(Wanted(run.identity, run.relative_path, run.method) for run in runs)
    manifest = Manifest(command, runs[0].experiment, problem, now(), wanted)
    name = hashlib.sha256("".join(sorted(run.identity for run in runs)).encode()).hexdigest()[:12]
    write_whole(store / FOLDER / f"{name}.json", json.dumps(asdict(manifest)).encode())
    return manifest


def read_manifests(store: str | Path) -> list[Manifest]:
    """The sweeps of a store, oldest first; a file that cannot be read is left out."""
    found = []
    for path in sorted((Path(store) / FOLDER).glob("*.json")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            runs = tuple(
                Wanted(run["identity"], run.get("relative_path") or run["place"], run["method"])
                for run in facts.pop("runs")
            )
            found.append(Manifest(**facts, runs=runs))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda manifest: manifest.when)


def current(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Those, oldest first, that no later one has all runs of: more seeds of a sweep take its relative_path."""
    wanted = [{run.identity for run in manifest.runs} for manifest in manifests]
    return [
        manifest
        for index, manifest in enumerate(manifests)
        if not any(wanted[index] <= later for later in wanted[index + 1 :])
    ]


@dataclass(frozen=True)
class State:
    """Where the runs of a sweep are.

    Args:
        done, failed: what they are called.
        left: all others, those too that are running, that wait for a worker, or whose record is damaged.
        running: identity -> what its worker told last.
        waiting: the identities of those that somebody has claimed, and no worker has begun.
        damaged: a line for each file that is damaged.
        seconds: identity -> what a run that is done took.
    """

    done: tuple[Wanted, ...]
    failed: tuple[Wanted, ...]
    left: tuple[Wanted, ...]
    running: Mapping[str, Note]
    waiting: frozenset[str]
    damaged: tuple[str, ...]
    seconds: Mapping[str, float]


def state_of(store: Path, manifest: Manifest) -> State:
    """Look for records, notes of failures, and claims."""
    held = running(store)
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
