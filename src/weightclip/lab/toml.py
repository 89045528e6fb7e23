"""Reading TOML: the presets in an experiment's folder, and files of users."""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(text: str) -> dict[str, Any]:
    """The tables in a text; a ValueError says what is no TOML in it."""
    return tomllib.loads(text)


@cache
def packaged_presets(package: str) -> dict[str, Any]:
    """The tables of a package's `presets.toml`."""
    return read_toml((files(package) / "presets.toml").read_text(encoding="utf-8"))
