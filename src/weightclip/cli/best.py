"""`weightclip best`: the best setting of each method, as in the paper's Table 2."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.cli.arguments import PROGRAM, Parser
from weightclip.cli.results import add_criterion, add_results, check_results, load_results, print_table
from weightclip.lab.records.schema import CRITERIA

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.records.schema import Metric

ENDINGS = (".toml", ".csv")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} best",
        usage="weightclip best RESULTS... [--criterion auc|final] [-o FILE] [options]",
        description="Show the best setting of each method on each problem, the paper's setting (Table 2), and the\n"
        "slope of the score over the last half of the runs. For several problems, also show the\n"
        "interquartile mean of each method over them.",
        epilog="examples:\n"
        "  weightclip best results\n"
        "  weightclip best results --where steps=50k --criterion final -o best.toml\n",
    )
    add_results(parser)
    add_criterion(parser)
    parser.add_argument("--metric", metavar="NAME", help="metric to compare (default: the experiment's score)")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="output file: .toml in the format of sweep grids, or .csv"
    )
    parser.set_defaults(action=_best)
    return parser


def _best(arguments: argparse.Namespace) -> int:
    out: Path | None = arguments.out
    if out is not None and out.suffix not in ENDINGS:
        raise ValueError(f"-o: got {str(out)!r}, expected a file that ends in {' or '.join(ENDINGS)}")
    check_results(arguments)
    import polars as pl

    from weightclip.lab.analysis.best import as_presets, best_settings
    from weightclip.lab.analysis.setups import columns_of, main_setup

    notes: list[str] = []
    table = main_setup(load_results(arguments), notes.append)
    best = best_settings(table, arguments.metric, arguments.criterion)
    for runs in table.partition_by("experiment", maintain_order=True):
        axes = columns_of(runs).axes
        found = best.filter(pl.col("experiment") == runs["experiment"][0])
        for part in found.partition_by("problem", *axes, maintain_order=True):
            _show(part, axes, runs, arguments)
        _show_problems(runs, axes, arguments)
    for note in notes:
        print(note)
    if out is not None:
        from weightclip.lab.files import write_whole

        text = as_presets(best, table) if out.suffix == ".toml" else best.write_csv()
        write_whole(out, text.encode())
        print(out)
    return 0


def _show(best: pl.DataFrame, axes: Sequence[str], runs: pl.DataFrame, arguments: argparse.Namespace) -> None:
    """Print the table of one problem and one value of each axis, with its notes."""
    from weightclip.lab.analysis.best import setting_notes
    from weightclip.lab.analysis.setups import score_of
    from weightclip.lab.records.columns import schema_of
    from weightclip.lab.text import value_text

    first = best.row(0, named=True)
    metric = score_of(runs, arguments.metric)
    title = ", ".join((first["problem"], *(f"{axis} {value_text(first[axis])}" for axis in axes)))
    stand_in = " (stand-in data)" if first["official"] is False else ""
    print(f"{title}{stand_in}: {metric.label.lower()}, {CRITERIA[arguments.criterion]}, mean over seeds")
    rows = [_row(row, runs, metric) for row in best.iter_rows(named=True)]
    headings = (
        "method",
        "best setting",
        metric.name,
        "seeds",
        "compared",
        "the paper's",
        f"slope per 100 {schema_of(runs).x_column}s",
    )
    print_table(headings, rows, right=(2, 3, 4))
    for row in best.iter_rows(named=True):
        for note in setting_notes(row):
            print(f"  {row['method']}: {note}")
    print()


def _show_problems(runs: pl.DataFrame, axes: Sequence[str], arguments: argparse.Namespace) -> None:
    """Print the score of each method over all problems of an experiment, if it is meaningful."""
    from weightclip.lab.analysis.setups import score_of
    from weightclip.lab.analysis.statistics import across_problems, is_comparable
    from weightclip.lab.text import metric_text, value_text

    metric = score_of(runs, arguments.metric)
    if not is_comparable(runs, metric):
        return
    found = across_problems(runs, arguments.metric, arguments.criterion)
    if found.is_empty():
        print("over problems: fewer than two problems have two seeds of every method; select methods with --where\n")
        return
    stand_in = "" if runs["official"].fill_null(True).all() else " (stand-in data)"
    print(
        f"over {found['problems'][0]} problems{stand_in}: {metric.label.lower()}, {CRITERIA[arguments.criterion]}, "
        "interquartile mean over runs"
    )
    rows = [
        (
            row["method"],
            *(value_text(row[axis]) for axis in axes),
            metric_text(row["iqm"], metric),
            f"{metric_text(row['low'], metric)} to {metric_text(row['high'], metric)}",
            str(row["runs"]),
        )
        for row in found.iter_rows(named=True)
    ]
    numbers = range(len(axes) + 1, len(axes) + 4)
    print_table(("method", *axes, metric.name, "95% interval", "runs"), rows, right=numbers)
    print()


def _row(row: Mapping[str, Any], table: pl.DataFrame, metric: Metric) -> tuple[str, ...]:
    from weightclip.lab.analysis.best import display_setting
    from weightclip.lab.text import error_text, settings_text

    return (
        row["method"],
        settings_text(display_setting(row, table)),
        error_text(row["score"], row["error"], metric),
        str(row["seeds"]),
        str(row["compared"]),
        _paper(row, metric),
        _slope(row, metric),
    )


def _paper(row: Mapping[str, Any], metric: Metric) -> str:
    from weightclip.lab.analysis.best import paper_setting
    from weightclip.lab.text import metric_text, settings_text

    paper = paper_setting(row)
    if paper is None:
        return "-"
    if row["same"]:
        return "the same"
    score = "not run" if row["paper_score"] is None else f"here {metric_text(row['paper_score'], metric)}"
    return f"≠ {settings_text(paper)} ({score})"


def _slope(row: Mapping[str, Any], metric: Metric) -> str:
    from weightclip.lab.text import change_text

    slope, low, high = (change_text(row[name], metric) for name in ("slope", "low", "high"))
    return slope if row["verdict"] is None else f"{slope} [{low}, {high}] {row['verdict']}"
