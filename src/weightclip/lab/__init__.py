"""The laboratory: the paper's experiments. It needs the `lab` extra: pip install "weightclip[lab]"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightclip._renamed import import_old_modules
from weightclip.lazy import lazily

if TYPE_CHECKING:
    from weightclip.lab import analysis, data, experiments, networks, records, report, sweep
    from weightclip.lab.records.loading import load
    from weightclip.lab.running import run

__all__ = ["analysis", "data", "experiments", "load", "networks", "records", "report", "run", "sweep"]
__getattr__, __dir__ = lazily(
    __name__, {name: name for name in __all__} | {"load": "records.loading", "run": "running"}
)
import_old_modules()
