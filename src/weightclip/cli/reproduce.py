"""`weightclip reproduce`: run the commands that reproduce a figure or table of the paper."""

from __future__ import annotations

import argparse
import shlex

from weightclip.cli.arguments import PROGRAM, SOME_FAILED, Parser
from weightclip.cli.sweep import EXECUTORS
from weightclip.lab.paper import FIGURES, ITEMS, RESULTS, find_item, reproductions
from weightclip.lab.text import list_text

SWEEP_OPTIONS = {
    "data-dir": ("DIR", "directory with data"),
    "workers": ("N", "number of parallel runs"),
    "executor": ("NAME", list_text(EXECUTORS, "or")),
    "address": ("ADDRESS", "address of a Ray cluster"),
}
"""Options that are passed to every sweep."""

SWEEP = "sweep"
NOT_SUPPORTED = "no experiment reproduces it yet"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} reproduce",
        usage="weightclip reproduce [ITEM] [-o DIR] [--seeds N] [options]",
        description="Run the commands that reproduce a figure or table of the paper.\n"
        "Finished runs are not repeated. After an interruption, the same command resumes.",
        epilog="examples:\n"
        "  weightclip reproduce --list\n"
        "  weightclip reproduce figure 3a --seeds 1 --steps 300k --dry-run\n",
    )
    parser.add_argument(
        "item", metavar="ITEM", nargs="*", help="figure 4, figure 3a, table 2, ... (default: list all items)"
    )
    parser.add_argument("--list", action="store_true", help="list all items and their commands")
    parser.add_argument("-o", "--out", default=FIGURES, metavar="DIR", help=f"figure directory (default: {FIGURES})")
    parser.add_argument("--results", default=RESULTS, metavar="DIR", help=f"record directory (default: {RESULTS})")
    parser.add_argument("--seeds", metavar="SEEDS", help="number of seeds, or 0-3 or 0,2,5 (default: as in the paper)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and the number of runs; run nothing")
    sweeps = parser.add_argument_group("options of every sweep")
    sweeps.add_argument("--steps", metavar="N", help="length of each run, in samples, epochs, steps or frames")
    for name, (metavar, help_text) in SWEEP_OPTIONS.items():
        sweeps.add_argument(f"--{name}", metavar=metavar, help=help_text)
    sweeps.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE", help="options of Slurm jobs")
    sweeps.add_argument("--retry-failed", action="store_true", help="rerun failed runs")
    parser.set_defaults(action=_reproduce)
    return parser


def _reproduce(arguments: argparse.Namespace) -> int:
    if arguments.list or not arguments.item:
        return _list()
    item, part = find_item(" ".join(arguments.item))
    parts = reproductions()[item]
    available = [one for name, one in parts.items() if one is not None and part in ("", name)]
    if not available:
        raise ValueError(f"{item}: {NOT_SUPPORTED}; {PROGRAM} reproduce --list shows all items")
    options = [word for name in SWEEP_OPTIONS for word in _option(name, getattr(arguments, name.replace("-", "_")))]
    options += [word for value in arguments.slurm for word in ("--slurm", value)]
    options += ["--retry-failed"] if arguments.retry_failed else []
    failed = False
    for reproduction in available:
        # The directory may contain longer runs, which were not requested.
        where = [] if arguments.steps is None else ["--where", f"{reproduction.length}={arguments.steps}"]
        sweep_options = [*_option(reproduction.length, arguments.steps), *options]
        for words in reproduction.filled(arguments.seeds, arguments.results, arguments.out):
            code = _run([*words, *(sweep_options if words[0] == SWEEP else where)], arguments.dry_run)
            if words[0] == SWEEP and code == SOME_FAILED:
                failed = True
                print("some runs of this sweep failed; the next commands use the others", flush=True)
            elif code != 0:
                return code
    if failed:
        print(f"{item} is incomplete because runs failed; {PROGRAM} status {arguments.results} lists them")
    return SOME_FAILED if failed else 0


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [f"--{name}", value]


def _run(words: list[str], dry_run: bool) -> int:
    """Print a command, run it and return its exit code."""
    from weightclip.cli import main

    print(_command_line(words), flush=True)
    if not dry_run:
        return main(words)
    return main([*words, "--dry-run"]) if words[0] == SWEEP else 0


def _list() -> int:
    for item, parts in reproductions().items():
        print(f"{item}: {ITEMS[item]}")
        for part, reproduction in parts.items():
            if part:
                print(f"  {part}:")
            for line in [NOT_SUPPORTED] if reproduction is None else map(_command_line, reproduction.filled()):
                print(f"    {line}")
    return 0


def _command_line(words: list[str]) -> str:
    return shlex.join([PROGRAM, *words])
