"""`weightclip status`: the done, running, failed and remaining runs of the sweeps in a store."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from weightclip._text import counted
from weightclip.cli.arguments import PROGRAM, Parser
from weightclip.cli.results import print_table
from weightclip.lab.text import clock_text

if TYPE_CHECKING:
    from weightclip.lab.sweep.locks import Note
    from weightclip.lab.sweep.manifest import Manifest, State

_RECORD = re.compile(r"_[0-9a-f]{12}\.parquet$")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = Parser(
        prog=f"{PROGRAM} status",
        description="Show the done, running, failed and remaining runs of the sweeps in a store.",
    )
    parser.add_argument(
        "stores",
        metavar="DIR",
        type=Path,
        nargs="*",
        default=[Path("results")],
        help="directories with results (default: results)",
    )
    parser.add_argument("--failures", action="store_true", help="show the tracebacks of failed runs")
    parser.set_defaults(action=_status)
    return parser


def _status(arguments: argparse.Namespace) -> int:
    stores: list[Path] = arguments.stores
    for store in stores:
        if not store.is_dir():
            raise ValueError(f"DIR: got {str(store)!r}, expected a directory with results")
    for store in stores:
        if len(stores) > 1:
            print(f"{store}:")
        _show_store(store, arguments.failures)
    return 0


def _show_store(store: Path, tracebacks: bool) -> None:
    from weightclip.lab.records.store import failures
    from weightclip.lab.sweep.locks import locked_runs
    from weightclip.lab.sweep.manifest import current, read_manifests, state_of

    manifests = current(read_manifests(store))
    in_sweeps = {run.identity for manifest in manifests for run in manifest.runs}
    lone_runs = [
        note for identity, note in locked_runs(store).items() if identity not in in_sweeps and note is not None
    ]
    if not manifests:
        found = sum(1 for path in store.rglob("*.parquet") if _RECORD.search(path.name) and path.is_file())
        print(f"{store} has no sweep; it has {counted(found, 'record')}")
    for manifest in manifests:
        _show(manifest, state_of(store, manifest))
    if lone_runs:
        print("running outside sweeps:")
    for note in lone_runs:
        _show_note(note)
    failed = failures(store)
    for failure in failed if tracebacks else failed[-5:]:
        print(f"failed {failure.when}: {failure.relative_path}: {failure.reason}")
        if tracebacks:
            print("  " + failure.traceback.rstrip().replace("\n", "\n  "))
    if failed and not tracebacks:
        print(f"{len(failed)} failed: --failures shows their tracebacks, weightclip sweep --retry-failed retries them")


def _show(manifest: Manifest, state: State) -> None:
    print(manifest.command)
    running = [run for run in state.left if run.identity in state.running]
    waiting = [run for run in state.left if run.identity not in state.running]
    groups = {"done": state.done, "running": running, "failed": state.failed, "left": waiting}
    counts = {name: Counter(run.method for run in runs) for name, runs in groups.items()}
    methods = list(dict.fromkeys(run.method for run in manifest.runs))
    rows = [(method, *(str(counts[column][method] or "") for column in groups)) for method in methods]
    rows.append(("all", *(str(counts[column].total()) for column in groups)))
    print_table(("method", *groups), rows, right=range(1, 5))
    for note in state.running.values():
        _show_note(note)
    if state.waiting:
        print(f"  {counted(len(state.waiting), 'run')} queued by a sweep, waiting for a worker")
    for line in state.damaged:
        print(f"  {line}; it is counted as left")
    print(_time_left(state))


def _show_note(note: Note) -> None:
    since = clock_text(time.time() - note.since)
    print(f"  {note.done:4.0%} after {since}, process {note.process} on {note.node}: {note.relative_path}")


def _time_left(state: State) -> str:
    """The remaining time, estimated from the finished and running runs."""
    from weightclip.lab.sweep.plan import kind_of, seconds_left, seconds_per_run

    if not state.left:
        return "nothing left to run"
    now = time.time()
    pieces = [(kind_of(run.relative_path), 1.0, state.seconds[run.identity]) for run in state.done]
    places = {run.identity: run.relative_path for run in state.left}
    pieces += [
        (kind_of(places[identity]), note.done - note.first, now - note.first_when)
        for identity, note in state.running.items()
        if note.done > note.first
    ]
    done = {identity: note.done for identity, note in state.running.items()}
    left = [(kind_of(run.relative_path), 1.0 - done.get(run.identity, 0.0)) for run in state.left]
    seconds = seconds_left(left, seconds_per_run(pieces, {}), max(1, len(state.running)))
    if seconds is None:
        return "time left: unknown" + ("" if state.running else "; nothing is running")
    if not state.running:
        return f"nothing is running; {counted(len(state.left), 'run')} left, about {clock_text(seconds)} on one core"
    return f"about {clock_text(seconds)} left with {len(state.running)} running"
