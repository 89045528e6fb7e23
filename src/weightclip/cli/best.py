"""`weightclip best`: the paper's table 2, from results."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.cli.results import add_results, load_results
from weightclip.cli.tables import print_table

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.results.metrics import Metric

CRITERIA = {"auc": "area under its curve", "final": "mean over the last tenth"}
ENDINGS = (".toml", ".csv")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "best",
        usage="weightclip best RESULTS... [--criterion auc|final] [-o FILE] [options]",
        help="the best setting of each method, beside the paper's",
        description="The best setting of each method on each problem, beside the paper's (its table 2),\n"
        "and the slope of the score over the last half of the runs.",
        epilog="examples:\n"
        "  weightclip best results\n"
        "  weightclip best results --where steps=50k --criterion final -o best.toml\n",
    )
    add_results(parser)
    parser.add_argument("--criterion", choices=tuple(CRITERIA), default="auc", help=f"{_criteria()} (default: auc)")
    parser.add_argument("--metric", metavar="NAME", help="what is compared (default: accuracy, for streaming)")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="write it, too: .toml, in the form of a sweep's grids, or .csv"
    )
    parser.set_defaults(action=_best)


def _criteria() -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in CRITERIA.items())


def _best(arguments: argparse.Namespace) -> int:
    out: Path | None = arguments.out
    if out is not None and out.suffix not in ENDINGS:
        raise ValueError(f"-o: got {str(out)!r}, expected a file that ends in {' or '.join(ENDINGS)}")
    from weightclip.lab.results.best import as_presets, best_settings
    from weightclip.lab.results.setups import main_setup

    notes: list[str] = []
    table = main_setup(load_results(arguments), notes.append)
    best = best_settings(table, arguments.metric, arguments.criterion)
    for part in best.partition_by("experiment", "problem", maintain_order=True):
        _show(part, table, arguments)
    for note in notes:
        print(note)
    if out is not None:
        from weightclip.lab.files import write_whole

        text = as_presets(best, table) if out.suffix == ".toml" else best.write_csv()
        write_whole(out, text.encode())
        print(out)
    return 0


def _show(best: pl.DataFrame, table: pl.DataFrame, arguments: argparse.Namespace) -> None:
    """A problem's table, and what to know of it."""
    from weightclip.lab.plugins import find_experiment
    from weightclip.lab.results.text import selection_notes

    first = best.row(0, named=True)
    experiment = find_experiment(first["experiment"])
    name = arguments.metric or experiment.score
    metric = experiment.metric(name)
    stand_in = " (stand-in data)" if first["official"] is False else ""
    print(f"{first['problem']}{stand_in}: {metric.label.lower()}, {CRITERIA[arguments.criterion]}, mean over seeds")
    rows = [_row(row, table, metric) for row in best.iter_rows(named=True)]
    headings = (
        "method",
        "best setting",
        name,
        "seeds",
        "compared",
        "the paper's",
        f"slope per 100 {experiment.along}s",
    )
    print_table(headings, rows, right=(2, 3, 4))
    for row in best.iter_rows(named=True):
        for note in selection_notes(row):
            print(f"  {row['method']}: {note}")
    print()


def _row(row: Mapping[str, Any], table: pl.DataFrame, metric: Metric) -> tuple[str, ...]:
    from weightclip.lab.results.best import told_setting
    from weightclip.lab.results.text import error_text, settings_text

    return (
        row["method"],
        settings_text(told_setting(row, table)),
        error_text(row["score"], row["error"], metric),
        str(row["seeds"]),
        str(row["compared"]),
        _paper(row, metric),
        _slope(row, metric),
    )


def _paper(row: Mapping[str, Any], metric: Metric) -> str:
    from weightclip.lab.plugins import find_experiment
    from weightclip.lab.results.text import metric_text, settings_text

    paper = find_experiment(row["experiment"]).paper_setting(row)
    if paper is None:
        return "-"
    if row["same"]:
        return "the same"
    here = "not run" if row["paper_score"] is None else f"here {metric_text(row['paper_score'], metric)}"
    return f"≠ {settings_text(paper)} ({here})"


def _slope(row: Mapping[str, Any], metric: Metric) -> str:
    from weightclip.lab.results.text import change_text

    slope, low, high = (change_text(row[name], metric) for name in ("slope", "low", "high"))
    return slope if row["verdict"] is None else f"{slope} [{low}, {high}] {row['verdict']}"
