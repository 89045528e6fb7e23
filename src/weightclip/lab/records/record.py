"""A run's record: one Parquet file with its table and, in the file's metadata, how it came about.

Any reader of Parquet opens the table. The metadata is one JSON object under the key `weightclip`. A run with more to
tell has further tables and arrays in files beside it, which are there whole before the record is.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from weightclip.lab.files import write_whole

KEY, SEAL = "weightclip", "weightclip-seal"
FORMAT = 2
"""Goes up when records, or what their numbers mean, change; then no older record or checkpoint stands for a run."""

PACKAGES = ("weightclip", "torch", "numpy", "numba", "polars")


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
        experiment: which kind of run: "streaming".
        identity: what `identity` gives for its configuration, data and rules.
        config: the full configuration, seed included, with nothing left open.
        table: what was measured, a row per task (or iteration, or epoch).
        data: the data's name, where it came from, its checksum, and whether that is the official one.
        seconds: the time it took, over all sessions of an interrupted run.
        rules: the source of the user's own update rules, if there are any.
        versions: of Python and of the packages that matter.
        platform: the machine and its operating system.
        tables: further ones by name, such as a row per episode.
        arrays: by name, such as a heatmap or final weights.
    """

    experiment: str
    identity: str
    config: Mapping[str, Any]
    table: pl.DataFrame
    data: Mapping[str, Any]
    seconds: float
    rules: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=_versions)
    platform: str = field(default_factory=platform.platform)
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def identity(experiment: str, config: Mapping[str, Any], checksum: str | None, rules: str | None = None) -> str:
    """Twelve hexadecimal digits that stand for what determines a run's numbers, by content.

    Equal for equal experiments, configurations, data and rules, wherever these are stored: of a file with rules what
    the rules do counts (`kernel.rules_text`), not its path. An experiment without data has no checksum.
    """
    facts = {"format": FORMAT, "experiment": experiment, "config": {**config, "rules": rules}, "data": checksum}
    return hashlib.sha256(_to_json(facts).encode()).hexdigest()[:12]


def write_record(record: Record, path: str | Path) -> None:
    """Write the record whole or not at all; an OSError names the file."""
    path = Path(path)
    parts = {f"{name}.parquet": _to_parquet(table, {}) for name, table in record.tables.items()}
    parts |= {f"{name}.npy": _to_npy(array) for name, array in record.arrays.items()}
    for part, content in parts.items():
        write_whole(part_path(path, part), content)
    facts = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in ("table", "tables", "arrays")}
    if parts:
        facts["parts"] = {part: hashlib.sha256(content).hexdigest() for part, content in parts.items()}
    text = _to_json({"format": FORMAT, **facts})
    sealed = seal(_to_parquet(record.table, {KEY: text}), schema_text(record.table.schema), text)
    write_whole(path, _to_parquet(record.table, {KEY: text, SEAL: sealed}))


def read_record(path: str | Path) -> Record:
    """The record in a file; a ValueError names a file that is damaged or not a record."""
    path = Path(path)
    content = path.read_bytes()
    try:
        metadata = pl.read_parquet_metadata(io.BytesIO(content))
        if KEY in metadata:
            table = pl.read_parquet(io.BytesIO(content))
            if metadata.get(SEAL) != seal(content, schema_text(table.schema), metadata[KEY]):
                raise ValueError("it changed after it was written")
            facts = json.loads(metadata[KEY])
            facts.pop("format")
            tables, arrays = _read_parts(path, facts.pop("parts", {}))
            return Record(**{**facts, "config": _loose(facts["config"])}, table=table, tables=tables, arrays=arrays)
        reason = "it is not a record of weightclip"
    except (pl.exceptions.PanicException, Exception) as error:  # a panic is no Exception
        reason = f"the file is damaged ({type(error).__name__})"
    raise ValueError(f"{path}: {reason}; delete it and run again")


def part_path(record: Path, part: str) -> Path:
    """The file beside a record's with one of its further tables (`NAME.parquet`) or arrays (`NAME.npy`)."""
    return record.with_suffix(f".{part}")


def _read_parts(path: Path, parts: Mapping[str, str]) -> tuple[dict[str, pl.DataFrame], dict[str, NDArray[Any]]]:
    tables, arrays = {}, {}
    for part, digest in parts.items():
        content = part_path(path, part).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("a part changed after it was written")
        name, _, kind = part.rpartition(".")
        if kind == "parquet":
            tables[name] = pl.read_parquet(io.BytesIO(content))
        else:
            arrays[name] = np.load(io.BytesIO(content), allow_pickle=False)
    return tables, arrays


def _to_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _to_parquet(table: pl.DataFrame, metadata: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer, metadata=metadata)
    return buffer.getvalue()


def schema_text(schema: Mapping[str, Any]) -> str:
    """A table's columns and their kinds, as the seal has them."""
    return repr([(name, str(kind)) for name, kind in schema.items()])


def seal(content: bytes, schema: str, text: str) -> str:
    """A hash of all that a record says: Parquet itself does not notice a bit that flipped on disk.

    The file ends with its footer, which holds the metadata, the footer's length and four more bytes; what comes before
    is the table's data, which does not depend on the metadata.
    """
    footer = int.from_bytes(content[-8:-4], "little")
    return hashlib.sha256(content[: -8 - footer] + (schema + text).encode()).hexdigest()


def _to_json(value: Any) -> str:
    """Canonical and strict JSON: keys in order, and infinity, which JSON lacks, as "inf"."""
    return json.dumps(_strict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value


def _loose(value: Any) -> Any:
    """The reverse of `_strict`."""
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    return float(value) if value in ("inf", "-inf", "nan") else value
