"""`weightclip figure`: draw a figure of the paper from results."""

from __future__ import annotations

import argparse
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from weightclip.cli.arguments import PROGRAM, Parser
from weightclip.cli.results import add_criterion, add_results, check_results, load_results, print_table
from weightclip.lab.paper import FIGURES, all_figures, find_figure

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.plotting.figure import Drawing

ALL = "all"
DIAGRAM = "diagram"
"""The only figure that needs no results."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} figure",
        usage="weightclip figure NAME RESULTS... [-o DIR] [options]",
        description="Draw a figure of the paper as PDF and PNG, with a CSV file of the data.\n"
        "The best setting of each method is drawn.",
        epilog="examples:\n"
        "  weightclip figure --list\n"
        "  weightclip figure streaming results -o figures\n"
        "  weightclip figure 4 results --where steps=50k --where method=adam,adam+wc\n",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help=f"name or number in the paper, or {ALL}")
    add_results(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path(FIGURES), metavar="DIR", help=f"output directory (default: {FIGURES})"
    )
    add_criterion(parser)
    parser.add_argument("--list", action="store_true", help="list the figures")
    parser.set_defaults(action=_figure)
    return parser


def _figure(arguments: argparse.Namespace) -> int:
    if arguments.list or arguments.name is None:
        rows = [(figure.name, figure.number or "-", figure.title) for figure in all_figures()]
        print_table(("figure", "in the paper", "shows"), rows)
        return 0
    figures = all_figures() if arguments.name == ALL else [find_figure(arguments.name)]
    if arguments.name != DIAGRAM:
        check_results(arguments)
    load = cache(partial(_table, arguments))
    for figure in figures:
        try:
            drawing = figure.draw(load(figure.experiment != "", figure.table), arguments.criterion)
        except ValueError as error:
            if arguments.name != ALL:
                raise
            print(f"{figure.name}: not drawn: {error}")
            continue
        _save(drawing, arguments.out, figure.name)
    return 0


def _table(arguments: argparse.Namespace, needs_results: bool, table: str | None) -> pl.DataFrame:
    if needs_results:
        from weightclip.lab.records.table import NoTableError

        try:
            return load_results(arguments, table)
        except NoTableError:
            return load_results(arguments)  # the figure reports what is missing
    import polars as pl

    return pl.DataFrame()


def _save(drawing: Drawing, directory: Path, name: str) -> None:
    from weightclip.lab.plotting.figure import save

    for note in drawing.notes:
        print(note)
    for path in save(drawing, directory, name):
        print(path)
