"""The provenance of results: data, software, sweeps and failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from weightclip.lab.records.record import read_facts
from weightclip.lab.records.store import Failure, failures
from weightclip.lab.sweep.manifest import read_manifests

PLACES = 20
"""Maximum number of listed runs per reason of failure."""


@dataclass(frozen=True)
class Data:
    """A data set used by the runs."""

    name: str
    problems: tuple[str, ...]
    kind: str
    checksum: str | None
    official: bool | None
    runs: int


@dataclass(frozen=True)
class Software:
    """Versions and platform, and the number of runs that used them."""

    versions: Mapping[str, str | None]
    platform: str
    runs: int


@dataclass(frozen=True)
class Sweep:
    """A sweep that wrote to the store."""

    command: str
    when: str
    runs: int
    done: int


@dataclass(frozen=True)
class Failed:
    """Runs that failed for the same reason: their number, the first ones, and one traceback."""

    reason: str
    runs: int
    places: tuple[str, ...]
    when: str
    traceback: str


def find_data(table: pl.DataFrame) -> list[Data]:
    """A row per data set and content."""
    key = ("data", "data_kind", "checksum", "official")
    groups = table.filter(pl.col("data").is_not_null()).group_by(key, maintain_order=True)
    return [
        Data(name, tuple(rows["problem"].unique(maintain_order=True)), kind, checksum, official, _runs(rows))
        for (name, kind, checksum, official), rows in groups
    ]


def find_software(paths: Iterable[str | Path], identities: Iterable[str]) -> list[Software]:
    """The software in the records of these runs, the most frequent first. Saved tables do not contain it."""
    remaining = set(identities)
    counts: dict[str, int] = {}
    for facts in _records(paths):
        if facts["identity"] in remaining:
            remaining.remove(facts["identity"])
            versions = json.dumps({"versions": facts["versions"], "platform": facts["platform"]})
            counts[versions] = counts.get(versions, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [Software(runs=count, **json.loads(versions)) for versions, count in ordered]


def find_sweeps(stores: Iterable[str | Path], identities: Iterable[str]) -> list[Sweep]:
    """The sweeps with a manifest in the stores."""
    done = set(identities)
    return [
        Sweep(manifest.command, manifest.when, len(manifest.runs), sum(run.identity in done for run in manifest.runs))
        for store in stores
        for manifest in read_manifests(store)
    ]


def find_failures(stores: Iterable[str | Path], identities: Iterable[str]) -> list[Failed]:
    """Failed runs without a record, by reason."""
    done = set(identities)
    reasons: dict[str, list[Failure]] = {}
    for store in stores:
        for failure in failures(store):
            if failure.identity not in done:
                reasons.setdefault(failure.reason, []).append(failure)
    return [
        Failed(reason, len(runs), tuple(run.relative_path for run in runs[:PLACES]), runs[-1].when, runs[-1].traceback)
        for reason, runs in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]


def packages(software: Sequence[Software]) -> list[str]:
    """The names of all packages."""
    return list(dict.fromkeys(name for one in software for name in one.versions))


def _runs(rows: pl.DataFrame) -> int:
    return rows["identity"].n_unique()


def _records(paths: Iterable[str | Path]) -> Iterator[Mapping[str, Any]]:
    """The metadata of the records below the paths; `load` reports damaged files."""
    for path in map(Path, paths):
        for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
            with suppress(ValueError):
                facts = read_facts(file.read_bytes())
                if facts is not None:
                    yield facts.values
