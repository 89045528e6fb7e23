"""The store: a directory tree with a record for each finished run, and a note for each failed one.

    STORE/input-permuted-mnist/adam+wc/lr0.0001_kappa1_seed0_0123456789ab.parquet
    STORE/input-permuted-mnist/adam+wc/lr0.1_kappa1_seed0_ba9876543210.failed.json

The hash at the end of the name identifies the run; the rest is for readability.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from weightclip._renamed import new_keys
from weightclip.lab.files import remove_leftovers, write_whole
from weightclip.lab.records.record import DAMAGED, part_path, read_facts, read_part
from weightclip.lab.records.schema import Schema

FAILED = ".failed.json"


def plain_name(text: str) -> str:
    """A name that any file system accepts.

    Examples:
        >>> plain_name("adam+wc@switch"), plain_name("a rule/of mine")
        ('adam+wc@switch', 'a-rule-of-mine')
    """
    return re.sub(r"[^\w+.@-]", "-", text)


def rule_name(rule: str) -> str:
    """A rule for clipping ranges as part of a file name.

    Examples:
        >>> rule_name("graded(0.5, 8, output=0.25-4)"), rule_name("hidden=5,output=1")
        ('graded-0.5-8-output-0.25-4', 'hidden-5-output-1')
    """
    return re.sub(r"[^\w.*]+", "-", rule).strip("-").replace("*", "all")


def relative_path(schema: Schema, config: Any) -> str:
    """The path of a run's record in a store, without hash and suffix: PROBLEM/AXES/METHOD/SETTINGS_SEED.

    For example `policy-collapse/Hopper-v4/adam+wc/lr0.0003_kappa3_seed0`.
    """
    axes = [(name, getattr(config, name)) for name in schema.axes if name != "method"]
    folders = [value if isinstance(value, str) else f"{name}{value:g}" for name, value in axes]
    values = {name: getattr(config, name, None) for name in schema.settings}
    settings = [f"{name}{value:g}" for name, value in values.items() if isinstance(value, (int, float))]
    if (rule := values.get("kappa_rule")) is not None:
        settings.append(f"kappa-{rule_name(rule)}")
    name = "_".join([*settings, f"seed{config.seed}"])
    return "/".join(plain_name(part) for part in (config.problem, *folders, config.method, name))


class Stored(Protocol):
    """A run with a path in a store."""

    @property
    def identity(self) -> str: ...

    @property
    def relative_path(self) -> str: ...


def record_path(store: Path, relative_path: str, identity: str) -> Path:
    """The file of a run's record."""
    return store / f"{relative_path}_{identity}.parquet"


def failure_path(store: Path, relative_path: str, identity: str) -> Path:
    """The file with the note of a failed run."""
    return store / f"{relative_path}_{identity}{FAILED}"


def checkpoint_path(record: Path) -> Path:
    """The file with the checkpoint of an unfinished run."""
    return record.with_suffix(".checkpoint.npz")


@dataclass(frozen=True)
class Cost:
    """The run time and the disk space of a finished run."""

    seconds: float
    bytes: int


def find_record(store: Path, run: Stored) -> Cost | None:
    """The cost of a run if its record is complete; None without a record.

    Raises:
        ValueError: the file is damaged or belongs to another run.
    """
    path = record_path(store, run.relative_path, run.identity)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:  # a directory, for example
        raise ValueError(f"{path}: {error.strerror}") from error
    try:
        facts = read_facts(content)
        if facts is None or facts.values["identity"] != run.identity:
            raise ValueError("it is the record of another run")
        facts.check(pl.read_parquet(io.BytesIO(content)))
        parts = facts.values.get("parts", {}).items()
        size = len(content) + sum(len(read_part(path, name, sha256)) for name, sha256 in parts)
        return Cost(float(facts.values["seconds"]), size)
    except DAMAGED as error:
        reason = str(error) if isinstance(error, ValueError) else f"it is damaged ({type(error).__name__})"
        raise ValueError(f"{path}: {reason}") from error


def finished_runs(store: Path, experiment: str, folders: Iterable[str]) -> list[tuple[Mapping[str, Any], Cost]]:
    """Configuration and cost of the finished runs of an experiment in these folders, from the records' metadata."""
    found = []
    for folder in folders:
        for path in (store / folder).rglob("*.parquet"):
            with suppress(*DAMAGED):
                facts = read_facts(path.read_bytes())
                if facts is not None and facts.values["experiment"] == experiment:
                    files = (path, *(part_path(path, name) for name in facts.values.get("parts", {})))
                    size = sum(file.stat().st_size for file in files)
                    found.append((facts.values["config"], Cost(float(facts.values["seconds"]), size)))
    return found


def is_done(store: Path, run: Stored) -> bool:
    """Whether the store has the run's complete record."""
    try:
        return find_record(store, run) is not None
    except ValueError:
        return False


def remove_remains(store: Path, runs: Iterable[Stored]) -> None:
    """Remove other files of finished runs: checkpoints, failure notes, and temporary files of killed processes."""
    directories = set()
    for run in runs:
        path = record_path(store, run.relative_path, run.identity)
        directories.add(path.parent)
        checkpoint_path(path).unlink(missing_ok=True)
        failure_path(store, run.relative_path, run.identity).unlink(missing_ok=True)
    for directory in directories:
        remove_leftovers(directory)


@dataclass(frozen=True)
class Failure:
    """A failed run.

    Args:
        relative_path, identity: path and identity of the run in its store.
        experiment, config: experiment and configuration.
        reason: one-line description of the error.
        traceback: traceback of the error.
        when: time of the failure, UTC, ISO 8601.
    """

    relative_path: str
    identity: str
    experiment: str
    config: Mapping[str, Any]
    reason: str
    traceback: str
    when: str


def write_failure(store: Path, failure: Failure) -> None:
    """Write the note of a failed run."""
    text = json.dumps(asdict(failure), indent=1, default=str)
    write_whole(failure_path(store, failure.relative_path, failure.identity), text.encode())


def failures(store: str | Path) -> list[Failure]:
    """All notes of failed runs below a directory. Unreadable notes are skipped."""
    found = map(_read_failure, sorted(Path(store).rglob(f"*{FAILED}")))
    return [failure for failure in found if failure is not None]


def find_failure(store: Path, run: Stored) -> Failure | None:
    """The note of a failed run; None if there is none, or if it is unreadable."""
    return _read_failure(failure_path(store, run.relative_path, run.identity))


def _read_failure(path: Path) -> Failure | None:
    try:
        return Failure(**new_keys(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def has_failed(store: Path, run: Stored) -> bool:
    """Whether the run has a failure note."""
    return failure_path(store, run.relative_path, run.identity).is_file()


def now() -> str:
    """The current time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
