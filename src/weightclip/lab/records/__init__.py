"""Records of finished runs: one Parquet file each, and one tidy table of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.records.record import Record, read_record, write_record
    from weightclip.lab.records.schema import Metric, Schema
    from weightclip.lab.records.table import load

__all__ = ["Metric", "Record", "Schema", "load", "read_record", "write_record"]

# Lazy: reading records imports polars, which schemas do not need.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "Metric": "schema",
        "Record": "record",
        "Schema": "schema",
        "load": "table",
        "read_record": "record",
        "write_record": "record",
    },
)
