"""Tidy tables that were saved as CSV or Parquet, such as results that are committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import polars as pl

from weightclip.lab.plugins import find_experiment
from weightclip.lab.results.tidy import is_tidy

_TEXT = ("experiment", "problem", "method", "rules", "data", "data_kind", "checksum", "identity")


def read_saved(path: Path) -> pl.DataFrame:
    """The tidy table in a file, as it was when it was saved; a ValueError says why there is none.

    CSV has no types: a configuration's text stays text (`hidden`: "300"), a column without values is one of nulls.
    """
    try:
        if path.suffix == ".csv":
            names = pl.read_csv(path, n_rows=0).columns
        else:
            names = list(pl.read_parquet_schema(path))
        if not is_tidy(names):
            raise ValueError("it is neither a record of weightclip nor a table of records")
        return _read_csv(path, names) if path.suffix == ".csv" else pl.read_parquet(path, glob=False)
    except (pl.exceptions.PanicException, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _read_csv(path: Path, names: Iterable[str]) -> pl.DataFrame:
    experiments = pl.read_csv(path, columns=["experiment"])["experiment"].unique()
    text = {*_TEXT, *(name for experiment in experiments for name in _text_fields(experiment))}
    table = pl.read_csv(path, infer_schema_length=None, schema_overrides=dict.fromkeys(text & set(names), pl.String))
    return table.with_columns(pl.lit(None).alias(column.name) for column in table if column.is_null().all())


def _text_fields(experiment: str) -> list[str]:
    """Fields of a configuration that tidy tables have as text; none are known of an experiment that is not installed."""
    try:
        config = find_experiment(experiment).config
    except ValueError:
        return []
    hints = get_type_hints(config)
    return [one.name for one in fields(config) if not {int, float, bool} & set(_kinds(hints[one.name]))]


def _kinds(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
