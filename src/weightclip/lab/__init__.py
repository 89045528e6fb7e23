"""The laboratory: what runs the paper's experiments. It needs the `lab` extra: pip install "weightclip[lab]"."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["data", "nets", "results", "streaming"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
