"""The record of a run: one Parquet file with its table, and its provenance in the file's metadata.

Any Parquet reader opens the table. The metadata is one JSON object under the key `weightclip`. Additional tables and
arrays are separate files, which are written before the record.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from weightclip.lab.files import write_whole
from weightclip.lab.records.hashing import identity as identity
from weightclip.lab.records.hashing import to_json
from weightclip.lab.records.legacy import FORMATS, upgrade_facts
from weightclip.lab.records.schema import Schema

KEY, SHA256 = "weightclip", "weightclip-sha256"
FORMAT = 3
"""Version of the file format. Format 2 can also be read (`weightclip.lab.records.legacy`)."""

PACKAGES = ("weightclip", "torch", "numpy", "numba", "polars")

DAMAGED = (pl.exceptions.PanicException, Exception)
"""The exceptions that damaged Parquet raises; polars' panic is not an Exception."""

Resumed = Literal["never", "exact", "inexact", "restarted episodes"]
"""How a run was resumed: never, bit for bit, on another machine or with other versions, or with new episodes."""

INEXACT: Resumed = "inexact"
RESTARTED: Resumed = "restarted episodes"


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


@dataclass(frozen=True)
class Record:
    """One finished run.

    Args:
        schema: meaning of the table's columns.
        identity: result of `identity` for the configuration, data and rules.
        config: resolved configuration, including the seed.
        table: one row per task (or iteration, or epoch).
        data: name, origin and checksum of the data, and whether the checksum is official.
        seconds: run time over all sessions of an interrupted run.
        rules: source of the user's own update rules, if any.
        paper_setting: the paper's best setting for this problem and method; None if the paper has none.
        deviations: the settings that differ from the paper's, with this run's values.
        resumed: how the run was resumed; None in records of older versions.
        versions: versions of Python and of the relevant packages.
        platform: machine and operating system.
        tables: additional tables by name, such as one row per episode.
        arrays: arrays by name, such as a heatmap or final weights.
    """

    schema: Schema
    identity: str
    config: Mapping[str, Any]
    table: pl.DataFrame
    data: Mapping[str, Any]
    seconds: float
    rules: str | None = None
    paper_setting: Mapping[str, Any] | None = None
    deviations: Mapping[str, Any] = field(default_factory=dict)
    resumed: Resumed | None = "never"
    versions: Mapping[str, str | None] = field(default_factory=_versions)
    platform: str = field(default_factory=platform.platform)
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def experiment(self) -> str:
        return self.schema.experiment


def write_record(record: Record, path: str | Path) -> None:
    """Write the record atomically. An OSError names the file."""
    path = Path(path)
    parts = {f"{name}.parquet": _to_parquet(table, {}) for name, table in record.tables.items()}
    parts |= {f"{name}.npy": _to_npy(array) for name, array in record.arrays.items()}
    for part, content in parts.items():
        write_whole(part_path(path, part), content)
    facts = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in ("table", "tables", "arrays")}
    facts |= {"format": FORMAT, "experiment": record.experiment, "schema": record.schema.as_dict()}
    if parts:
        facts["parts"] = {part: hashlib.sha256(content).hexdigest() for part, content in parts.items()}
    text = to_json(facts)
    hashes = f"{_sha256(text)} {table_sha256(record.table)}"
    write_whole(path, _to_parquet(record.table, {KEY: text, SHA256: hashes}))


@dataclass(frozen=True)
class Facts:
    """The metadata of a record.

    Args:
        values: the metadata as in the file (format 3).
        sha256: hash that the table must have; None for records of format 2, which are not checked.
        columns: names and types of the table's columns as the file has them; equal texts mean equal columns.
    """

    values: Mapping[str, Any]
    sha256: str | None
    columns: str

    def check(self, table: pl.DataFrame) -> None:
        """Raise a ValueError if the table changed after the record was written."""
        if self.sha256 is not None and table_sha256(table) != self.sha256:
            raise ValueError("it changed after it was written")


def read_facts(content: bytes) -> Facts | None:
    """The metadata of a record, given the content of its file. None for other Parquet files.

    Raises:
        ValueError: the file is damaged, or has an unknown format.
    """
    try:
        metadata = pl.read_parquet_metadata(content)
        text = metadata.get(KEY)
        values: dict[str, Any] = {} if text is None else json.loads(text)
        version = None if text is None else values["format"]
        columns = "" if text is None else _columns(content, metadata)
    except DAMAGED as error:
        raise ValueError(f"it is damaged, or not Parquet ({type(error).__name__})") from error
    if text is None:
        return None
    if SHA256 in metadata:
        of_text, _, of_table = metadata[SHA256].partition(" ")
        if of_text != _sha256(text):
            raise ValueError("it changed after it was written")
        if version == FORMAT:
            return Facts(values, of_table, columns)
    elif version in FORMATS:
        return Facts(upgrade_facts(values), None, columns)
    raise ValueError(f"it has format {version}, expected {FORMAT}")


def read_columns(content: bytes) -> str:
    """The text `Facts.columns` of any Parquet file. A ValueError reports a damaged file."""
    try:
        return _columns(content, pl.read_parquet_metadata(content))
    except DAMAGED as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _columns(content: bytes, metadata: Mapping[str, str]) -> str:
    return metadata.get("ARROW:schema") or str(pl.read_parquet_schema(content))  # reading the schema is slow


class NotARecordError(ValueError):
    """A Parquet file that is not a record."""


def read_record(path: str | Path) -> Record:
    """Read a record. A ValueError names a file that is damaged or not a record."""
    path = Path(path)
    content = path.read_bytes()
    try:
        facts = read_facts(content)
        if facts is None:
            raise NotARecordError
        table = pl.read_parquet(io.BytesIO(content))
        facts.check(table)
        tables, arrays = _read_parts(path, facts.values.get("parts", {}))
        if facts.sha256 is None:  # without a hash, only an error shows damage
            return _record(facts.values, table, tables, arrays)
    except MemoryError:
        raise
    except DAMAGED as error:
        if isinstance(error, NotARecordError):
            raise ValueError(f"{path}: it is not a record of weightclip") from None
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise ValueError(f"{path}: the file is damaged ({reason}); delete it and run again") from error
    # The hash is correct: an error from here on is a bug. As damage, it would repeat and overwrite finished runs.
    return _record(facts.values, table, tables, arrays)


def _record(
    values: Mapping[str, Any],
    table: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    arrays: Mapping[str, NDArray[Any]],
) -> Record:
    """The record with this metadata and content."""
    known = {f.name: values[f.name] for f in fields(Record) if f.name in values}
    made = {"schema": Schema.from_dict(values["schema"]), "config": _from_json(values["config"]), "table": table}
    return Record(**{**known, **made, "tables": tables, "arrays": arrays})


def part_path(record: Path, part: str) -> Path:
    """The file of an additional table (`NAME.parquet`) or array (`NAME.npy`) of a record."""
    return record.with_suffix(f".{part}")


def read_part(record: Path, part: str, sha256: str) -> bytes:
    """The content of a part. Raise a ValueError if it changed after it was written."""
    content = part_path(record, part).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("a part changed after it was written")
    return content


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def table_sha256(table: pl.DataFrame) -> str:
    """The SHA-256 of a table. Parquet itself does not detect a flipped bit.

    The hash covers the name, type, validity and values of each column, in the Arrow format. It depends neither on the
    encoding of the file nor on the version of polars.
    """
    return next(slice_sha256(table, (table.height,)))


def slice_sha256(table: pl.DataFrame, heights: Iterable[int]) -> Iterator[str]:
    """The SHA-256 of consecutive slices of a table with these heights.

    Columns are converted once for all slices, which makes loading thousands of short tables faster.
    """
    columns = [(f"\0{column.name}\0{column.dtype}\0".encode(), column, _plain_numbers(column)) for column in table]
    first = 0
    for height in heights:
        found = hashlib.sha256()
        for name, column, numbers in columns:
            found.update(name)
            if numbers is None:
                found.update(_column_bytes(column.slice(first, height)))
            else:
                found.update(numbers[first : first + height].data)
        yield found.hexdigest()
        first += height


def _plain_numbers(column: pl.Series) -> NDArray[Any] | None:
    """The values of a column of numbers without nulls, whose memory is hashed as it is; None for other columns."""
    if column.null_count() or not (column.dtype.is_integer() or column.dtype.is_float() or column.dtype == pl.Boolean):
        return None
    return np.ascontiguousarray(column.to_numpy())


def _column_bytes(column: pl.Series) -> bytes:
    valid = b""
    if column.null_count():
        valid = column.is_null().to_numpy().tobytes()
        column = column.drop_nulls()
    return valid + ("\0".join(column).encode() if column.dtype == pl.String else column.to_numpy().tobytes())


def _read_parts(path: Path, parts: Mapping[str, str]) -> tuple[dict[str, pl.DataFrame], dict[str, NDArray[Any]]]:
    tables, arrays = {}, {}
    for part, sha256 in parts.items():
        content = io.BytesIO(read_part(path, part, sha256))
        name, _, kind = part.rpartition(".")
        if kind == "parquet":
            tables[name] = pl.read_parquet(content)
        else:
            arrays[name] = np.load(content, allow_pickle=False)
    return tables, arrays


def _to_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _to_parquet(table: pl.DataFrame, metadata: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer, metadata=metadata)
    return buffer.getvalue()


def _from_json(value: Any) -> Any:
    """The inverse of `hashing.to_json`, after parsing."""
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    return float(value) if value in ("inf", "-inf", "nan") else value
