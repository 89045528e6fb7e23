"""Arguments and tables shared by the commands that read results."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weightclip.cli.arguments import pair
from weightclip.lab.records.schema import CRITERIA, DEFAULT

if TYPE_CHECKING:
    import polars as pl


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add RESULTS and --where."""
    parser.add_argument(
        "results", metavar="RESULTS", nargs="*", help="directories with records, or tables saved as CSV or Parquet"
    )
    parser.add_argument(
        "--where",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="select runs: steps=50k, method=adam,adam+wc; repeatable",
    )


def add_criterion(parser: argparse.ArgumentParser) -> None:
    """Add --criterion."""
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in CRITERIA.items())
    parser.add_argument(
        "--criterion",
        choices=tuple(CRITERIA),
        default=DEFAULT,
        help=f"criterion for a method's best setting, {meanings} (default: {DEFAULT})",
    )


def check_results(arguments: argparse.Namespace) -> None:
    """Raise a ValueError if no results are given."""
    if not arguments.results:
        raise ValueError("RESULTS: got none, expected directories with records, for example results")


def load_results(arguments: argparse.Namespace, table: str | None = None) -> pl.DataFrame:
    """The tidy table of the selected runs, or another table of theirs. Skipped files are reported."""
    check_results(arguments)
    from weightclip.lab.analysis.setups import where
    from weightclip.lab.records.table import load

    return where(load(*arguments.results, table=table, on_event=print), dict(arguments.where))


_WIDE = 1000  # characters; output that is not a terminal is not wrapped


def make_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> Table:
    """A table without borders. The columns with the numbers `right` are right-aligned."""
    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # paths must not be truncated
    for number in right:
        table.columns[number].justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Print a table to stdout."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(make_table(headings, rows, right))
