"""Records of finished runs: one Parquet file each, and one tidy table of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.records.loading import load
    from weightclip.lab.records.metrics import Metric
    from weightclip.lab.records.record import Record, read_record, write_record

__all__ = ["Metric", "Record", "load", "read_record", "write_record"]

# Lazy: reading records imports polars, which metric definitions do not need.
__getattr__, __dir__ = lazily(
    __name__,
    {"Metric": "metrics", "Record": "record", "load": "loading", "read_record": "record", "write_record": "record"},
)
