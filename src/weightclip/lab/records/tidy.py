"""The form of the tidy table: a row per run and row of its table.

First the run: `experiment`, `problem`, `method`, `seed` and the other fields of the configuration (lists as text,
`300,150`; entries of mappings as `settings.beta1`; rules of one's own as a hash of what they do), then `data`,
`data_kind`, `checksum`, `official`, `seconds` and `identity`; then the columns of the table itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

FIRST = ("experiment", "problem", "method", "seed")
CUT_SHORT = "cut_short"
"""A column of run tables that marks rows with fewer samples than the others: a last task that the run ended."""

LAST = ("data", "data_kind", "checksum", "official", "seconds", "identity")


NO_RUNS = dict.fromkeys(FIRST, pl.String) | dict.fromkeys(LAST, pl.String) | {"seed": pl.Int64, "seconds": pl.Float64}
"""The columns of a tidy table without rows."""


def is_tidy(columns: Sequence[str]) -> bool:
    """Whether a table with these columns can be a tidy one."""
    return {*FIRST, *LAST} <= set(columns)


def run_columns(facts: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """A row per run, from what records say: the columns of the tidy table before those of the runs' own tables."""
    configs = [flat_config(fact["config"]) for fact in facts]
    leading = [
        {
            "experiment": fact["experiment"],
            "problem": config.pop("problem", fact["experiment"]),
            "method": config.pop("method", None),
            "seed": config.pop("seed", None),
        }
        for fact, config in zip(facts, configs, strict=True)
    ]
    for fact, config in zip(facts, configs, strict=True):
        config["rules"] = _hash(fact.get("rules"))
    data = [
        {
            "data": fact["data"].get("name"),
            "data_kind": fact["data"].get("kind"),
            "checksum": fact["data"].get("checksum"),
            "official": fact["data"].get("official"),
            "seconds": fact["seconds"],
            "identity": fact["identity"],
        }
        for fact in facts
    ]
    return pl.concat([_frame(leading), _frame(configs), _frame(data)], how="horizontal")


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame({name: pl.Series([row.get(name) for row in rows], strict=False) for name in names})


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A record's configuration as the table has it."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat_config(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return float(value) if value in ("inf", "-inf", "nan") else value  # as JSON, which lacks them, has them


def _hash(rules: str | None) -> str | None:
    return None if rules is None else hashlib.sha256(rules.encode()).hexdigest()[:12]


def cut_short(table: pl.DataFrame) -> pl.Expr:
    """Which rows of a tidy table are cut short; for records of older versions, from the samples of a task."""
    known = {"samples", "task", "period"} <= set(table.columns)
    derived = pl.col("samples") < pl.col("task") * pl.col("period") if known else pl.repeat(False, pl.len())
    marked = pl.coalesce(CUT_SHORT, derived) if CUT_SHORT in table.columns else derived
    return marked.fill_null(False).alias(CUT_SHORT)


def whole_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The rows that are not cut short, of runs that have any."""
    short = cut_short(table)
    return table.filter(~short | short.all().over("identity"))
