"""The laboratory: what runs the paper's experiments. It needs the `lab` extra: pip install "weightclip[lab]"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip.lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab import data, nets, report, results, streaming, sweep
    from weightclip.lab.running import run

__all__ = ["data", "nets", "report", "results", "run", "streaming", "sweep"]
__getattr__, __dir__ = lazily(__name__, {name: name for name in __all__} | {"run": "running"})
