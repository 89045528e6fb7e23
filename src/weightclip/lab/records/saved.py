"""Tidy tables that were saved as CSV or Parquet, such as results that are committed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import polars as pl

from weightclip.lab.records.tidy import is_tidy
from weightclip.lab.registry import find_experiment

_TEXT = ("experiment", "problem", "method", "rules", "data", "data_kind", "checksum", "identity")


def read_saved(path: Path) -> pl.DataFrame:
    """The tidy table in a file, as it was when it was saved; a ValueError says why there is none.

    CSV has no types: a configuration's text stays text (`hidden`: "300"), a column without values is one of nulls.
    """
    try:
        table = _read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path, glob=False)
    except (pl.exceptions.PanicException, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error
    if not is_tidy(table.columns):
        raise ValueError("it is neither a record of weightclip nor a table of records")
    return table


def is_further(table: pl.DataFrame) -> bool:
    """Whether a tidy table is of a further table of runs, which lacks what their main one's rows follow."""
    return not any(_along(name) in table.columns for name in table["experiment"].unique())


def _along(experiment: str) -> str:
    """Of an experiment that is not installed any table is a main one."""
    try:
        return find_experiment(experiment).along
    except ValueError:
        return "experiment"


def _read_csv(path: Path) -> pl.DataFrame:
    plain = pl.read_csv(path, infer_schema=False)
    experiments = plain["experiment"].unique() if "experiment" in plain.columns else ()
    text = {*_TEXT, *(name for experiment in experiments for name in _text_fields(experiment))} & set(plain.columns)
    table = pl.read_csv(path, infer_schema_length=None, schema_overrides=dict.fromkeys(text, pl.String))
    return table.with_columns(pl.lit(None).alias(column.name) for column in table if column.is_null().all())


def _text_fields(experiment: str) -> list[str]:
    """Fields that tidy tables have as text; none are known of an experiment that is not installed."""
    try:
        config = find_experiment(experiment).config
    except ValueError:
        return []
    hints = get_type_hints(config)
    return [one.name for one in fields(config) if not {int, float, bool} & set(_kinds(hints[one.name]))]


def _kinds(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
