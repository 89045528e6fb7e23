"""Legends and captions of figures: kappa, the number of seeds, and the settings that differ from the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import polars as pl

from weightclip.lab.analysis.setups import NOT_THE_PAPERS, columns_of
from weightclip.lab.plotting.style import Style, style_of
from weightclip.lab.records.columns import CUT_SHORT
from weightclip.lab.text import kappa_text, list_text

ONE_SEED = "one seed"

BARS = "standard error as bars"

KAPPA = ("kappa", "kappa_rule")
"""Columns of a tidy table with clipping ranges; records of older versions do not have the second."""


def styles_of(runs: pl.DataFrame) -> dict[str, Style]:
    """Method -> style, in the paper's order. The label shows kappa if it is the same in all runs of the method."""
    kappas = kappas_of(runs)
    methods = columns_of(runs).schema.ordered_methods(runs["method"].cast(pl.String))
    return {method: with_kappas(style_of(method), kappas.get(method, ())) for method in methods}


def with_kappas(style: Style, kappas: Iterable[str]) -> Style:
    """The style with kappa in its label, if there is exactly one."""
    found = list(kappas)
    return replace(style, label=f"{style.label}, {found[0]}") if len(found) == 1 else style


def kappas_of(runs: pl.DataFrame, panel: str = "problem") -> dict[str, dict[str, list[str]]]:
    """Method -> kappa as text -> values of the column `panel` where the method has this kappa."""
    found: dict[str, dict[str, list[str]]] = {}
    columns = [name for name in KAPPA if name in runs.columns]
    for method, value, *kappa in runs.select("method", panel, *columns).unique(maintain_order=True).iter_rows():
        if text := kappa_text(*kappa):
            found.setdefault(method, {}).setdefault(text, []).append(value)
    return found


def caption(
    *lines: str, runs: pl.DataFrame, panel: str = "problem", name: Callable[[str], str] = str, kappas: bool = True
) -> str:
    """The lines, followed by kappas that differ between panels and the settings that differ from the paper's.

    Args:
        lines: first lines of the caption; empty ones are omitted.
        runs: tidy table of the drawn runs.
        panel: column whose values have a panel each.
        name: returns the name of a panel.
        kappas: list kappas that differ between panels; False for a figure that shows each of them.
    """
    found = kappas_of(runs, panel) if kappas else {}
    several = columns_of(runs).schema.ordered_methods(method for method, texts in found.items() if len(texts) > 1)
    by_method = (f"{style_of(method).label}: {by_panel(found[method], name)}" for method in several)
    return "\n".join(filter(None, (*lines, *by_method, _deviations(runs, panel, name))))


def by_panel(texts: Mapping[str, Iterable[str]], name: Callable[[str], str] = str) -> str:
    """Texts with the names of their panels: `κ = 1 (MNIST), κ = 3 (EMNIST and mini-ImageNet)`."""
    return ", ".join(f"{text} ({list_text([name(one) for one in panels])})" for text, panels in texts.items())


def _deviations(runs: pl.DataFrame, panel: str, name: Callable[[str], str]) -> str:
    """The settings that differ from the paper's, with their panels if these are not all; empty if there are none."""
    found: dict[str, list[str]] = {}
    values = runs[panel].unique(maintain_order=True).to_list()
    for value, text in runs.select(panel, "deviations").unique(maintain_order=True).drop_nulls().iter_rows():
        found.setdefault(text, []).append(value)
    texts = (text if len(where) == len(values) else by_panel({text: where}, name) for text, where in found.items())
    listed = "; ".join(texts)
    return listed and f"{NOT_THE_PAPERS}: {listed}"


def seeds_caption(data: pl.DataFrame, error: str = "standard error shaded") -> str:
    """The number of seeds averaged, and the meaning of the shading or the error bars if there are any."""
    number = seed_count_text(data["seeds"])
    shading = f", {error}" if error else ""
    marked = "; open circle: task cut short" if CUT_SHORT in data.columns and data[CUT_SHORT].any() else ""
    return (number if number == ONE_SEED else f"mean of {number}{shading}") + marked


def seed_count_text(numbers: Iterable[int]) -> str:
    """Numbers of seeds as text: `one seed`, `3 seeds`, `2 to 5 seeds`."""
    least, most = min(numbers), max(numbers)
    return ONE_SEED if most == 1 else f"{most} seeds" if least == most else f"{least} to {most} seeds"
