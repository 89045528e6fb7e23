"""Analysis of tidy tables: selection of settings, statistics over seeds, and curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.analysis.best import best_settings
    from weightclip.lab.analysis.curves import peaks
    from weightclip.lab.analysis.selection import best_runs, score_runs, score_settings, select
    from weightclip.lab.analysis.setups import main_setup, where
    from weightclip.lab.analysis.statistics import (
        Estimate,
        across_problems,
        interval,
        iqm,
        mean_and_error,
        sensitivity,
        trend,
    )

__all__ = [
    "Estimate",
    "across_problems",
    "best_runs",
    "best_settings",
    "interval",
    "iqm",
    "main_setup",
    "mean_and_error",
    "peaks",
    "score_runs",
    "score_settings",
    "select",
    "sensitivity",
    "trend",
    "where",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Estimate": "statistics",
        "across_problems": "statistics",
        "best_runs": "selection",
        "best_settings": "best",
        "interval": "statistics",
        "iqm": "statistics",
        "main_setup": "setups",
        "mean_and_error": "statistics",
        "peaks": "curves",
        "score_runs": "selection",
        "score_settings": "selection",
        "select": "selection",
        "sensitivity": "statistics",
        "trend": "statistics",
        "where": "setups",
    },
)
