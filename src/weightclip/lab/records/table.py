"""Load records and saved tables as one tidy table (`weightclip.lab.records.columns`)."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import polars as pl

from weightclip._validation import check_name
from weightclip.lab.callbacks import Event
from weightclip.lab.records.columns import (
    FIRST,
    LAST,
    NO_RUNS,
    SCHEMA_TYPE,
    TEXT,
    comparison_columns,
    flat_config,
    schema_of,
)
from weightclip.lab.records.legacy import upgrade_table
from weightclip.lab.records.record import DAMAGED, Facts, part_path, read_columns, read_facts, read_part, slice_sha256

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

log: Event = logging.getLogger(__name__).warning

_FILE = "\0file"  # a column name that no table has
_PART = re.compile(r"_[0-9a-f]{12}\..+\.parquet$")


class NoTableError(ValueError):
    """No run has the requested additional table."""


@overload
def load(
    *paths: str | Path, kind: Literal["polars"] = ..., table: str | None = ..., on_event: Event = ...
) -> pl.DataFrame: ...


@overload
def load(
    *paths: str | Path, kind: Literal["pandas"], table: str | None = ..., on_event: Event = ...
) -> pandas.DataFrame: ...


def load(
    *paths: str | Path,
    kind: Literal["polars", "pandas"] = "polars",
    table: str | None = None,
    on_event: Event = log,
) -> pl.DataFrame | pandas.DataFrame:
    """Load all results below the paths as one tidy table.

    Args:
        paths: directories with records, single records, and tidy tables saved as Parquet or CSV. Duplicate runs are
            loaded once.
        kind: "polars" or "pandas".
        table: name of an additional table of the records to load instead of the main one.
        on_event: called with a message for each file that is skipped because it is damaged or has an unknown format.
    """
    check_name("kind", kind, ("polars", "pandas"))
    found = load_any(paths, table, on_event)
    if found.is_empty():
        raise no_records(paths)
    return found if kind == "polars" else _to_pandas(found)


def load_any(paths: Sequence[str | Path], table: str | None = None, on_event: Event = log) -> pl.DataFrame:
    """The table of `load`; without rows if there are no results."""
    runs: dict[str, _Run] = {}
    saved: list[pl.DataFrame] = []
    schemas: list[Mapping[str, Any]] = []
    for path in _files(paths):
        try:
            found = _read(path)
        except (ValueError, OSError) as error:
            _skip(path, error, on_event)
        else:
            if isinstance(found, _Run):
                runs.setdefault(found.facts.values["identity"], _share_schema(found, schemas))
            else:
                saved.append(found)
    chosen, further = list(runs.values()), [one for one in saved if _is_additional(one)]
    if table is None:
        saved = [one for one in saved if not _is_additional(one)]
    elif chosen or saved:
        if not further:
            _check_table(table, chosen)
        chosen, saved = list(_additional_runs(chosen, table, on_event)), further
    combined = _concat_distinct([_tidy_table(chosen, on_event), *saved])
    return combined if combined.height else pl.DataFrame(schema=NO_RUNS)


def no_records(paths: Sequence[str | Path]) -> ValueError:
    """The error for paths without results."""
    return ValueError(f"no records were found under {', '.join(map(str, paths)) or 'no path'}")


@dataclass(frozen=True)
class _Run:
    """A record without its table: the file with the table, and the metadata."""

    path: str
    facts: Facts


def _files(paths: Iterable[str | Path]) -> Iterator[str]:
    for path in map(str, paths):
        if os.path.isdir(path):
            found = (os.path.join(where, name) for where, _, names in os.walk(path) for name in names)
            yield from sorted(name for name in found if name.endswith(".parquet") and not _PART.search(name))
        elif os.path.exists(path):
            yield path
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _skip(path: str, error: ValueError | OSError, on_event: Event) -> None:
    on_event(f"{path}: skipped: {error.strerror if isinstance(error, OSError) else error}")


def _read(path: str) -> _Run | pl.DataFrame:
    """A record without its table, or a saved tidy table."""
    if path.endswith(".csv"):
        return _read_saved(Path(path))
    with open(path, "rb") as file:
        content = file.read()
    facts = read_facts(content)
    return _read_saved(Path(path)) if facts is None else _Run(path, facts)


def _share_schema(run: _Run, schemas: list[Mapping[str, Any]]) -> _Run:
    """The run with the equal schema of an earlier run, if any. A store has thousands of records but few schemas."""
    schema = run.facts.values["schema"]
    for known in schemas:
        if known == schema:
            return replace(run, facts=replace(run.facts, values={**run.facts.values, "schema": known}))
    schemas.append(schema)
    return run


def _check_table(name: str, runs: Sequence[_Run]) -> None:
    available = {one for run in runs for one in run.facts.values.get("parts", {})}
    names = sorted(one.removesuffix(".parquet") for one in available if one.endswith(".parquet"))
    if not names:
        raise NoTableError(f"table: got {name!r}, but no run has additional tables")
    try:
        check_name("table", name, names)
    except ValueError as error:
        raise NoTableError(str(error)) from None


def _additional_runs(runs: Sequence[_Run], name: str, on_event: Event) -> Iterator[_Run]:
    """The runs that have an additional table with a name, with its file and columns instead of the main ones."""
    part = f"{name}.parquet"
    for run in runs:
        parts = run.facts.values.get("parts", {})
        if part not in parts:
            continue
        path = part_path(Path(run.path), part)
        try:
            columns = read_columns(read_part(Path(run.path), part, parts[part]))
        except (ValueError, OSError) as error:
            _skip(str(path), error, on_event)
        else:
            facts = replace(run.facts, sha256=None, columns=columns)  # the hash of the file has been checked
            yield _Run(str(path), facts)


def _tidy_table(runs: Sequence[_Run], on_event: Event) -> pl.DataFrame:
    """The tables of all runs, concatenated, with the columns that describe the runs."""
    if not runs:
        return pl.DataFrame()
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        groups.setdefault(run.facts.columns, []).append(run)
    rows = pl.concat([_read_tables(group, on_event) for group in groups.values()], how="diagonal_relaxed")
    rows = rows.drop("seed", strict=False)
    about = _run_columns([run.facts.values for run in runs])
    rows = rows.rename({name: f"table.{name}" for name in rows.columns if name in about.columns})
    about = about.with_columns(pl.Series(_FILE, [run.path for run in runs]))
    combined = rows.join(about, on=_FILE, maintain_order="left")
    return combined.select(*about.columns, *rows.drop(_FILE).columns).drop(_FILE)


def _read_tables(runs: Sequence[_Run], on_event: Event) -> pl.DataFrame:
    """The tables of runs with equal columns, and their file in the last column.

    All files are read at once. If this fails, the halves are read separately, down to the damaged file.
    """
    try:
        files = [run.path for run in runs]
        table = pl.scan_parquet(files, glob=False, include_file_paths=_FILE).collect().rechunk()
    except DAMAGED as error:
        if len(runs) == 1:
            _skip(runs[0].path, ValueError(f"it is damaged ({type(error).__name__})"), on_event)
            return pl.DataFrame(schema={_FILE: pl.String})
        middle = len(runs) // 2
        halves = [_read_tables(half, on_event) for half in (runs[:middle], runs[middle:])]
        return pl.concat(halves, how="diagonal")
    lengths = dict(table.group_by(_FILE, maintain_order=True).len().iter_rows())
    hashes = slice_sha256(table.drop(_FILE), (lengths.get(run.path, 0) for run in runs))
    changed = [run.path for run, sha256 in zip(runs, hashes, strict=True) if run.facts.sha256 not in (None, sha256)]
    for path in changed:
        _skip(path, ValueError("it changed after it was written"), on_event)
    if len(changed) == len(runs):
        return pl.DataFrame(schema={_FILE: pl.String})  # a changed file may have other columns
    return table.filter(~pl.col(_FILE).is_in(changed)) if changed else table


def _run_columns(facts: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """One row per run: the columns of the tidy table that describe it."""
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
    schemas = {id(fact["schema"]): fact["schema"] for fact in facts}
    schema_texts = {key: json.dumps(schema) for key, schema in schemas.items()}
    provenance = [
        {
            "data": fact["data"].get("name"),
            "data_kind": fact["data"].get("kind"),
            "checksum": fact["data"].get("checksum"),
            "official": fact["data"].get("official"),
            "seconds": fact["seconds"],
            **comparison_columns(fact),
            "schema": schema_texts[id(fact["schema"])],
            "identity": fact["identity"],
        }
        for fact in facts
    ]
    about = pl.concat([_frame(leading), _frame(configs), _frame(provenance)], how="horizontal")
    texts = [pl.col(name).cast(pl.String) for name in ("resumed", "deviations", "paper_setting")]
    return about.with_columns(*texts, pl.col("schema").cast(SCHEMA_TYPE))


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame({name: pl.Series([row.get(name) for row in rows], strict=False) for name in names})


def _hash(rules: str | None) -> str | None:
    return None if rules is None else hashlib.sha256(rules.encode()).hexdigest()[:12]


def _is_tidy(columns: Sequence[str]) -> bool:
    """Whether a table can be a tidy one, of this format or of format 2."""
    return {*FIRST, *LAST} - {*LAST[5:-1]} <= set(columns)


def _is_additional(table: pl.DataFrame) -> bool:
    """Whether a tidy table is an additional one, which lacks the x column of the main table."""
    parts = table.partition_by("experiment")
    return not any(schema_of(part).x_column in table.columns for part in parts)


def _read_saved(path: Path) -> pl.DataFrame:
    """Read a saved tidy table. CSV has no types: text fields remain text ("300"), empty columns become null."""
    try:
        table = _read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path, glob=False)
    except (pl.exceptions.PanicException, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error
    if not _is_tidy(table.columns):
        raise ValueError("it is neither a record of weightclip nor a table of records")
    return table.with_columns(pl.col("schema").cast(SCHEMA_TYPE)) if "schema" in table.columns else upgrade_table(table)


def _read_csv(path: Path) -> pl.DataFrame:
    plain = pl.read_csv(path, infer_schema=False)
    if not _is_tidy(plain.columns):
        return plain
    schemas = upgrade_table(plain) if "schema" not in plain.columns else plain
    parts = schemas.partition_by("experiment")
    text = {*TEXT, *(name for part in parts for name in schema_of(part).text_fields)} & set(plain.columns)
    table = pl.read_csv(path, infer_schema_length=None, schema_overrides=dict.fromkeys(text, pl.String))
    empty = [column.name for column in table if column.is_null().all() and column.name not in LAST]
    return table.with_columns(pl.lit(None).alias(name) for name in empty)


def _concat_distinct(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate the tables; a run in several tables is taken from the first one."""
    combined = pl.DataFrame()
    for table in (one for one in tables if one.height):
        if combined.height:
            table = table.join(combined, on="identity", how="anti", maintain_order="left")
        combined = pl.concat([combined, table], how="diagonal_relaxed")
    return combined


def _to_pandas(table: pl.DataFrame) -> pandas.DataFrame:
    try:
        return table.to_pandas()
    except ImportError as error:
        raise ValueError(f"kind: got 'pandas', which needs pandas and pyarrow ({error})") from error
