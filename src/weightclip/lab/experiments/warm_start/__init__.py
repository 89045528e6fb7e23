"""Warm starting: CIFAR-10 in one stage or in two (section 4.1 of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab.experiments.warm_start.config import Config
    from weightclip.lab.experiments.warm_start.training import load, run_config

__all__ = ["Config", "load", "run_config"]

__getattr__, __dir__ = lazily(__name__, {"Config": "config", "load": "training", "run_config": "training"})
