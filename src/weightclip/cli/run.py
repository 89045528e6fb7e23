"""`weightclip run`: one method on one streaming problem, for one or more seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightclip.cli.arguments import STOPPED, add_config, given, seeds
from weightclip.lab.streaming.config import Config, resolve
from weightclip.lab.streaming.methods import PAPER_METHODS
from weightclip.lab.streaming.problem import PROBLEMS, find_problem
from weightclip.lab.streaming.rules import OPTIMIZERS, REMEDIES

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.results.record import Record


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        usage="weightclip run PROBLEM [--method METHOD] [options]",
        help="run a method on a streaming problem",
        description="Run a method on a streaming problem. What is not given takes the paper's value (its table 2).\n"
        "A run that was interrupted goes on; one that is finished is not run again.",
        epilog=_epilog(),
    )
    add_config(parser, Config, leave_out=("seed",))
    parser.add_argument("--seeds", type=seeds, default=[0], metavar="SEEDS", help="4, 0-3 or 0,2,5 (default: 0)")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="for records (default: results)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="with the data (default: $WEIGHTCLIP_DATA)")
    parser.add_argument("--overwrite", action="store_true", help="run again what is finished")
    parser.set_defaults(action=_run)


def _epilog() -> str:
    problems = "\n".join(f"  {name}" for name in PROBLEMS)
    return f"""\
problems:
{problems}

methods:
  {", ".join(OPTIMIZERS)}, with +remedy: {", ".join(REMEDIES)}
  those of the paper: {", ".join(PAPER_METHODS)}

examples:
  weightclip run input-permuted-mnist
  weightclip run label-permuted-emnist --method sgd+wc --kappa 2 --lr 0.01 --seeds 0-3 --steps 1M --period 2500
"""


def _run(arguments: argparse.Namespace) -> int:
    # A mistake in the configuration should be told before anything heavy is imported or any data is fetched.
    configs = [resolve(Config(**given(arguments, Config), seed=seed)) for seed in arguments.seeds]
    from weightclip.lab.files import make_directory

    make_directory(arguments.out)
    try:
        records = _records(configs, arguments)
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if arguments.overwrite else "the same command"
        print(f"stopped; {again} goes on after the last finished task")
        return STOPPED
    _summarise(records, arguments.out)  # the data is let go by now: drawing takes memory too
    return 0


def _records(configs: Sequence[Config], arguments: argparse.Namespace) -> list[Record]:
    """Run all configurations, one after the other."""
    from weightclip.cli.progress import display
    from weightclip.lab.data import load
    from weightclip.lab.streaming.experiment import run_config

    records = []
    with display(len(configs), configs[0].steps) as shown:
        dataset = load(find_problem(configs[0].problem).dataset, data_dir=arguments.data_dir, on_event=shown.say)
        shown.say(f"data: {dataset.source}")
        shown.say(f"method: {_describe(configs[0])}")
        for config in configs:
            shown.begin(f"{config.problem} {config.method} seed {config.seed}")
            record = run_config(
                config,
                dataset,
                out=arguments.out,
                overwrite=arguments.overwrite,
                on_progress=shown.update,
                on_event=shown.say,
            )
            records.append(record)
    return records


def _describe(config: Config) -> str:
    settings = ", ".join(f"{name} {value:g}" for name, value in config.all_settings().items())
    variant = f" ({config.variant} variant)" if {"l2init", "sp"} & set(config.method.split("+")) else ""
    return f"{config.method}{variant}: {settings}; back end {config.backend}"


def _accuracies(tables: Sequence[pl.DataFrame]) -> str:
    """Of the first task, the last, and all so far; means over the tables."""
    first, last, online = (
        sum(table[column][row] for table in tables) / len(tables)
        for column, row in (("accuracy", 0), ("accuracy", -1), ("online_accuracy", -1))
    )
    return f"accuracy {first:.2%} in the first task, {last:.2%} in the last of {len(tables[0])}, {online:.2%} online"


def _summarise(records: Sequence[Record], out: Path) -> None:
    """The accuracies, the records' paths, and the picture."""
    import polars as pl

    from weightclip.lab.streaming.experiment import picture_path, record_path
    from weightclip.lab.streaming.figures import draw_run

    for record in records:
        print(f"seed {record.config['seed']}: {_accuracies([record.table])}; {record.seconds:.1f} s")
        print(f"  {record_path(out, record.config, record.identity)}")
    if len(records) > 1:
        print(f"mean of {len(records)} seeds: {_accuracies([record.table for record in records])}")
    config, picture = records[0].config, picture_path(out, records)
    tables = {config["method"]: pl.concat([record.table for record in records])}
    draw_run(tables, picture, title=config["problem"])
    print(f"picture: {picture}")
