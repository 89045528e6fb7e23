"""What commands that read results have in common: where these are, which of them count, and how."""

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
        help="only these runs: steps=50k, method=adam,adam+wc; may be given several times",
    )


def add_criterion(parser: argparse.ArgumentParser) -> None:
    """Add --criterion."""
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in CRITERIA.items())
    parser.add_argument(
        "--criterion",
        choices=tuple(CRITERIA),
        default=DEFAULT,
        help=f"how a method's best setting is found, {meanings} (default: {DEFAULT})",
    )


def check_results(arguments: argparse.Namespace) -> None:
    """A ValueError where no results are named."""
    if not arguments.results:
        raise ValueError("RESULTS: got none, expected directories with records, for example results")


def load_results(arguments: argparse.Namespace, table: str | None = None) -> pl.DataFrame:
    """The tidy table of the runs that were asked for, or a further one; files that are left out are told."""
    check_results(arguments)
    from weightclip.lab.analysis.setups import where
    from weightclip.lab.records.table import load

    return where(load(*arguments.results, table=table, on_event=print), dict(arguments.where))


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
