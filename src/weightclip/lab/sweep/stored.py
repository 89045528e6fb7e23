"""What a store has of a run: its record, whole or damaged, and the note that it failed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from weightclip.lab.records.loading import FAILURES
from weightclip.lab.records.record import KEY, SEAL, part_path, schema_text, seal
from weightclip.lab.records.store import checkpoint_path, failure_path, record_path


@dataclass(frozen=True)
class Cost:
    """What a finished run took."""

    seconds: float
    bytes: int


class Placed(Protocol):
    """What tells where a run's record lies, and which run it is."""

    @property
    def identity(self) -> str: ...

    @property
    def place(self) -> str: ...


def find_record(store: Path, run: Placed) -> Cost | None:
    """What the run took, if its record is there; a ValueError names a file in its place that is not the record, whole.

    The seal proves the table without reading it, which takes a seventh of the time: a store has thousands.
    """
    path = record_path(store, run.place, run.identity)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:  # a directory, for example
        raise ValueError(f"{path}: {error.strerror}") from error
    try:
        metadata = pl.read_parquet_metadata(content)
        facts = json.loads(metadata[KEY])
        if facts["identity"] != run.identity:
            raise ValueError("it is another run's")
        if metadata[SEAL] != seal(content, schema_text(pl.read_parquet_schema(content)), metadata[KEY]):
            raise ValueError("it changed after it was written")
        size = len(content)
        for name, digest in facts.get("parts", {}).items():
            part = part_path(path, name).read_bytes()
            if hashlib.sha256(part).hexdigest() != digest:
                raise ValueError("a part changed after it was written")
            size += len(part)
        return Cost(float(facts["seconds"]), size)
    except FAILURES as error:
        raise ValueError(f"{path}: the record is damaged ({type(error).__name__})") from error


def finished_runs(store: Path, experiment: str, folders: Iterable[str]) -> list[tuple[Mapping[str, Any], Cost]]:
    """Configuration and cost of the finished runs of an experiment in these folders, from the records' metadata."""
    found = []
    for folder in folders:
        for path in (store / folder).rglob("*.parquet"):
            with suppress(*FAILURES):
                facts = json.loads(pl.read_parquet_metadata(path)[KEY])
                if facts["experiment"] == experiment:
                    files = (path, *(part_path(path, name) for name in facts.get("parts", {})))
                    size = sum(file.stat().st_size for file in files)
                    found.append((facts["config"], Cost(float(facts["seconds"]), size)))
    return found


def is_done(store: Path, run: Placed) -> bool:
    """Whether the store has the run's record, whole."""
    try:
        return find_record(store, run) is not None
    except ValueError:
        return False


def has_failed(store: Path, run: Placed) -> bool:
    """Whether there is a note that the run failed."""
    return failure_path(store, run.place, run.identity).is_file()


def failed_since(store: Path, run: Placed, since: float) -> str | None:
    """The reason, if the run failed at that time (in seconds, as `time.time` has it) or later."""
    path = failure_path(store, run.place, run.identity)
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["reason"]) if path.stat().st_mtime >= since else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_checkpoints(store: Path, runs: Iterable[Placed]) -> None:
    """Of runs that are done: a process may be killed between writing a record and removing the run's checkpoint."""
    for run in runs:
        checkpoint_path(record_path(store, run.place, run.identity)).unlink(missing_ok=True)
