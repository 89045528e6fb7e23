"""The columns of the tidy table, which has one row per run and row of its table.

They are `experiment`, `problem`, `method`, `seed`, the other configuration fields (lists as text, `300,150`; entries of
mappings as `settings.beta1`), `rules` (a hash of the user's rules), then `data`, `data_kind`, `checksum`, `official`,
`seconds`, `resumed`, `deviations` (settings that differ from the paper's, as text), `paper_setting` (JSON), `schema`
(JSON, `weightclip.lab.records.schema.Schema`) and `identity`, then the columns of the runs' own tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from weightclip.lab.records.schema import Schema
from weightclip.lab.text import settings_text

FIRST = ("experiment", "problem", "method", "seed")
PROVENANCE = ("data", "data_kind", "checksum", "official", "seconds", "resumed", "deviations", "paper_setting")
LAST = (*PROVENANCE, "schema", "identity")
TEXT = (*FIRST[:3], "rules", "data", "data_kind", "checksum", *LAST[5:])

SCHEMA_TYPE = pl.Categorical
"""The type of the column `schema`, whose long texts are repeated in every row."""

NO_RUNS: dict[str, Any] = {
    **dict.fromkeys((*FIRST, *LAST), pl.String),
    **{"seed": pl.Int64(), "seconds": pl.Float64(), "schema": SCHEMA_TYPE()},
}
"""The columns of a tidy table without rows."""

CUT_SHORT = "cut_short"
"""A column that marks rows with fewer samples than the others: a last task that the end of a run cut short."""


def schema_of(table: pl.DataFrame) -> Schema:
    """The schema of one experiment's tidy table. Different versions are merged."""
    texts = list(table["schema"].drop_nulls().unique(maintain_order=True)) if "schema" in table.columns else []
    if not texts:
        raise ValueError("table: got a table without a schema, expected the result of weightclip.lab.load")
    first, *others = (Schema.from_dict(json.loads(text)) for text in texts)
    for other in others:
        first = first.merge(other)
    return first


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A record's configuration as columns: lists as text, entries of mappings under dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat_config(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = plain_value(value)
    return found


def cut_short(table: pl.DataFrame) -> pl.Expr:
    """Which rows of a tidy table are cut short; for older records, from the samples of a task."""
    known = {"samples", "task", "period"} <= set(table.columns)
    derived = pl.col("samples") < pl.col("task") * pl.col("period") if known else pl.repeat(False, pl.len())
    marked = pl.coalesce(CUT_SHORT, derived) if CUT_SHORT in table.columns else derived
    return marked.fill_null(False).alias(CUT_SHORT)


def whole_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The rows that are not cut short, of runs that have any."""
    short = cut_short(table)
    return table.filter(~short | short.all().over("identity"))


def comparison_columns(facts: Mapping[str, Any]) -> dict[str, str | None]:
    """The columns `resumed`, `deviations` and `paper_setting` of a run."""
    setting, fields = facts.get("paper_setting"), [name for name, _ in facts["schema"]["fields"]]
    known = [name for name in facts["schema"]["settings"] if setting and name in setting]
    return {
        "resumed": facts.get("resumed"),
        "deviations": deviations_text(facts.get("deviations") or {}, fields) or None,
        "paper_setting": None
        if setting is None
        else json.dumps({**{name: setting[name] for name in known}, **setting}),
    }


def deviations_text(deviations: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Deviations as text, in the order of the configuration's fields, which JSON does not preserve."""
    order = sorted(deviations, key=lambda name: fields.index(name) if name in fields else len(fields))
    return settings_text({name: plain_value(deviations[name]) for name in order})


def plain_value(value: Any) -> Any:
    """A value of a configuration, converted for a column."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return float(value) if value in ("inf", "-inf", "nan") else value  # not available in JSON
