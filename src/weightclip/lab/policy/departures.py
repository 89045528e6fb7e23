"""How runs differ from the paper's, for whoever looks at their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weightclip.lab.experiment import OTHER
from weightclip.lab.policy.config import Config, resolve
from weightclip.lab.results.text import settings_text
from weightclip.lab.results.tidy import flat_config

NOT_THE_PAPERS = "not the paper's setting"
NOT_COMPARED = ("seed", "kappa", "decay", "sigma")
"""Searches vary the settings of remedies, and whoever shows a best one names it."""


def departures(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has otherwise than the paper's in its environment with its method: its own values by name.

    A run is told as in a tidy table. The paper does not say how long its runs are: the default length counts as its.
    """
    usual = flat_config(_usual(row).facts())
    names = dict.fromkeys((*usual, *(name for name in row if name.startswith(OTHER))))
    return {name: row.get(name) for name in names if name not in NOT_COMPARED and row.get(name) != usual.get(name)}


def remark(row: Mapping[str, Any]) -> str:
    """The same as text; empty where nothing differs."""
    text = settings_text(departures(row))
    return f"{NOT_THE_PAPERS}: {text}" if text else ""


def _usual(row: Mapping[str, Any]) -> Config:
    try:
        return resolve(Config(env=row["env"], method=row["method"]))
    except ValueError:  # a method without a usual step size: the rest can be compared
        same = resolve(Config(env=row["env"], method="adam"))
        return replace(same, method=row["method"], lr=row["lr"], settings={}, bounds=row.get("bounds"))
