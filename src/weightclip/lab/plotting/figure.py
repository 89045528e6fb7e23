"""A figure: drawn from a tidy table, saved as PDF, PNG and the CSV of what it shows."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from weightclip.lab.files import write_whole
from weightclip.lab.plotting.style import RC
from weightclip.lab.records.schema import Criterion

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

DPI = 200
DIGITS = 6
"""Of the numbers in a CSV."""


@dataclass(frozen=True)
class Drawing:
    """A drawn figure.

    Args:
        picture: matplotlib's figure.
        data: the numbers in it.
        notes: lines that a user should read: what was chosen, what is missing.
    """

    picture: Picture
    data: pl.DataFrame
    notes: tuple[str, ...] = ()


def no_check(table: pl.DataFrame) -> None:
    """Accept any table."""


@dataclass(frozen=True)
class Figure:
    """A figure that can be drawn.

    Args:
        name: its name on the command line: "streaming".
        number: its number in the paper: "3"; empty if it is not in the paper.
        title: what it shows.
        draw: draws it from a tidy table, given the criterion of best settings.
        experiment: the experiment whose runs it shows; empty if it needs no results, and `draw` takes an empty table.
        check: raises a ValueError that says what a table of that experiment's runs lacks.
        table: name of the further table that it is drawn from, instead of the main one.
    """

    name: str
    number: str
    title: str
    draw: Callable[[pl.DataFrame, Criterion], Drawing]
    experiment: str = ""
    check: Callable[[pl.DataFrame], object] = no_check
    table: str | None = None

    def can_be_drawn(self, table: pl.DataFrame) -> bool:
        """Whether a tidy table has what the figure needs."""
        own = table.filter(experiment=self.experiment)
        if own.is_empty():
            return False
        try:
            self.check(own)
        except ValueError:
            return False
        return True


def save(drawing: Drawing, directory: Path, name: str) -> list[Path]:
    """Write NAME.pdf, NAME.png and NAME.csv, each whole or not at all; their paths."""
    from matplotlib import rc_context

    paths = [directory / f"{name}.{ending}" for ending in ("pdf", "png", "csv")]
    for path in paths[:2]:
        buffer = io.BytesIO()
        # Without a date, equal results give equal files.
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else {}
        with rc_context(RC):
            drawing.picture.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=metadata)
        write_whole(path, buffer.getbuffer())
    write_whole(paths[2], drawing.data.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv().encode())
    return paths
