"""Loading: the records of a store, or tables that were saved before, become one tidy table."""

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
from weightclip.lab.experiment import Event
from weightclip.lab.records.record import FORMAT, KEY, SEAL, part_path, schema_text, seal
from weightclip.lab.records.saved import is_further, read_saved
from weightclip.lab.records.tidy import NO_RUNS, run_columns

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

log: Event = logging.getLogger(__name__).warning

_FILE = "\0file"  # a column that no table has
_PART = re.compile(r"_[0-9a-f]{12}\..+\.parquet$")

FAILURES = (pl.exceptions.PanicException, Exception)
"""What damaged Parquet raises; a panic is no Exception."""


class NoTableError(ValueError):
    """No run has the further table that was asked for."""


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
    """One tidy table (`weightclip.lab.records.tidy`) of all results under the paths.

    Args:
        paths: directories, which are searched for records; single records; tidy tables that were saved as CSV or
            Parquet. A run that is in several of them counts once.
        kind: of the table.
        table: the name of a further table of the records, to be read instead of their main one. Of tables that were
            saved, the further ones are taken then, else the main ones.
        on_event: called with a line for each file that is left out: damaged, foreign, or of another format.
    """
    check_name("kind", kind, ("polars", "pandas"))
    found = load_any(paths, table, on_event)
    if found.is_empty():
        raise no_records(paths)
    return found if kind == "polars" else _to_pandas(found)


def load_any(paths: Sequence[str | Path], table: str | None = None, on_event: Event = log) -> pl.DataFrame:
    """What `load` gives, but a table without rows where there are no results."""
    runs: dict[str, _Run] = {}
    saved: list[pl.DataFrame] = []
    known: list[str] = []
    for path in _files(paths):
        try:
            found = _read(path, known)
        except (ValueError, OSError) as error:
            _leave_out(path, error, on_event)
        else:
            if isinstance(found, _Run):
                runs.setdefault(found.facts["identity"], found)
            else:
                saved.append(found)
    chosen, further = list(runs.values()), [one for one in saved if is_further(one)]
    if table is None:
        saved = [one for one in saved if not is_further(one)]
    elif chosen or saved:
        if not further:
            _check_table(table, chosen)
        chosen, saved = list(_further(chosen, table, known, on_event)), further
    together = _without_repeats([_tidy_table(chosen, known, on_event), *saved])
    return together if together.height else pl.DataFrame(schema=NO_RUNS)


def no_records(paths: Sequence[str | Path]) -> ValueError:
    """What to raise where there are no results."""
    return ValueError(f"no records were found under {', '.join(map(str, paths)) or 'no path at all'}")


@dataclass(frozen=True)
class _Run:
    """A record without its table: the file with the table, the number of its columns in a list, and the metadata."""

    path: str
    columns: int
    facts: Mapping[str, Any]


def _files(paths: Iterable[str | Path]) -> Iterator[str]:
    for path in map(str, paths):
        if os.path.isdir(path):
            found = (os.path.join(where, name) for where, _, names in os.walk(path) for name in names)
            yield from sorted(name for name in found if name.endswith(".parquet") and not _PART.search(name))
        elif os.path.exists(path):
            yield path
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _leave_out(path: str, error: ValueError | OSError, on_event: Event) -> None:
    on_event(f"{path}: left out: {error.strerror if isinstance(error, OSError) else error}")


def _read(path: str, known: list[str]) -> _Run | pl.DataFrame:
    """The run in a file, or the tidy table that was saved there; a ValueError says why there is neither.

    To read a file's columns takes longer than all else here. The seal proves them: it fits those `known` from other
    files, or they are read, and known from then on.
    """
    if path.endswith(".csv"):
        return read_saved(Path(path))
    with open(path, "rb") as file:
        content = file.read()
    try:
        metadata = pl.read_parquet_metadata(content)
        text, sealed = metadata.get(KEY), metadata.get(SEAL)
        facts: Any = None if text is None else json.loads(text)
        told = None if text is None else facts["format"]
    except FAILURES as error:
        raise ValueError(f"it is damaged, or not Parquet ({type(error).__name__})") from error
    if text is None:
        return read_saved(Path(path))
    if told != FORMAT:
        raise ValueError(f"it has format {told}, not {FORMAT}")
    for number, columns in enumerate(known):
        if seal(content, columns, text) == sealed:
            return _Run(path, number, facts)
    columns = _columns(content)
    if seal(content, columns, text) != sealed:
        raise ValueError("it changed after it was written")
    known.append(columns)
    return _Run(path, len(known) - 1, facts)


def _columns(content: bytes) -> str:
    try:
        return schema_text(pl.read_parquet_schema(content))
    except FAILURES as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _check_table(name: str, runs: Sequence[_Run]) -> None:
    there = {one for run in runs for one in run.facts.get("parts", {})}
    names = sorted(one.removesuffix(".parquet") for one in there if one.endswith(".parquet"))
    if not names:
        raise NoTableError(f"table: got {name!r}, but no run has further tables")
    try:
        check_name("table", name, names)
    except ValueError as error:
        raise NoTableError(str(error)) from None


def _further(runs: Sequence[_Run], name: str, known: list[str], on_event: Event) -> Iterator[_Run]:
    """The runs that have a further table of that name, with its file and columns in place of the main one's."""
    part = f"{name}.parquet"
    for run in runs:
        if part not in run.facts.get("parts", {}):
            continue
        path = part_path(Path(run.path), part)
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != run.facts["parts"][part]:
                raise ValueError("it changed after it was written")
            columns = _columns(content)
        except (ValueError, OSError) as error:
            _leave_out(str(path), error, on_event)
        else:
            if columns not in known:
                known.append(columns)
            yield replace(run, path=str(path), columns=known.index(columns))


def _tidy_table(runs: Sequence[_Run], known: Sequence[str], on_event: Event) -> pl.DataFrame:
    """The tables of all runs below each other, beside what is known of the runs."""
    if not runs:
        return pl.DataFrame()
    files: dict[int, list[str]] = {}
    for run in runs:
        files.setdefault(run.columns, []).append(run.path)
    tables = [_read_tables(some, known[columns], on_event) for columns, some in files.items()]
    rows = pl.concat(tables, how="diagonal_relaxed").drop("seed", strict=False)
    about = run_columns([run.facts for run in runs])
    rows = rows.rename({name: f"table.{name}" for name in rows.columns if name in about.columns})
    about = about.with_columns(pl.Series(_FILE, [run.path for run in runs]))
    together = rows.join(about, on=_FILE, maintain_order="left")
    return together.select(*about.columns, *rows.drop(_FILE).columns).drop(_FILE)


def _read_tables(files: list[str], columns: str, on_event: Event) -> pl.DataFrame:
    """The tables in files with these columns, and at last the file; all at once, or, where that fails, half by half."""
    try:
        table = pl.scan_parquet(files, glob=False, include_file_paths=_FILE).collect().rechunk()
        if schema_text(table.drop(_FILE).schema) == columns:
            return table
        reason = "its columns changed"
    except FAILURES as error:
        reason = f"it is damaged ({type(error).__name__})"
    if len(files) == 1:
        _leave_out(files[0], ValueError(reason), on_event)
        return pl.DataFrame(schema={_FILE: pl.String})
    middle = len(files) // 2
    halves = [_read_tables(half, columns, on_event) for half in (files[:middle], files[middle:])]
    return pl.concat(halves, how="diagonal")


def _without_repeats(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """All tables below each other, each run from the first that has it."""
    together = pl.DataFrame()
    for table in (one for one in tables if one.height):
        if together.height:
            table = table.join(together, on="identity", how="anti", maintain_order="left")
        together = pl.concat([together, table], how="diagonal_relaxed")
    return together


def _to_pandas(table: pl.DataFrame) -> pandas.DataFrame:
    try:
        return table.to_pandas()
    except ImportError as error:
        raise ValueError(f"kind: got 'pandas', which needs pandas and pyarrow ({error})") from error
