"""Streaming learning: one sample at a time, in tasks that change (section 4.2 of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip.lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.streaming.config import Config
    from weightclip.lab.streaming.experiment import run, run_config
    from weightclip.lab.streaming.figures import draw_run
    from weightclip.lab.streaming.problem import PROBLEMS, Problem
    from weightclip.lab.streaming.rules import Rule

__all__ = ["PROBLEMS", "Config", "Problem", "Rule", "draw_run", "run", "run_config"]

# Late, so that the command line can name the problems without importing what runs them.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "PROBLEMS": "problem",
        "Problem": "problem",
        "Config": "config",
        "Rule": "rules",
        "draw_run": "figures",
        "run": "experiment",
        "run_config": "experiment",
    },
)
