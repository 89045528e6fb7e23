"""Streaming learning: one sample at a time, in tasks that change (section 4.2 of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.experiments.streaming.config import Config
    from weightclip.lab.experiments.streaming.figures import draw_run
    from weightclip.lab.experiments.streaming.problem import PROBLEMS, Problem
    from weightclip.lab.experiments.streaming.rules import Rule
    from weightclip.lab.experiments.streaming.training import run, run_config

__all__ = ["PROBLEMS", "Config", "Problem", "Rule", "draw_run", "run", "run_config"]

# Lazy, so that the command line can list the problems without importing the training code.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "PROBLEMS": "problem",
        "Problem": "problem",
        "Config": "config",
        "Rule": "rules",
        "draw_run": "figures",
        "run": "training",
        "run_config": "training",
    },
)
