"""Tables on a terminal, and as plain text elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 1000  # characters, where the output is not a terminal: no line needs to be folded


def make_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> Table:
    """A table without lines; columns in `right` are numbers."""
    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # a path is of no use without its end
    for number in right:
        table.columns[number].justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Print it to stdout."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(make_table(headings, rows, right))
