"""What records say of experience that a simulator made: there is no file whose checksum could be told."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def simulator(name: str, packages: Sequence[str]) -> dict[str, Any]:
    """The facts on the data of a run in an environment or a game of that name, made by these packages."""
    made_by = ", ".join(f"{package} {_version(package)}" for package in packages)
    return {"name": name, "kind": "simulator", "location": made_by, "checksum": None, "official": None}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # not every environment needs all of them
        return "not installed"
