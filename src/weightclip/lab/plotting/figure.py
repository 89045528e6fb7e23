"""A figure: drawn from a tidy table, and saved as PDF, PNG and a CSV file of its data."""

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
"""Significant digits in CSV files."""


@dataclass(frozen=True)
class Drawing:
    """A drawn figure.

    Args:
        picture: matplotlib figure.
        data: the plotted numbers.
        notes: messages for the user, such as selected settings and missing runs.
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
        name: name on the command line, for example "streaming".
        number: number in the paper, for example "3"; empty if it is not in the paper.
        title: one-line description.
        draw: draws the figure from a tidy table, given the criterion for best settings.
        experiment: experiment whose runs are drawn; empty if `draw` needs no results and takes an empty table.
        check: raises a ValueError if a table of runs of the experiment lacks required data.
        table: name of the additional table to draw; None: the main table.
    """

    name: str
    number: str
    title: str
    draw: Callable[[pl.DataFrame, Criterion], Drawing]
    experiment: str = ""
    check: Callable[[pl.DataFrame], object] = no_check
    table: str | None = None

    def can_be_drawn(self, table: pl.DataFrame) -> bool:
        """Whether a tidy table has the data that the figure needs."""
        runs = table.filter(experiment=self.experiment)
        if runs.is_empty():
            return False
        try:
            self.check(runs)
        except ValueError:
            return False
        return True


def save(drawing: Drawing, directory: Path, name: str) -> list[Path]:
    """Write NAME.pdf, NAME.png and NAME.csv atomically and return their paths."""
    from matplotlib import rc_context

    paths = [directory / f"{name}.{ending}" for ending in ("pdf", "png", "csv")]
    for path in paths[:2]:
        buffer = io.BytesIO()
        # Without a date, the same results give identical files.
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else {}
        with rc_context(RC):
            drawing.picture.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=metadata)
        write_whole(path, buffer.getbuffer())
    write_whole(paths[2], drawing.data.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv().encode())
    return paths
