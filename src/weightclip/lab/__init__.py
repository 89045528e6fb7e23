"""The lab: the paper's experiments. It requires the `lab` extra: pip install "weightclip[lab]"."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightclip._lazy import lazily
from weightclip._renamed import import_old_modules, new_module

if TYPE_CHECKING:
    from weightclip.lab import analysis, data, experiments, networks, records, report, sweep
    from weightclip.lab._run import run
    from weightclip.lab.records.table import load

__all__ = ["analysis", "data", "experiments", "load", "networks", "records", "report", "run", "sweep"]
_find, __dir__ = lazily(__name__, {name: name for name in __all__} | {"load": "records.table", "run": "_run"})
import_old_modules()


def __getattr__(name: str) -> Any:
    old = f"{__name__}.{name}"
    return _find(name) if new_module(old) is None else import_module(old)
