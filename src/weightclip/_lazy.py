"""Packages that import their public names on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from weightclip._renamed import find_old_name


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; names in `weightclip._renamed` resolve with a warning.

    Args:
        package: the package's `__name__`.
        homes: public name -> the submodule that defines it; the name of a submodule -> itself.
    """

    def getattr_(name: str) -> Any:
        if name not in homes:
            return find_old_name(package, name)
        module = import_module(f"{package}.{homes[name]}")
        return module if name == homes[name] else getattr(module, name)

    return getattr_, lambda: sorted(homes)
