"""Results: records, the tidy table of many of them, selection, statistics, and the look of all figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip.lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.results.best import best_settings
    from weightclip.lab.results.loading import load
    from weightclip.lab.results.metrics import Metric
    from weightclip.lab.results.peaks import peaks
    from weightclip.lab.results.problems import across_problems
    from weightclip.lab.results.record import Record, read_record, write_record
    from weightclip.lab.results.selection import best_runs, score_runs, score_settings, select
    from weightclip.lab.results.setups import main_setup, where
    from weightclip.lab.results.statistics import Estimate, interval, iqm, mean_and_error, sensitivity, trend

__all__ = [
    "Estimate",
    "Metric",
    "Record",
    "across_problems",
    "best_runs",
    "best_settings",
    "interval",
    "iqm",
    "load",
    "main_setup",
    "mean_and_error",
    "peaks",
    "read_record",
    "score_runs",
    "score_settings",
    "select",
    "sensitivity",
    "trend",
    "where",
    "write_record",
]

# Late, because reading records imports polars, which the metrics do without.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "Estimate": "statistics",
        "Metric": "metrics",
        "Record": "record",
        "across_problems": "problems",
        "best_runs": "selection",
        "best_settings": "best",
        "interval": "statistics",
        "iqm": "statistics",
        "load": "loading",
        "main_setup": "setups",
        "mean_and_error": "statistics",
        "peaks": "peaks",
        "read_record": "record",
        "score_runs": "selection",
        "score_settings": "selection",
        "select": "selection",
        "sensitivity": "statistics",
        "trend": "statistics",
        "where": "setups",
        "write_record": "record",
    },
)
