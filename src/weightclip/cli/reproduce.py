"""`weightclip reproduce`: every figure and table of the paper, and the commands that make it."""

from __future__ import annotations

import argparse
import shlex

from weightclip.cli.arguments import PROGRAM, SOME_FAILED, Parser
from weightclip.lab.paper import FIGURES, ITEMS, RESULTS, find_item, reproductions

PASSED_ON = {
    "data-dir": ("DIR", "directory with data"),
    "workers": ("N", "parallel runs"),
    "executor": ("NAME", "local, ray or slurm"),
    "address": ("ADDRESS", "of a Ray cluster"),
}
"""Options for every sweep."""

SWEEP = "sweep"
NOT_YET = "no experiment here makes it yet"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} reproduce",
        usage="weightclip reproduce [ITEM] [-o DIR] [--seeds N] [options]",
        description="Run, one after the other, the commands that make a figure or a table of the paper.\n"
        "Finished runs are not repeated: the same command resumes after an interruption.",
        epilog="examples:\n"
        "  weightclip reproduce --list\n"
        "  weightclip reproduce figure 3 --seeds 5 --steps 100k --dry-run\n",
    )
    parser.add_argument("item", metavar="ITEM", nargs="*", help="figure 3, table 2, ...; without it all are listed")
    parser.add_argument("--list", action="store_true", help="list all items and their commands")
    parser.add_argument("-o", "--out", default=FIGURES, metavar="DIR", help=f"for figures (default: {FIGURES})")
    parser.add_argument("--results", default=RESULTS, metavar="DIR", help=f"for records (default: {RESULTS})")
    parser.add_argument("--seeds", metavar="SEEDS", help="how many, or which: 0-3 (default: as many as the paper)")
    parser.add_argument("--dry-run", action="store_true", help="only show the commands, and count what they would run")
    sweeps = parser.add_argument_group("for every sweep")
    sweeps.add_argument("--steps", metavar="N", help="the length of each run, in samples, epochs, steps or frames")
    for name, (metavar, help_text) in PASSED_ON.items():
        sweeps.add_argument(f"--{name}", metavar=metavar, help=help_text)
    sweeps.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE", help="options of Slurm jobs")
    sweeps.add_argument("--retry-failed", action="store_true", help="rerun failed runs")
    parser.set_defaults(action=_reproduce)
    return parser


def _reproduce(arguments: argparse.Namespace) -> int:
    if arguments.list or not arguments.item:
        return _list()
    item = find_item(" ".join(arguments.item))
    found = [one for one in reproductions()[item].values() if one is not None]
    if not found:
        raise ValueError(f"{item}: {NOT_YET}; {PROGRAM} reproduce --list says what there is")
    options = [word for name in PASSED_ON for word in _option(name, getattr(arguments, name.replace("-", "_")))]
    options += [word for value in arguments.slurm for word in ("--slurm", value)]
    options += ["--retry-failed"] if arguments.retry_failed else []
    failed = False
    for one in found:
        # What was there before may be longer: it is not what was asked for.
        those = [] if arguments.steps is None else ["--where", f"{one.length}={arguments.steps}"]
        asked = [*_option(one.length, arguments.steps), *options]
        for words in one.filled(arguments.seeds, arguments.results, arguments.out):
            code = _run([*words, *(asked if words[0] == SWEEP else those)], arguments.dry_run)
            if words[0] == SWEEP and code == SOME_FAILED:
                failed = True
                print("some runs of this sweep failed: what follows is made from the others", flush=True)
            elif code != 0:
                return code
    if failed:
        print(f"{item} lacks runs that failed; {PROGRAM} status {arguments.results} shows which")
    return SOME_FAILED if failed else 0


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [f"--{name}", value]


def _run(words: list[str], dry_run: bool) -> int:
    """Show a command and run it; its exit code."""
    from weightclip.cli import main

    print(_shown(words), flush=True)
    if not dry_run:
        return main(words)
    return main([*words, "--dry-run"]) if words[0] == SWEEP else 0


def _list() -> int:
    for item, parts in reproductions().items():
        print(f"{item}: {ITEMS[item]}")
        for part, one in parts.items():
            if part:
                print(f"  {part}:")
            for line in [NOT_YET] if one is None else map(_shown, one.filled()):
                print(f"    {line}")
    return 0


def _shown(words: list[str]) -> str:
    return shlex.join([PROGRAM, *words])
