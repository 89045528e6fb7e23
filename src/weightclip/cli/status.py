"""`weightclip status`: what of the sweeps in a store is done, running, failed and left."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from weightclip.cli.progress import duration
from weightclip.cli.tables import print_table
from weightclip.lab.results.store import failures
from weightclip.lab.sweep.manifest import Manifest, State, read_manifests, state_of


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help="what of a sweep is done, running, failed and left",
        description="What of the sweeps in a store is done, running, failed and left; also while they run.",
    )
    parser.add_argument("store", metavar="DIR", type=Path, nargs="?", default=Path("results"), help="default: results")
    parser.add_argument("--failures", action="store_true", help="with the tracebacks of what failed")
    parser.set_defaults(action=_status)


def _status(arguments: argparse.Namespace) -> int:
    store: Path = arguments.store
    if not store.is_dir():
        raise ValueError(f"DIR: got {str(store)!r}, expected a directory with results")
    manifests = read_manifests(store)
    if not manifests:
        found = sum(1 for _ in store.rglob("*.parquet"))
        print(f"{store} has no sweep; it has {found} records")
    for manifest in manifests:
        _show(manifest, state_of(store, manifest))
    failed = failures(store)
    for failure in failed if arguments.failures else failed[-5:]:
        print(f"failed {failure.when}: {failure.place}: {failure.reason}")
        if arguments.failures:
            print("  " + failure.traceback.rstrip().replace("\n", "\n  "))
    if failed and not arguments.failures:
        print(
            f"{len(failed)} failed: --failures shows their tracebacks, weightclip sweep --retry-failed runs them again"
        )
    return 0


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
        if note is not None:
            since = duration(time.time() - note.since)
            print(f"  {note.place}: {note.done:.0%} after {since}, by process {note.process} of {note.node}")
    print(_time_left(state))


def _time_left(state: State) -> str:
    """From the sweep's own estimates, corrected by the runs that are under way."""
    if not state.left:
        return "nothing left to run"
    done = {identity: note.done for identity, note in state.running.items() if note is not None}
    seconds = sum(run.seconds * (1 - done.get(run.identity, 0.0)) for run in state.left)
    under_way = [
        (run.seconds * note.done, time.time() - note.since)
        for run in state.left
        if (note := state.running.get(run.identity)) is not None and note.done > 0
    ]
    if under_way:
        seconds *= sum(took for _, took in under_way) / max(sum(thought for thought, _ in under_way), 1e-9)
    if not state.running:
        return f"nothing is running; what is left takes about {duration(seconds)} on one core"
    return f"about {duration(seconds / len(state.running))} left with {len(state.running)} running"
