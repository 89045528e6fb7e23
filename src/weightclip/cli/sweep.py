"""`weightclip sweep`: run a problem over methods, settings and seeds."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
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
    loggers_from,
    pair,
    pointing_to_help,
    problem_command,
    read_field,
)
from weightclip.lab.experiment import Experiment, IncompatibleError
from weightclip.lab.methods import NAMED
from weightclip.lab.registry import experiment_of
from weightclip.lab.sweep.grid import PAPER, Settings, best, grid_seeds, lacking, read_presets, search
from weightclip.lab.text import clock_text, list_text

if TYPE_CHECKING:
    from weightclip.lab.records.store import Cost
    from weightclip.lab.sweep.executor import Executor, Report
    from weightclip.lab.sweep.plan import Inventory, Plan, Run
    from weightclip.lab.sweep.worker import Outcome

UNKNOWN = "unknown"

_DESCRIPTION = """\
Run every combination of method, setting and seed. Repeating the command runs
only missing runs. Settings come from --grid, or are the paper's best. Other
options apply to all runs; a list of values, as in --kappa 1,2,4, makes a grid."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    return problem_command("sweep", _DESCRIPTION, _add_common, _add_options)


def _add_common(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--grid", metavar="GRID", help="settings to search: paper (Table 1 of the paper) or a TOML file")
    which.add_argument(
        "--best",
        nargs="?",
        const=PAPER,
        metavar="FILE",
        help="one setting per method: the preset (the paper's Table 2, unless another variant or scale is chosen) or a "
        "TOML file",
    )
    add_output(parser)
    running = parser.add_argument_group("execution")
    running.add_argument(
        "--dry-run", action="store_true", help="print the number of runs, time and disk space; run nothing"
    )
    running.add_argument("--retry-failed", action="store_true", help="retry failed runs")
    running.add_argument("--workers", type=count, metavar="N", help="number of parallel runs (default: one per core)")
    running.add_argument(
        "--executor",
        default="local",
        metavar="NAME",
        help=f"{list_text(EXECUTORS, 'or')} (default: local)",
    )
    running.add_argument(
        "--address", metavar="ADDRESS", help="address of a Ray cluster, or auto (default: start a local cluster)"
    )
    running.add_argument(
        "--slurm",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="option of the Slurm jobs: partition=cpu, time=120, mem_gb=2, ...",
    )


def _add_options(
    parser: argparse.ArgumentParser, experiment: Experiment[Any], defaults: Mapping[str, Any] | None
) -> None:
    axes = parser.add_argument_group("axes")
    for axis in experiment.schema.axes:
        default = "the paper's methods" if axis == "method" else "all"
        help_text = f"comma-separated values, or all (default: {default})"
        axes.add_argument(_plural_option(axis), dest=f"{axis}_values", metavar="VALUES", default="all", help=help_text)
    # The defaults of settings differ between methods and come from the grid or the presets.
    displayed = defaults and {name: value for name, value in defaults.items() if name not in experiment.schema.settings}
    exclude = ("problem", "seed", "kappa_rule", *experiment.schema.axes)
    add_config(parser, experiment.config, exclude, displayed, several=True)
    add_seeds(parser, "the grid's, or seed 0")
    _add_common(parser)
    parser.set_defaults(action=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    experiment = experiment_of(arguments.problem)
    _check_options(arguments)
    with pointing_to_help("sweep", arguments.problem):
        configs, seeds_of_grid = _configs(experiment, arguments)
    loggers = loggers_from(arguments)
    executor = EXECUTORS[arguments.executor](arguments)
    import_torch()

    from weightclip.lab.files import make_directory
    from weightclip.lab.records.store import remove_remains
    from weightclip.lab.sweep.locks import locked_runs
    from weightclip.lab.sweep.plan import make_plan, take_inventory

    seeds = arguments.seeds or range(seeds_of_grid)
    fetch = not arguments.dry_run
    plan = make_plan(experiment, configs, seeds, arguments.data_dir, print, fetch)
    for data in plan.data.values():
        if data is not None:
            print("data: not on this machine" if isinstance(data, str) else f"data: {data.source}")
    inventory = take_inventory(plan, arguments.out, arguments.retry_failed)
    seconds = _count(plan, inventory, executor.workers, arguments)
    if arguments.dry_run:
        return 0
    remove_remains(arguments.out, inventory.done)
    locked_runs(arguments.out)  # removes the files of killed processes
    if not inventory.missing:
        return SOME_FAILED if inventory.failed else 0

    from weightclip.cli.sweep_display import show_sweep
    from weightclip.lab.sweep.executor import sweep
    from weightclip.lab.sweep.manifest import write_manifest

    make_directory(arguments.out)

    @cache
    def save_manifest() -> None:
        write_manifest(arguments.out, _command(), arguments.problem, plan.runs)

    def report(one: Report) -> None:
        save_manifest()  # deferred: a sweep whose executor fails to start leaves no manifest
        display.report(one)

    try:
        with show_sweep(inventory, seconds, executor.workers) as display:
            outcomes = sweep(plan, inventory.missing, arguments.out, executor, arguments.data_dir, loggers, report)
    except KeyboardInterrupt:
        print(f"stopped: {display.ended} of {counted(len(inventory.missing), 'run')} ended; the same command resumes")
        return STOPPED
    return _summarize(plan, inventory, outcomes, arguments.out)


def _summarize(plan: Plan, inventory: Inventory, outcomes: Sequence[Outcome], out: Path) -> int:
    """Print the outcome; return the exit code, which is nonzero if a run failed, now or earlier."""
    from weightclip.lab.records.store import has_failed

    failed = [one for one in outcomes if one.status == "failed"]
    before = f", {len(inventory.failed)} earlier" if inventory.failed else ""
    print(f"{counted(len(outcomes) - len(failed), 'run')} done, {len(failed)} failed{before}; records in {out}")
    if failed:
        reasons = Counter(one.reason for one in failed).most_common(5)
        print("\n".join(f"  {number} x {reason}" for reason, number in reasons))
    if any(has_failed(out, run) for run in plan.runs):
        print(f"{PROGRAM} status {out} --failures shows the tracebacks; --retry-failed retries them")
    print(f"next: {PROGRAM} best {out}; {PROGRAM} report {out}")
    return SOME_FAILED if failed or inventory.failed else 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Reject options that would be ignored."""
    check_name("--executor", arguments.executor, EXECUTORS)
    if arguments.workers is not None:
        check_count("--workers", arguments.workers)
    for option, executor in EXECUTOR_OPTIONS.items():
        value = getattr(arguments, option)
        if value and arguments.executor != executor:
            text = value if isinstance(value, str) else "=".join(value[0])
            raise ValueError(
                f"--{option}: got {text!r}, which needs --executor {executor}, but --executor is {arguments.executor}"
            )


def _configs(experiment: Experiment[Any], arguments: argparse.Namespace) -> tuple[list[Any], int]:
    """The resolved configuration of every combination of settings, and the grid's number of seeds.

    Invalid settings are reported before PyTorch is imported or data is downloaded.
    """
    options = given(arguments, experiment.config)
    several = {name: values for name, values in options.items() if _is_list(experiment, name, values)}
    fixed = {name: value for name, value in options.items() if name not in several}
    methods = _axis_values(experiment, "method", arguments)
    axes = {
        axis: _axis_values(experiment, axis, arguments) for axis in experiment.schema.axes if axis != "method"
    } | several
    _check_used(experiment, arguments.problem, methods, options)
    option, name = ("--best", arguments.best or PAPER) if arguments.grid is None else ("--grid", arguments.grid)
    chosen: list[Settings] = []
    found: list[Any] = []
    lacks: dict[str, None] = {}
    number = 1
    incompatible: IncompatibleError | None = None
    for values in itertools.product(*axes.values()):
        combination = {**fixed, **dict(zip(axes, values, strict=True))}
        for method in methods:
            method_options = _method_options(experiment, arguments.problem, method, combination)
            presets = read_presets(name, experiment, method_options, option)
            with _naming_file(option, name):
                if arguments.grid is None:
                    lacks |= dict.fromkeys([] if name == PAPER else lacking(arguments.problem, [method], presets))
                    choices = best(experiment, arguments.problem, [method], presets, method_options)
                else:
                    number = grid_seeds(presets)
                    choices = search(experiment, arguments.problem, [method], presets, method_options)
            for choice in choices:
                if choice in chosen:
                    continue
                chosen.append(choice)
                try:
                    found.append(_configure(experiment, arguments.problem, choice, method_options, f"{option} {name}"))
                except IncompatibleError as error:
                    incompatible = error
    if not found:
        axes_given = ", ".join(map(_plural_option, experiment.schema.axes))
        raise incompatible or ValueError(f"{axes_given}: no combination of these values is valid")
    if lacks:
        print(f"{name} has no setting for {', '.join(lacks)}: using the defaults")
    return found, number


def _is_list(experiment: Experiment[Any], name: str, value: Any) -> bool:
    """Whether the option was given as a list of values; a field of type tuple takes one tuple."""
    return isinstance(value, tuple) and field_kind(experiment.config, name) in (str, int, float)


def _check_used(experiment: Experiment[Any], problem: str, methods: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise a ValueError for a setting that none of the methods has."""
    known = {one for method in methods for one in experiment.settings(problem, method, _single(options))}
    for name in options:
        if name in NAMED and name in experiment.schema.settings and name not in known:
            subject = f"{methods[0]} has" if len(methods) == 1 else f"{', '.join(methods)} have"
            raise ValueError(f"--{name}: got a value, but {subject} no such setting, only {', '.join(sorted(known))}")


def _method_options(experiment: Experiment[Any], problem: str, method: str, options: Mapping[str, Any]) -> Settings:
    """The options without settings that the method does not have."""
    known = experiment.settings(problem, method, options)
    return {name: value for name, value in options.items() if name not in NAMED or name in known}


def _single(options: Mapping[str, Any]) -> Settings:
    """The options with the first value of each list."""
    return {name: value[0] if isinstance(value, tuple) else value for name, value in options.items()}


def _configure(experiment: Experiment[Any], problem: str, choice: Settings, options: Settings, file: str) -> Any:
    """The resolved configuration. A ValueError names the file, unless the options alone cause it."""
    try:
        return experiment.configure(problem, choice)
    except IncompatibleError:
        raise
    except ValueError as error:
        given_here = {key: value for key, value in choice.items() if key in options or key == "method"}
        try:
            experiment.configure(problem, given_here)
        except ValueError as same:
            if str(same) == str(error):
                raise
        raise ValueError(f"{file}: {error}") from error


@contextmanager
def _naming_file(option: str, name: str) -> Iterator[None]:
    """Add the option and the file to errors in this block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option} {name}: {error}") from error


def _plural_option(axis: str) -> str:
    """The option that takes several values of an axis."""
    name = axis.replace("_", "-")
    return f"--{name}" if name.endswith("s") else f"--{name}s"


def _axis_values(experiment: Experiment[Any], axis: str, arguments: argparse.Namespace) -> Sequence[Any]:
    text: str = getattr(arguments, f"{axis}_values")
    if text.strip() == "all":
        values: Sequence[Any] = experiment.presets().get("axes", {}).get(axis, ())
        return values
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ValueError(f"{_plural_option(axis)}: got {text!r}, expected comma-separated values, or all")
    return [read_field(experiment.config, axis, _plural_option(axis), part) for part in parts]


def _local(arguments: argparse.Namespace) -> Executor:
    from weightclip.lab.sweep.local import Local, cores

    return Local(arguments.workers or cores())


def _ray(arguments: argparse.Namespace) -> Executor:
    from weightclip.lab.sweep.ray import Ray

    return Ray(arguments.address, arguments.workers)


def _slurm(arguments: argparse.Namespace) -> Executor:
    from weightclip.lab.sweep.slurm import Slurm

    options = {name: int(value) if value.isdigit() else value for name, value in arguments.slurm}
    return Slurm(arguments.out / ".slurm", arguments.workers, options, dry_run=arguments.dry_run)


EXECUTORS: Mapping[str, Callable[[argparse.Namespace], Executor]] = MappingProxyType(
    {"local": _local, "ray": _ray, "slurm": _slurm}
)
"""Name -> function that makes the executor from the options of the command."""

EXECUTOR_OPTIONS: Mapping[str, str] = MappingProxyType({"address": "ray", "slurm": "slurm"})
"""Option -> the only executor that has it."""


def _count(plan: Plan, inventory: Inventory, workers: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Print the number of runs and their estimated time and disk space; return identity -> seconds."""
    from weightclip.cli.results import print_table
    from weightclip.lab.sweep.plan import known_costs

    parts = [f"{len(inventory.done)} done", f"{len(inventory.missing)} to run"]
    if inventory.failed:
        parts.append(f"{len(inventory.failed)} failed earlier (use --retry-failed)")
    print(f"{arguments.problem}: {counted(len(plan.runs), 'run')}: {', '.join(parts)}")
    if not inventory.missing:
        return {}
    costs = known_costs(plan, arguments.out)
    if arguments.dry_run:
        rows = []
        for method in dict.fromkeys(run.method for run in plan.runs):
            method_options = [run for run in plan.runs if run.method == method]
            left = [run for run in inventory.missing if run.method == method]
            rows.append((method, str(len(method_options)), str(len(left)), *_total(left, costs)))
        columns = ("method", "runs", "to run", "time on one core", "space")
        shown = len(columns) if costs else columns.index("time on one core")
        print_table(columns[:shown], [row[:shown] for row in rows], right=range(1, shown))
    known = [run for run in inventory.missing if run.identity in costs]
    time, size = _total(known, costs)
    if not known:
        print(f"time and space: unknown until a similar run, also a shorter one, has finished in {arguments.out}")
    else:
        scope = "" if len(known) == len(inventory.missing) else f" for {len(known)} of them, unknown for the others"
        print(f"time on one core: {time}, space: {size}{scope};  {counted(workers, 'worker')}")
    return {identity: cost.seconds for identity, cost in costs.items()}


def _total(runs: Sequence[Run], costs: Mapping[str, Cost]) -> tuple[str, str]:
    """Total time and space of runs, or unknown if it is unknown for one of them."""
    if any(run.identity not in costs for run in runs):
        return UNKNOWN, UNKNOWN
    seconds, size = (sum(getattr(costs[run.identity], name) for run in runs) for name in ("seconds", "bytes"))
    return clock_text(seconds), _size(size)


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def _command() -> str:
    return shlex.join([PROGRAM, *sys.argv[1:]])
