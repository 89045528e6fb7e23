"""The store: a directory tree with a record for each finished run, and a note for each failed one.

    STORE/input-permuted-mnist/adam+wc/lr0.0001_kappa1_seed0_0123456789ab.parquet
    STORE/input-permuted-mnist/adam+wc/lr0.1_kappa1_seed0_ba9876543210.failed.json

The identity at the end of a name alone tells runs apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from weightclip.lab.files import write_whole

FAILED = ".failed.json"


def plain_name(text: str) -> str:
    """A name that any file system takes.

    Examples:
        >>> plain_name("adam+wc@switch"), plain_name("a rule/of mine")
        ('adam+wc@switch', 'a-rule-of-mine')
    """
    return re.sub(r"[^\w+.@-]", "-", text)


def rule_name(rule: str) -> str:
    """A rule of clipping ranges, for the name of a file.

    Examples:
        >>> rule_name("graded(0.5, 8, output=0.25-4)"), rule_name("hidden=5,output=1")
        ('graded-0.5-8-output-0.25-4', 'hidden-5-output-1')
    """
    return re.sub(r"[^\w.*]+", "-", rule).strip("-").replace("*", "all")


def record_path(store: Path, place: str, identity: str) -> Path:
    """Where the record of a run lies."""
    return store / f"{place}_{identity}.parquet"


def failure_path(store: Path, place: str, identity: str) -> Path:
    """Where the note lies that says how a run failed."""
    return store / f"{place}_{identity}{FAILED}"


def checkpoint_path(record: Path) -> Path:
    """Where the run of that record saves its state until it is finished."""
    return record.with_suffix(".checkpoint.npz")


@dataclass(frozen=True)
class Failure:
    """A run that failed.

    Args:
        place, identity: of the run in its store.
        experiment, config: what was run.
        reason: in a line.
        traceback: where it happened.
        when: in UTC, ISO 8601.
    """

    place: str
    identity: str
    experiment: str
    config: Mapping[str, Any]
    reason: str
    traceback: str
    when: str


def write_failure(store: Path, failure: Failure) -> None:
    """Note that a run failed."""
    text = json.dumps(asdict(failure), indent=1, default=str)
    write_whole(failure_path(store, failure.place, failure.identity), text.encode())


def failures(store: str | Path) -> list[Failure]:
    """All notes of failed runs under a directory; one that cannot be read is left out."""
    found = []
    for path in sorted(Path(store).rglob(f"*{FAILED}")):
        try:
            found.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return found


def now() -> str:
    """The time as notes have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
