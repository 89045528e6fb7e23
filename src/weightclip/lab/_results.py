"""The names of `weightclip.lab.results`, which is now `weightclip.lab.records` and `weightclip.lab.analysis`."""

from __future__ import annotations

from typing import Any

from weightclip.lab import analysis, records


def __getattr__(name: str) -> Any:
    return getattr(records if name in records.__all__ else analysis, name)
