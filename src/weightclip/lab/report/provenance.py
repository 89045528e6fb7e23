"""Where results come from: data, software, sweeps and what failed."""

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
"""Of runs that failed for the same reason so many are listed."""


@dataclass(frozen=True)
class Data:
    """A data set that runs were made on."""

    name: str
    problems: tuple[str, ...]
    kind: str
    checksum: str | None
    official: bool | None
    runs: int


@dataclass(frozen=True)
class Software:
    """Versions and a machine, and how many runs were made with them."""

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
    """Runs that failed for the same reason: how many, the first ones, and the traceback of one."""

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
    """What the records of these runs say, the most frequent first. Tables that were saved before say nothing."""
    wanted = set(identities)
    counts: dict[str, int] = {}
    for facts in _records(paths):
        if facts["identity"] in wanted:
            wanted.remove(facts["identity"])
            told = json.dumps({"versions": facts["versions"], "platform": facts["platform"]})
            counts[told] = counts.get(told, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [Software(runs=count, **json.loads(told)) for told, count in ordered]


def find_sweeps(stores: Iterable[str | Path], identities: Iterable[str]) -> list[Sweep]:
    """The sweeps that were kept in the stores."""
    done = set(identities)
    return [
        Sweep(manifest.command, manifest.when, len(manifest.runs), sum(run.identity in done for run in manifest.runs))
        for store in stores
        for manifest in read_manifests(store)
    ]


def find_failures(stores: Iterable[str | Path], identities: Iterable[str]) -> list[Failed]:
    """What failed and has no record since, by reason."""
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
    """The names in all versions."""
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
