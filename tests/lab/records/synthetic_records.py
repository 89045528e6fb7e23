"""Synthetic records and their tidy tables."""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from weightclip.lab.records.columns import schema_of
from weightclip.lab.records.legacy import upgrade_facts
from weightclip.lab.records.record import Record, identity, write_record
from weightclip.lab.records.schema import Schema
from weightclip.lab.records.table import load

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


def make_record(
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
    """Create a record with the given accuracy of each task."""
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
    return Record(
        **comparison(experiment, full),
        identity=name,
        config=full,
        table=table,
        data=data,
        seconds=1.5,
        rules=rules,
        tables=tables or {},
    )


def comparison(experiment: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the schema and the comparison with the paper; streaming runs have no deviations."""
    facts = upgrade_facts({"experiment": experiment, "config": config})
    deviations = {} if experiment == "streaming" else facts["deviations"]
    schema = Schema.from_dict(facts["schema"])
    return {"schema": schema, "paper_setting": facts["paper_setting"], "deviations": deviations}


def store(directory: Path, *records: Record) -> list[Path]:
    """Write the records and return their paths."""
    paths = [directory / record.config["method"] / f"lr0.001_{record.identity}.parquet" for record in records]
    for record, path in zip(records, paths):
        write_record(record, path)
    return paths


def tidy(*records: Record) -> pl.DataFrame:
    """Return the table that `load` returns for the records, in the given order."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{number}_{one.identity}.parquet" for number, one in enumerate(records)]
        for one, path in zip(records, paths):
            write_record(one, path)
        return load(*paths)


def with_schema(table: pl.DataFrame, **changes: Any) -> pl.DataFrame:
    """Change the schema of a tidy table of one experiment."""
    text = json.dumps(dataclasses.replace(schema_of(table), **changes).as_dict())
    return table.with_columns(pl.lit(text).cast(pl.Categorical).alias("schema"))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
