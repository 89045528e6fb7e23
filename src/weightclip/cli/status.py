"""`weightclip status`: what of the sweeps in a store is done, running, failed and left."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from weightclip.cli.progress import duration
from weightclip.cli.tables import print_table
from weightclip.lab.results.store import failures
from weightclip.lab.sweep.pace import seconds_left, slowness
from weightclip.numerals import counted

if TYPE_CHECKING:
    from weightclip.lab.sweep.manifest import Manifest, State

_RECORD = re.compile(r"_[0-9a-f]{12}\.parquet$")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help="what of a sweep is done, running, failed and left",
        description="What of the sweeps in a store is done, running, failed and left; also while they run.",
    )
    parser.add_argument(
        "stores", metavar="DIR", type=Path, nargs="*", default=[Path("results")], help="default: results"
    )
    parser.add_argument("--failures", action="store_true", help="with the tracebacks of what failed")
    parser.set_defaults(action=_status)


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
    from weightclip.lab.sweep.manifest import current, read_manifests, state_of

    manifests = current(read_manifests(store))
    if not manifests:
        found = sum(1 for path in store.rglob("*.parquet") if _RECORD.search(path.name) and path.is_file())
        print(f"{store} has no sweep; it has {counted(found, 'record')}")
    for manifest in manifests:
        _show(manifest, state_of(store, manifest))
    failed = failures(store)
    for failure in failed if tracebacks else failed[-5:]:
        print(f"failed {failure.when}: {failure.place}: {failure.reason}")
        if tracebacks:
            print("  " + failure.traceback.rstrip().replace("\n", "\n  "))
    if failed and not tracebacks:
        print(
            f"{len(failed)} failed: --failures shows their tracebacks, weightclip sweep --retry-failed runs them again"
        )


def _show(manifest: Manifest, state: State) -> None:
    print(manifest.command)
    groups = {"done": state.done, "failed": state.failed, "left": state.left}
    counts = {name: Counter(run.method for run in runs) for name, runs in groups.items()}
    counts["running"] = Counter(run.method for run in state.left if run.identity in state.running)
    methods = list(dict.fromkeys(run.method for run in manifest.runs))
    columns = ("done", "running", "failed", "left")
    rows = [(method, *(str(counts[column][method] or "") for column in columns)) for method in methods]
    rows.append(("all", *(str(counts[column].total()) for column in columns)))
    print_table(("method", *columns), rows, right=range(1, 5))
    for note in state.running.values():
        since = duration(time.time() - note.since)
        print(f"  {note.place}: {note.done:.0%} after {since}, by process {note.process} of {note.node}")
    if state.waiting:
        print(f"  {counted(len(state.waiting), 'run')} in a sweep's queue, waiting for a worker")
    for line in state.damaged:
        print(f"  {line}; it counts as left")
    print(_time_left(manifest, state))


def _time_left(manifest: Manifest, state: State) -> str:
    """From the sweep's own estimates, corrected by the runs that are under way."""
    if not state.left:
        return "nothing left to run"
    thought = {run.identity: run.seconds for run in manifest.runs}
    pieces = [
        (thought[identity] * (note.done - note.first), time.time() - note.first_when)
        for identity, note in state.running.items()
        if note.done > 0
    ]
    done = {identity: note.done for identity, note in state.running.items()}
    left = [run.seconds * (1 - done.get(run.identity, 0.0)) for run in state.left]
    factor = slowness(pieces, sum(thought.values()))
    if not state.running:
        return f"nothing is running; what is left takes about {duration(factor * sum(left))} on one core"
    seconds = factor * seconds_left(left, len(state.running))
    return f"about {duration(seconds)} left with {len(state.running)} running"
