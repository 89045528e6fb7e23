"""Format 2: records and tables of version 0.1, with other field names and without a schema.

The schema and the comparison with the paper come from the installed experiment. Without it, every unknown column
counts as a metric. The content of these records is not checked against a hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import polars as pl

from weightclip._renamed import new_field, new_fields
from weightclip.lab.records.columns import LAST, SCHEMA_TYPE, comparison_columns
from weightclip.lab.records.schema import Schema

FORMATS = (2,)


def upgrade_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the metadata of a record from format 2 to format 3."""
    config = new_fields(facts["experiment"], facts["config"])
    schema = _schema(facts["experiment"], config)
    setting, deviations = _comparison(facts["experiment"], config)
    added_facts = {"paper_setting": setting, "deviations": deviations, "resumed": None}
    return {**facts, "config": config, "schema": schema.as_dict(), **added_facts}


def upgrade_table(table: pl.DataFrame) -> pl.DataFrame:
    """Convert a tidy table of version 0.1 to the names and columns of this version."""
    parts = [_upgrade_part(part) for part in table.partition_by("experiment", maintain_order=True)]
    return pl.concat(parts, how="diagonal_relaxed") if parts else table


def _upgrade_part(table: pl.DataFrame) -> pl.DataFrame:
    """Convert the rows of one experiment. Empty columns, which belong to other experiments, are dropped."""
    experiment = table["experiment"][0]
    end = table.columns.index("identity")
    empty = [column.name for column in table if column.null_count() == len(table) and column.name not in LAST]
    names = {name: new_field(experiment, name) for name in table.columns[:end]}
    renamed = table.rename(names)
    config = renamed.columns[:end]
    schema = _schema(experiment, {name.partition(".")[0]: None for name in config if name not in LAST})
    renamed = renamed.drop([names.get(name, name) for name in empty if names.get(name, name) not in schema.fields])
    about, facts = [], schema.as_dict()
    text = json.dumps(facts)
    for run in renamed.unique("identity", maintain_order=True).iter_rows(named=True):
        setting, deviations = _comparison(experiment, _nested({name: run[name] for name in config if name in run}))
        found = comparison_columns({"schema": facts, "paper_setting": setting, "deviations": deviations})
        about.append({"identity": run["identity"], **found, "schema": text})
    columns = pl.DataFrame(about, schema=dict.fromkeys(about[0], pl.String))
    columns = columns.with_columns(pl.col("schema").cast(SCHEMA_TYPE))
    added = renamed.join(columns, on="identity", maintain_order="left")
    order = [name for name in LAST if name in added.columns]
    head = [name for name in config if name in added.columns and name not in order]
    measured = [name for name in added.columns if name not in (*head, *order)]
    return added.select(*head, *order, *measured)


def _schema(experiment: str, config: Mapping[str, Any]) -> Schema:
    from weightclip.lab.registry import experiments

    if experiment in experiments():
        return experiments()[experiment].schema
    known = dict.fromkeys(("problem", "method", "seed", *config), "")
    return Schema(experiment, x_column="samples", score="score", fields=known)


def _comparison(experiment: str, config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """The paper's setting and the deviations of a run; both empty if the configuration is no longer valid."""
    from weightclip.lab.registry import experiments

    if experiment not in experiments():
        return None, {}
    names = {one.name for one in fields(experiments()[experiment].config)} - {"seed"}
    known = {name: value for name, value in config.items() if name in names and value is not None}
    return _compare(experiment, json.dumps(known))


@lru_cache(maxsize=4096)  # a comparison takes milliseconds and does not depend on the seed
def _compare(experiment: str, config: str) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    from weightclip.lab.registry import experiments

    found, known = experiments()[experiment], json.loads(config)
    try:
        return found.compare_with_paper(found.configure(known.pop("problem"), known))
    except (ValueError, KeyError):
        return None, {}


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a tidy table as a configuration: `settings.beta1` in a mapping, "300,150" as a tuple."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        first, dot, rest = name.partition(".")
        if dot and value is not None:
            found.setdefault(first, {})[rest] = value
        elif not dot:
            found[name] = value
    for name in ("hidden", "covariance_at"):
        if isinstance(found.get(name), str):
            found[name] = tuple(int(part) for part in found[name].split(",") if part)
    found.pop("rules", None)
    return found
