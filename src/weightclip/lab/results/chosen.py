"""The runs that a figure shows: one experiment's, of each problem one setup, of each method the best setting."""

from __future__ import annotations

import polars as pl

from weightclip.lab.results.best import told_setting
from weightclip.lab.results.criteria import Criterion
from weightclip.lab.results.selection import best_runs, select
from weightclip.lab.results.setups import columns_of, main_setup
from weightclip.lab.results.text import settings_text


def own_runs(table: pl.DataFrame, experiment: str) -> pl.DataFrame:
    """The runs of an experiment; a ValueError if there are none."""
    own = table.filter(experiment=experiment)
    if own.is_empty():
        there = ", ".join(table["experiment"].unique().sort())
        raise ValueError(f"results: got runs of {there}, expected some of {experiment}")
    return own


def chosen_runs(table: pl.DataFrame, experiment: str, criterion: Criterion) -> tuple[pl.DataFrame, list[str]]:
    """The runs, and what a user should know of the choice."""
    notes: list[str] = []
    runs = main_setup(own_runs(table, experiment), notes.append)
    axes = columns_of(runs).axes
    chosen = select(runs, criterion=criterion).filter(pl.col("compared") + pl.col("incomplete") > 1)
    for row in chosen.iter_rows(named=True):
        where = ", ".join((row["problem"], *filter(None, [settings_text({axis: row[axis] for axis in axes})])))
        setting = settings_text(told_setting(row, runs))
        notes.append(f"{where}: {row['method']}: best of several settings by {criterion}: {setting}")
    return best_runs(runs, criterion=criterion), notes
