"""`weightclip sweep`: many runs of a problem, over methods, settings and seeds."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.checks import check_choice, check_count
from weightclip.cli.arguments import (
    PROGRAM,
    SOME_FAILED,
    STOPPED,
    add_config,
    add_live,
    add_places,
    count,
    epilog,
    given,
    live_from,
    pair,
    read_field,
    seeds,
)
from weightclip.lab.experiment import Cost, Experiment
from weightclip.lab.plugins import experiment_of, experiments
from weightclip.lab.sweep.grid import PAPER, Settings, best, grid_seeds, lacking, read_presets, search
from weightclip.numerals import counted

if TYPE_CHECKING:
    from weightclip.lab.sweep.executor import Executor, Report
    from weightclip.lab.sweep.plan import Plan
    from weightclip.lab.sweep.sweep import Inventory
    from weightclip.lab.sweep.work import Outcome

EXECUTORS = ("local", "ray", "slurm")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], experiment: Experiment[Any]) -> None:
    """Add the command, with the options of an experiment."""
    parser = subparsers.add_parser(
        "sweep",
        usage="weightclip sweep PROBLEM [--methods METHODS] [--grid GRID | --best] [--seeds SEEDS] [options]",
        help="run many settings of many methods on a problem",
        description="Run every method with every setting and seed. The same command again runs what is missing.\n"
        "An option such as --lr holds for all runs; the others come from the grid, or are the best ones of the paper.",
        epilog=epilog(experiment, "sweep"),
    )
    # It may be missing, so that _sweep can say where it went: --best takes the word after it.
    parser.add_argument("problem", metavar="PROBLEM", nargs="?", help="the problem, for example input-permuted-mnist")
    for axis in experiment.axes:
        help_text = f"several, with commas, or all (default: {'all' if axis != 'method' else 'all of the paper'})"
        parser.add_argument(_several(axis), dest=f"{axis}_values", metavar="NAMES", default="all", help=help_text)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--grid", metavar="GRID", help="search: paper (its table 1) or a TOML file")
    which.add_argument(
        "--best",
        nargs="?",
        const=PAPER,
        metavar="FILE",
        help="one setting of each method: that of the presets (the paper's table 2, unless another variant or scale is "
        "chosen), or those of a TOML file",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        metavar="SEEDS",
        help="how many (20), or which: 0-3 or 0,2,5 (default: the grid's, or 1)",
    )
    add_config(parser, experiment.config, leave_out=("problem", "seed", *experiment.axes))
    add_places(parser)
    running = parser.add_argument_group("running")
    running.add_argument("--dry-run", action="store_true", help="only count runs, time and space")
    running.add_argument("--retry-failed", action="store_true", help="run again what failed before")
    running.add_argument("--workers", type=count, metavar="N", help="runs at a time (default: one for each core)")
    running.add_argument(
        "--executor", default="local", metavar="NAME", help=f"one of {', '.join(EXECUTORS)} (default: local)"
    )
    running.add_argument(
        "--address", metavar="ADDRESS", help="of a Ray cluster, or auto (default: a cluster of this machine)"
    )
    running.add_argument(
        "--slurm",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="for Slurm's jobs: partition=cpu, time=120, mem_gb=2, ...",
    )
    add_live(running)
    parser.set_defaults(action=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    experiment = _experiment(arguments)
    _check_options(arguments)
    choices, seeds_of_grid = _choices(experiment, arguments)
    live = live_from(arguments)
    executor = _executor(arguments)

    from weightclip.lab.files import make_directory
    from weightclip.lab.sweep.plan import make_plan
    from weightclip.lab.sweep.stored import remove_checkpoints
    from weightclip.lab.sweep.sweep import look

    plan = make_plan(
        experiment, arguments.problem, choices, arguments.seeds or range(seeds_of_grid), arguments.data_dir, print
    )
    for data in plan.data.values():
        if data is not None:
            print(f"data: {data.source}")
    inventory = look(plan, arguments.out, arguments.retry_failed)
    costs = _count(plan, inventory, executor.workers, arguments)
    if arguments.dry_run:
        return 0
    remove_checkpoints(arguments.out, inventory.done)
    if not inventory.missing:
        return SOME_FAILED if inventory.failed else 0

    from weightclip.cli.sweep_display import display
    from weightclip.lab.sweep.manifest import write_manifest
    from weightclip.lab.sweep.sweep import sweep

    make_directory(arguments.out)
    seconds = {identity: cost.seconds for identity, cost in costs.items()}

    @cache
    def keep() -> None:
        write_manifest(arguments.out, _command(), arguments.problem, plan.runs, seconds)

    def report(one: Report) -> None:
        keep()  # not before the executor works: a sweep that never began is none
        shown.report(one)

    try:
        with display(inventory, seconds, executor.workers) as shown:
            outcomes = sweep(plan, inventory.missing, arguments.out, executor, arguments.data_dir, live, report)
    except KeyboardInterrupt:
        print(f"stopped: {shown.ended} of {counted(len(inventory.missing), 'run')} ended; the same command goes on")
        return STOPPED
    return _tell_end(plan, inventory, outcomes, arguments.out)


def _tell_end(plan: Plan, inventory: Inventory, outcomes: Sequence[Outcome], out: Path) -> int:
    """Say how it went; the exit code, which tells of runs that failed, now or before."""
    from weightclip.lab.sweep.stored import has_failed

    failed = [one for one in outcomes if one.status == "failed"]
    before = f", {len(inventory.failed)} before" if inventory.failed else ""
    print(f"{counted(len(outcomes) - len(failed), 'run')} done, {len(failed)} failed{before}; records in {out}")
    if failed:
        reasons = Counter(one.reason for one in failed).most_common(5)
        print("\n".join(f"  {number} x {reason}" for reason, number in reasons))
    if any(has_failed(out, run) for run in plan.runs):
        print(f"{PROGRAM} status {out} --failures shows why; --retry-failed runs them again")
    print(f"next: {PROGRAM} best {out}; {PROGRAM} report {out}")
    return SOME_FAILED if failed or inventory.failed else 0


def _experiment(arguments: argparse.Namespace) -> Experiment[Any]:
    if arguments.problem is None:
        known = [name for one in experiments().values() for name in one.problems()]
        taken = f"; {arguments.best!r} was taken for the FILE of --best" if arguments.best in known else ""
        raise ValueError(f"PROBLEM: got none, expected it before the options{taken} (see {PROGRAM} sweep --help)")
    return experiment_of(arguments.problem)


def _check_options(arguments: argparse.Namespace) -> None:
    """What would be ignored is refused."""
    check_choice("--executor", arguments.executor, EXECUTORS)
    if arguments.workers is not None:
        check_count("--workers", arguments.workers)
    for option, value, executor in (("--address", arguments.address, "ray"), ("--slurm", arguments.slurm, "slurm")):
        if value and arguments.executor != executor:
            shown = value if isinstance(value, str) else "=".join(value[0])
            raise ValueError(
                f"{option}: got {shown!r}, which is for --executor {executor}, but --executor is {arguments.executor}"
            )


def _choices(experiment: Experiment[Any], arguments: argparse.Namespace) -> tuple[list[Settings], int]:
    """Every choice of settings, checked, and how many seeds the grid wants.

    Mistakes should be told before anything heavy is imported or any data is fetched.
    """
    fixed = given(arguments, experiment.config)
    methods = _named(experiment, "method", arguments)
    others = [axis for axis in experiment.axes if axis != "method"]
    option, name = ("--best", arguments.best or PAPER) if arguments.grid is None else ("--grid", arguments.grid)
    found: list[Settings] = []
    lacks: dict[str, None] = {}
    number = 1
    for values in itertools.product(*(_named(experiment, axis, arguments) for axis in others)):
        chosen = dict(zip(others, values, strict=True))
        here = {**fixed, **chosen}
        fitting = [method for method in methods if experiment.possible({**here, "method": method})]
        for method in fitting:  # before the file is read, which is not to blame for these
            experiment.settings(arguments.problem, method, here)
        presets = read_presets(name, experiment, here, option)
        with _blaming(option, name):
            if arguments.grid is None:
                lacks |= dict.fromkeys([] if name == PAPER else lacking(arguments.problem, fitting, presets))
                more = best(experiment, arguments.problem, fitting, presets, here)
            else:
                number = grid_seeds(presets)
                more = search(experiment, arguments.problem, fitting, presets, here)
        for choice in more:
            own = {key: value for key, value in choice.items() if key in here or key == "method"}
            _check_choice(experiment, arguments.problem, choice, own, f"{option} {name}")
        found += more
    if not found:
        raise ValueError(f"{', '.join(map(_several, experiment.axes))}: the values given do not go together")
    if lacks:
        print(f"{name} has no setting for {', '.join(lacks)}: the defaults are taken")
    return found, number


def _check_choice(experiment: Experiment[Any], problem: str, choice: Settings, own: Settings, file: str) -> None:
    """A ValueError for settings that are not accepted; it names the file if they are, without what comes from it."""
    try:
        experiment.configure(problem, choice)
    except ValueError as error:
        try:
            experiment.configure(problem, own)
        except ValueError as same:
            if str(same) == str(error):
                raise
        raise ValueError(f"{file}: {error}") from error


@contextmanager
def _blaming(option: str, name: str) -> Iterator[None]:
    """A mistake in here is one of the file's."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option} {name}: {error}") from error


def _several(axis: str) -> str:
    """The option that takes several values of a field."""
    name = axis.replace("_", "-")
    return f"--{name}" if name.endswith("s") else f"--{name}s"


def _named(experiment: Experiment[Any], axis: str, arguments: argparse.Namespace) -> Sequence[Any]:
    text: str = getattr(arguments, f"{axis}_values")
    if text.strip() == "all":
        return experiment.values(axis)
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ValueError(f"{_several(axis)}: got {text!r}, expected names with commas, or all")
    return [read_field(experiment.config, axis, _several(axis), part) for part in parts]


def _executor(arguments: argparse.Namespace) -> Executor:
    if arguments.executor == "ray":
        from weightclip.lab.sweep.ray import Ray

        return Ray(arguments.address, arguments.workers)
    if arguments.executor == "slurm":
        from weightclip.lab.sweep.slurm import Slurm

        options = {name: int(value) if value.isdigit() else value for name, value in arguments.slurm}
        return Slurm(arguments.out / ".slurm", arguments.workers, options, only_asked=arguments.dry_run)
    from weightclip.lab.sweep.local import Local, cores

    return Local(arguments.workers or cores())


def _count(plan: Plan, inventory: Inventory, workers: int, arguments: argparse.Namespace) -> dict[str, Cost]:
    """Say how many runs there are, how long they will take and how much space; the cost of each."""
    from weightclip.cli.progress import duration
    from weightclip.cli.tables import print_table
    from weightclip.lab.sweep.calibration import calibrate
    from weightclip.lab.sweep.pace import seconds_left

    parts = [f"{len(inventory.done)} done", f"{len(inventory.missing)} to run"]
    if inventory.failed:
        parts.append(f"{len(inventory.failed)} failed before (--retry-failed runs them again)")
    print(f"{arguments.problem}: {counted(len(plan.runs), 'run')}: {', '.join(parts)}")
    if not inventory.missing:
        return {}
    costs = calibrate(plan, inventory, print)
    todo = {run.identity for run in inventory.missing}
    if arguments.dry_run:
        rows = []
        for method in dict.fromkeys(run.method for run in plan.runs):
            own = [run for run in plan.runs if run.method == method]
            left = [run for run in own if run.identity in todo]
            seconds = sum(costs[run.identity].seconds for run in left)
            size = sum(costs[run.identity].bytes for run in left)
            rows.append((method, str(len(own)), str(len(left)), duration(seconds), _size(size)))
        print_table(("method", "runs", "to run", "time on one core", "space"), rows, right=(1, 2, 3, 4))
    each = [costs[name].seconds for name in todo]
    size = sum(costs[name].bytes for name in todo)
    together = f"{duration(seconds_left(each, workers))} on {counted(workers, 'worker')}"
    print(f"about {duration(sum(each))} on one core, {together}; {_size(size)}")
    return costs


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def _command() -> str:
    return shlex.join([PROGRAM, *sys.argv[1:]])


def _seeds(text: str) -> list[int]:
    """`20` -> 0 to 19; `0-3`, `0,2,5` -> these."""
    if not text.strip().isdigit():
        return seeds(text)
    if int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected how many, or which: 0-3 or 0,2,5 (seed 0 alone: 0-0)")
    return seeds(f"0-{int(text) - 1}")
