"""Records of runs that nobody ran, and the tidy table of such records without files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from weightclip.lab.records.record import Record, identity, write_record
from weightclip.lab.records.table import run_columns

CONFIG: dict[str, Any] = {
    "problem": "input-permuted-mnist",
    "method": "sgd",
    "lr": 0.001,
    "kappa": None,
    "decay": None,
    "sigma": None,
    "settings": {},
    "seed": 0,
    "steps": 20,
    "period": 10,
    "hidden": [300, 150],
    "activation": "leaky_relu",
    "diagnostics": True,
    "rules": None,
}


def made_record(
    accuracy: Sequence[float] = (0.5, 0.75),
    *,
    period: int = 10,
    columns: dict[str, Any] | None = None,
    tables: dict[str, pl.DataFrame] | None = None,
    rules: str | None = None,
    experiment: str = "streaming",
    checksum: str = "abc",
    official: bool = True,
    **config: Any,
) -> Record:
    """A record with that accuracy in each task."""
    full = {**CONFIG, "steps": period * len(accuracy), "period": period, **config}
    tasks = range(1, len(accuracy) + 1)
    table = pl.DataFrame(
        {
            "seed": [full["seed"]] * len(tasks),
            "task": list(tasks),
            "samples": [min(task * period, full["steps"]) for task in tasks],
            "accuracy": list(map(float, accuracy)),
            **(columns or {}),
        }
    )
    data = {"name": "mnist", "kind": "directory", "location": "/d", "checksum": checksum, "official": official}
    name = identity(experiment, full, checksum, rules)
    return Record(experiment, name, full, table, data, seconds=1.5, rules=rules, tables=tables or {})


def store(directory: Path, *records: Record) -> list[Path]:
    """Write the records; their paths."""
    paths = [directory / record.config["method"] / f"lr0.001_{record.identity}.parquet" for record in records]
    for record, path in zip(records, paths):
        write_record(record, path)
    return paths


def tidy(*records: Record) -> pl.DataFrame:
    """What `load` gives for such records, in this order."""
    tables = []
    for one in records:
        facts = {name: getattr(one, name) for name in ("experiment", "config", "data", "seconds", "identity", "rules")}
        tables.append(run_columns([facts]).join(one.table.drop("seed"), how="cross", maintain_order="left"))
    return pl.concat(tables, how="diagonal_relaxed")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
