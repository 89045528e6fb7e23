"""How runs differ from the paper's, for whoever looks at their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from weightclip.lab.analysis.setups import columns_of
from weightclip.lab.experiment import OTHER
from weightclip.lab.records.tidy import flat_config
from weightclip.lab.registry import find_experiment
from weightclip.lab.text import settings_text

NOT_THE_PAPERS = "not the paper's setting"
SHORT = 50
"""Letters of a remark that fit below a figure."""

NOT_COMPARED = ("seed", "kappa", "kappa_rule", "decay", "sigma")
"""Searches vary the settings of remedies, and whoever shows a best one names it."""


def departures(row: Mapping[str, Any], papers: Mapping[str, Any]) -> dict[str, Any]:
    """What a run, as in a tidy table, has otherwise than the paper's configuration: its own values by name."""
    usual = flat_config(papers)
    names = dict.fromkeys((*usual, *(name for name in row if name.startswith(OTHER))))
    return {name: row.get(name) for name in names if name not in NOT_COMPARED and row.get(name) != usual.get(name)}


def remark(row: Mapping[str, Any], papers: Mapping[str, Any]) -> str:
    """The same as text; empty where nothing differs."""
    text = settings_text(departures(row, papers))
    return f"{NOT_THE_PAPERS}: {text}" if text else ""


def remarks(runs: pl.DataFrame) -> list[str]:
    """What its experiment remarks of each run in a tidy table, each once."""
    settings = runs.unique(columns_of(runs).setting, maintain_order=True)
    remark_on = find_experiment(runs["experiment"][0]).remark
    return list(dict.fromkeys(filter(None, map(remark_on, settings.iter_rows(named=True)))))


def marked(text: str, runs: pl.DataFrame) -> str:
    """A text about runs, with a further line where some of them are not the paper's: in what, if that is short."""
    found = remarks(runs)
    if not found:
        return text
    return f"{text}\n{found[0] if len(found) == 1 and len(found[0]) <= SHORT else NOT_THE_PAPERS}"
