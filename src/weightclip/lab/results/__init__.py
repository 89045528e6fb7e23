"""Results: metrics, records, and the look of all figures."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "METRICS": "metrics",
    "Metric": "metrics",
    "Record": "record",
    "read_record": "record",
    "write_record": "record",
}

__all__ = ["METRICS", "Metric", "Record", "read_record", "write_record"]


def __getattr__(name: str) -> Any:
    # Late, because reading records imports polars, which the metrics do without.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
