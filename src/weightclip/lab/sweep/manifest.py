"""Manifests: what a sweep wants, kept in its store, so that anybody can see what is left of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from weightclip.lab.files import write_whole
from weightclip.lab.results.store import failure_path, now, record_path
from weightclip.lab.sweep.claims import Note, running
from weightclip.lab.sweep.plan import Run

FOLDER = ".sweeps"


@dataclass(frozen=True)
class Wanted:
    """A run of a sweep, and the seconds that it is thought to take."""

    identity: str
    place: str
    method: str
    seconds: float


@dataclass(frozen=True)
class Manifest:
    """A sweep: the command, its experiment and problem, and its runs."""

    command: str
    experiment: str
    problem: str
    when: str
    runs: tuple[Wanted, ...]


def write_manifest(
    store: Path, command: str, problem: str, runs: Sequence[Run], seconds: Mapping[str, float]
) -> Manifest:
    """Keep what a sweep wants. The same runs again replace what was kept before."""
    wanted = tuple(Wanted(run.identity, run.place, run.method, seconds.get(run.identity, 0.0)) for run in runs)
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
            runs = tuple(Wanted(**run) for run in facts.pop("runs"))
            found.append(Manifest(**facts, runs=runs))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda manifest: manifest.when)


@dataclass(frozen=True)
class State:
    """Where the runs of a sweep are."""

    done: tuple[Wanted, ...]
    failed: tuple[Wanted, ...]
    running: Mapping[str, Note | None]
    left: tuple[Wanted, ...]


def state_of(store: Path, manifest: Manifest) -> State:
    """Look for records, notes of failures, and claims; `left` counts those that are running, too."""
    held = running(store)
    done, failed, left = [], [], []
    for run in manifest.runs:
        if record_path(store, run.place, run.identity).exists():
            done.append(run)
        elif run.identity not in held and failure_path(store, run.place, run.identity).exists():
            failed.append(run)
        else:
            left.append(run)
    ours = {run.identity for run in left}
    return State(tuple(done), tuple(failed), {name: held[name] for name in held if name in ours}, tuple(left))
