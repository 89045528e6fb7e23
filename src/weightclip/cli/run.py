"""`weightclip run`: one method on one problem, for one or more seeds."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.cli.arguments import (
    STOPPED,
    add_config,
    add_live,
    add_places,
    epilog,
    given,
    live_from,
    seeds,
)
from weightclip.lab.experiment import Experiment, Watch
from weightclip.lab.plugins import experiment_of

if TYPE_CHECKING:
    from weightclip.lab.results.record import Record


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], experiment: Experiment[Any]) -> None:
    """Add the command, with the options of an experiment."""
    parser = subparsers.add_parser(
        "run",
        usage="weightclip run PROBLEM [--method METHOD] [options]",
        help="run a method on a problem",
        description="Run a method on a problem. What is not given takes its value from the presets: the paper's (its\n"
        "table 2), unless another variant or scale is chosen.\n"
        "A run that was interrupted goes on; one that is finished is not run again.",
        epilog=epilog(experiment, "run"),
    )
    parser.add_argument("problem", metavar="PROBLEM", help="the problem, for example input-permuted-mnist")
    add_config(parser, experiment.config, leave_out=("problem", "seed"))
    parser.add_argument("--seeds", type=seeds, default=[0], metavar="SEEDS", help="4, 0-3 or 0,2,5 (default: 0)")
    add_places(parser)
    parser.add_argument("--overwrite", action="store_true", help="run again what is finished")
    add_live(parser)
    parser.set_defaults(action=_run)


def _run(arguments: argparse.Namespace) -> int:
    # A mistake in the configuration should be told before anything heavy is imported or any data is fetched.
    experiment = experiment_of(arguments.problem)
    settings = given(arguments, experiment.config)
    configs = [experiment.configure(arguments.problem, {**settings, "seed": seed}) for seed in arguments.seeds]
    from weightclip.lab.files import make_directory

    make_directory(arguments.out)
    try:
        records, paths = _records(experiment, configs, arguments)
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if arguments.overwrite else "the same command"
        print(f"stopped; {again} goes on from the last checkpoint, if there is one")
        return STOPPED
    _summarise(experiment, records, paths)  # the data is let go by now: drawing takes memory too
    return 0


def _records(
    experiment: Experiment[Any], configs: Sequence[Any], arguments: argparse.Namespace
) -> tuple[list[Record], list[Path]]:
    """Run all configurations, those that go together at once; the records and their paths."""
    from weightclip.cli.progress import display
    from weightclip.lab.results.store import record_path
    from weightclip.lab.sweep.live import showing
    from weightclip.lab.sweep.plan import batches, make_runs

    found: dict[str, Record] = {}
    with display(len(configs), experiment.length(configs[0]), experiment.unit, experiment.shown) as shown:
        data = experiment.load(configs[0], arguments.data_dir, shown.say)
        if data is not None:
            shown.say(f"data: {data.source}")
        shown.say(f"method: {experiment.describe(configs[0])}")
        runs = make_runs(experiment, configs, data)
        for job in batches(runs):
            numbers = ", ".join(str(run.config.seed) for run in job)
            shown.begin(f"{arguments.problem} {job[0].method} seed {numbers}", len(job))
            with showing(live_from(arguments), experiment, job) as row:
                watch = Watch(shown.say, shown.update, row)
                records = experiment.run([run.config for run in job], data, arguments.out, arguments.overwrite, watch)
            found |= {run.identity: record for run, record in zip(job, records, strict=True)}
    return (
        [found[run.identity] for run in runs],
        [record_path(arguments.out, run.place, run.identity) for run in runs],
    )


def _summarise(experiment: Experiment[Any], records: Sequence[Record], paths: Sequence[Path]) -> None:
    """What came out, the records' paths, and the picture."""
    for record, path in zip(records, paths, strict=True):
        print(f"seed {record.config['seed']}: {experiment.summarise([record.table])}; {record.seconds:.1f} s")
        print(f"  {path}")
    if len(records) > 1:
        print(f"mean of {len(records)} seeds: {experiment.summarise([record.table for record in records])}")
    picture = _picture(paths)
    experiment.draw(records, picture)
    if picture.exists():  # not every experiment draws one
        print(f"picture: {picture}")


def _picture(records: Sequence[Path]) -> Path:
    """Of one record, beside it; of several that differ in their seeds alone, under a name of their own."""
    if len(records) == 1:
        return records[0].with_suffix(".png")
    together = hashlib.sha256("".join(path.name for path in records).encode()).hexdigest()[:12]
    without = re.sub(r"seed\d+_[0-9a-f]+\.parquet$", "", records[0].name)
    return records[0].with_name(f"{without}{len(records)}seeds_{together}.png")
