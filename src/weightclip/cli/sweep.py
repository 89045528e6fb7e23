"""`weightclip sweep`: many runs of a problem, over methods, settings and seeds."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip._text import counted
from weightclip._validation import check_count, check_name
from weightclip.cli.arguments import (
    PROGRAM,
    SOME_FAILED,
    STOPPED,
    add_config,
    add_output,
    add_seeds,
    count,
    field_kind,
    given,
    import_torch,
    live_from,
    pair,
    pointing_to_help,
    problem_command,
    read_field,
)
from weightclip.lab.experiment import Experiment, IncompatibleError
from weightclip.lab.registry import experiment_of
from weightclip.lab.sweep.grid import PAPER, Settings, best, grid_seeds, lacking, read_presets, search

if TYPE_CHECKING:
    from weightclip.lab.records.store import Cost
    from weightclip.lab.sweep.executor import Executor, Report
    from weightclip.lab.sweep.plan import Plan, Run
    from weightclip.lab.sweep.sweep import Inventory
    from weightclip.lab.sweep.work import Outcome

EXECUTORS = ("local", "ray", "slurm")

UNKNOWN = "unknown"

SETTINGS = ("lr", "kappa", "decay", "sigma")
"""Options that hold for those methods only that have the setting."""


_DESCRIPTION = """\
Run every method with every setting and seed; the same command again runs what
is missing. Settings come from --grid, or are the paper's best. An option holds
for all runs; several values, as in --kappa 1,2,4, make a grid."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    return problem_command("sweep", _DESCRIPTION, _add_common, _add_options)


def _add_common(parser: argparse.ArgumentParser) -> None:
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
    add_output(parser)
    running = parser.add_argument_group("execution")
    running.add_argument("--dry-run", action="store_true", help="only count runs, time and space")
    running.add_argument("--retry-failed", action="store_true", help="rerun failed runs")
    running.add_argument("--workers", type=count, metavar="N", help="parallel runs (default: one per core)")
    running.add_argument(
        "--executor", default="local", metavar="NAME", help=f"one of {', '.join(EXECUTORS)} (default: local)"
    )
    running.add_argument("--address", metavar="ADDRESS", help="of a Ray cluster, or auto (default: start a local one)")
    running.add_argument(
        "--slurm",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="options of Slurm jobs: partition=cpu, time=120, mem_gb=2, ...",
    )


def _add_options(
    parser: argparse.ArgumentParser, experiment: Experiment[Any], defaults: Mapping[str, Any] | None
) -> None:
    axes = parser.add_argument_group("axes")
    for axis in experiment.schema.axes:
        help_text = f"values with commas, or all (default: {'all' if axis != 'method' else 'all of the paper'})"
        axes.add_argument(_several(axis), dest=f"{axis}_values", metavar="VALUES", default="all", help=help_text)
    # Settings have a default for each method, which the grid or the presets decide.
    shown = defaults and {name: value for name, value in defaults.items() if name not in experiment.schema.settings}
    left_out = ("problem", "seed", "kappa_rule", *experiment.schema.axes)
    add_config(parser, experiment.config, left_out, shown, several=True)
    add_seeds(parser, "the grid's, or seed 0")
    _add_common(parser)
    parser.set_defaults(action=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    experiment = experiment_of(arguments.problem)
    _check_options(arguments)
    with pointing_to_help("sweep", arguments.problem):
        choices, seeds_of_grid = _choices(experiment, arguments)
    live = live_from(arguments)
    executor = _executor(arguments)
    import_torch()

    from weightclip.lab.files import make_directory
    from weightclip.lab.records.store import remove_checkpoints
    from weightclip.lab.sweep.plan import MISSING, make_plan
    from weightclip.lab.sweep.sweep import look

    seeds = arguments.seeds or range(seeds_of_grid)
    fetch = not arguments.dry_run
    plan = make_plan(experiment, arguments.problem, choices, seeds, arguments.data_dir, print, fetch)
    for data in plan.data.values():
        if data is not None:
            print("data: not on this machine" if data is MISSING else f"data: {data.source}")
    inventory = look(plan, arguments.out, arguments.retry_failed)
    seconds = _count(plan, inventory, executor.workers, arguments)
    if arguments.dry_run:
        return 0
    remove_checkpoints(arguments.out, inventory.done)
    if not inventory.missing:
        return SOME_FAILED if inventory.failed else 0

    from weightclip.cli.sweep_display import display
    from weightclip.lab.sweep.manifest import write_manifest
    from weightclip.lab.sweep.sweep import sweep

    make_directory(arguments.out)

    @cache
    def keep() -> None:
        write_manifest(arguments.out, _command(), arguments.problem, plan.runs)

    def report(one: Report) -> None:
        keep()  # not before the executor works: a sweep that never began is none
        shown.report(one)

    try:
        with display(inventory, seconds, executor.workers) as shown:
            outcomes = sweep(plan, inventory.missing, arguments.out, executor, arguments.data_dir, live, report)
    except KeyboardInterrupt:
        print(f"stopped: {shown.ended} of {counted(len(inventory.missing), 'run')} ended; the same command resumes")
        return STOPPED
    return _tell_end(plan, inventory, outcomes, arguments.out)


def _tell_end(plan: Plan, inventory: Inventory, outcomes: Sequence[Outcome], out: Path) -> int:
    """Say how it went; the exit code, which tells of runs that failed, now or before."""
    from weightclip.lab.records.store import has_failed

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


def _check_options(arguments: argparse.Namespace) -> None:
    """What would be ignored is refused."""
    check_name("--executor", arguments.executor, EXECUTORS)
    if arguments.workers is not None:
        check_count("--workers", arguments.workers)
    for option, value, executor in (("--address", arguments.address, "ray"), ("--slurm", arguments.slurm, "slurm")):
        if value and arguments.executor != executor:
            shown = value if isinstance(value, str) else "=".join(value[0])
            raise ValueError(
                f"{option}: got {shown!r}, which is for --executor {executor}, but --executor is {arguments.executor}"
            )


def _choices(experiment: Experiment[Any], arguments: argparse.Namespace) -> tuple[list[Settings], int]:
    """Every choice of settings, checked, and the number of seeds of the grid.

    Mistakes are reported before anything heavy is imported or any data is fetched.
    """
    options = given(arguments, experiment.config)
    several = {name: values for name, values in options.items() if _is_list(experiment, name, values)}
    fixed = {name: value for name, value in options.items() if name not in several}
    methods = _named(experiment, "method", arguments)
    axes = {axis: _named(experiment, axis, arguments) for axis in experiment.schema.axes if axis != "method"} | several
    _check_used(experiment, arguments.problem, methods, options)
    option, name = ("--best", arguments.best or PAPER) if arguments.grid is None else ("--grid", arguments.grid)
    found: list[Settings] = []
    lacks: dict[str, None] = {}
    number = 1
    incompatible: IncompatibleError | None = None
    for values in itertools.product(*axes.values()):
        here = {**fixed, **dict(zip(axes, values, strict=True))}
        for method in methods:
            own = _own_options(experiment, arguments.problem, method, here)
            presets = read_presets(name, experiment, own, option)
            with _blaming(option, name):
                if arguments.grid is None:
                    lacks |= dict.fromkeys([] if name == PAPER else lacking(arguments.problem, [method], presets))
                    more = best(experiment, arguments.problem, [method], presets, own)
                else:
                    number = grid_seeds(presets)
                    more = search(experiment, arguments.problem, [method], presets, own)
            for choice in more:
                given_here = {key: value for key, value in choice.items() if key in own or key == "method"}
                try:
                    _check_choice(experiment, arguments.problem, choice, given_here, f"{option} {name}")
                except IncompatibleError as error:
                    incompatible = error
                else:
                    found += [choice] if choice not in found else []
    if not found:
        raise incompatible or ValueError("the values given do not go together")
    if lacks:
        print(f"{name} has no setting for {', '.join(lacks)}: using the defaults")
    return found, number


def _is_list(experiment: Experiment[Any], name: str, value: Any) -> bool:
    """Whether the option was given as a list of values, which a field with a tuple is not."""
    return isinstance(value, tuple) and field_kind(experiment.config, name) in (str, int, float)


def _check_used(experiment: Experiment[Any], problem: str, methods: Sequence[str], options: Mapping[str, Any]) -> None:
    """A ValueError for a setting that none of the methods has."""
    known = {one for method in methods for one in experiment.settings(problem, method, _single(options))}
    for name in options:
        if name in SETTINGS and name in experiment.schema.settings and name not in known:
            has = f"{methods[0]} has" if len(methods) == 1 else f"{', '.join(methods)} have"
            raise ValueError(f"--{name}: got a value, but {has} no such setting, only {', '.join(sorted(known))}")


def _own_options(experiment: Experiment[Any], problem: str, method: str, options: Mapping[str, Any]) -> Settings:
    """The options without settings that the method does not have."""
    known = experiment.settings(problem, method, options)
    return {name: value for name, value in options.items() if name not in SETTINGS or name in known}


def _single(options: Mapping[str, Any]) -> Settings:
    """The options with the first of several values."""
    return {name: value[0] if isinstance(value, tuple) else value for name, value in options.items()}


def _check_choice(experiment: Experiment[Any], problem: str, choice: Settings, own: Settings, file: str) -> None:
    """A ValueError for settings that are not accepted; it names the file if they are, without what comes from it."""
    try:
        experiment.configure(problem, choice)
    except IncompatibleError:
        raise
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
        values: Sequence[Any] = experiment.presets().get("axes", {}).get(axis, ())
        return values
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ValueError(f"{_several(axis)}: got {text!r}, expected values with commas, or all")
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


def _count(plan: Plan, inventory: Inventory, workers: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Print how many runs there are and, where runs like them are finished, time and space; identity -> seconds."""
    from weightclip.cli.tables import print_table
    from weightclip.lab.sweep.plan import known_costs

    parts = [f"{len(inventory.done)} done", f"{len(inventory.missing)} to run"]
    if inventory.failed:
        parts.append(f"{len(inventory.failed)} failed before (--retry-failed runs them again)")
    print(f"{arguments.problem}: {counted(len(plan.runs), 'run')}: {', '.join(parts)}")
    if not inventory.missing:
        return {}
    costs = known_costs(plan, arguments.out)
    if arguments.dry_run:
        rows = []
        for method in dict.fromkeys(run.method for run in plan.runs):
            own = [run for run in plan.runs if run.method == method]
            left = [run for run in inventory.missing if run.method == method]
            rows.append((method, str(len(own)), str(len(left)), *_total(left, costs)))
        print_table(("method", "runs", "to run", "time on one core", "space"), rows, right=(1, 2, 3, 4))
    known = [run for run in inventory.missing if run.identity in costs]
    time, size = _total(known, costs)
    if not known:
        print(f"time and space: unknown, as {arguments.out} has no finished run like these")
    else:
        of = "" if len(known) == len(inventory.missing) else f" for {len(known)} of them, unknown for the others"
        print(f"time on one core: {time}, space: {size}{of}; {counted(workers, 'worker')}")
    return {identity: cost.seconds for identity, cost in costs.items()}


def _total(runs: Sequence[Run], costs: Mapping[str, Cost]) -> tuple[str, str]:
    """The time and the space of runs; unknown unless those of every one are known."""
    from weightclip.lab.progress import duration

    if any(run.identity not in costs for run in runs):
        return UNKNOWN, UNKNOWN
    seconds, size = (sum(getattr(costs[run.identity], name) for run in runs) for name in ("seconds", "bytes"))
    return duration(seconds), _size(size)


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def _command() -> str:
    return shlex.join([PROGRAM, *sys.argv[1:]])
