"""Results: metrics, records, and the look of all figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip.lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.results.metrics import METRICS, Metric
    from weightclip.lab.results.record import Record, read_record, write_record

__all__ = ["METRICS", "Metric", "Record", "read_record", "write_record"]

# Late, because reading records imports polars, which the metrics do without.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "METRICS": "metrics",
        "Metric": "metrics",
        "Record": "record",
        "read_record": "record",
        "write_record": "record",
    },
)
