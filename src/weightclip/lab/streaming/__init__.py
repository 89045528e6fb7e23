"""Streaming learning: one sample at a time, in tasks that change (section 4.2 of the paper)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Config": "config",
    "PROBLEMS": "problem",
    "Rule": "rules",
    "draw_run": "figures",
    "run": "experiment",
    "run_config": "experiment",
}

__all__ = ["PROBLEMS", "Config", "Rule", "draw_run", "run", "run_config"]


def __getattr__(name: str) -> Any:
    # Late, so that the command line can name the problems without importing what runs them.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
