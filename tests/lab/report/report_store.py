"""A store of synthetic streaming runs for reports."""

from pathlib import Path
from typing import Any

import polars as pl

from lab.records.synthetic_records import comparison
from weightclip.lab.records.record import Record, identity, write_record
from weightclip.lab.records.schema import Schema
from weightclip.lab.records.store import Failure, record_path, write_failure

MNIST, EMNIST = "input-permuted-mnist", "label-permuted-emnist"
HOSTILE = "<img src=x onerror='window.injected=1'></script><script>window.injected=1</script>"


def write_run(
    store: Path,
    method: str = "sgd",
    *,
    seed: int = 0,
    problem: str = MNIST,
    official: bool = True,
    tasks: int = 6,
    accuracy: float = 0.5,
    slope: float = 0.0,
    seconds: float = 1.0,
    table: pl.DataFrame | None = None,
    experiment: str = "streaming",
    has_data: bool = True,
    schema: Schema | None = None,
    **config: Any,
) -> Record:
    """Write a run whose accuracy starts at `accuracy`, depends on the seed and changes by `slope` per task."""
    settings = {"lr": 0.001, "kappa": None, "decay": None, "sigma": None, "settings": {}}
    setup = {"steps": 100 * tasks, "period": 100, "hidden": [30, 20], "activation": "leaky_relu", "rules": None}
    facts = {"problem": problem, "method": method, "seed": seed, **settings, **setup, **config}
    if table is None:
        number = list(range(tasks))
        table = pl.DataFrame(
            {
                "task": [task + 1 for task in number],
                "samples": [100 * (task + 1) for task in number],
                "accuracy": [accuracy + seed / 1000 + slope * task for task in number],
                "loss": [2.0 - accuracy - slope * task for task in number],
                "saturated": [None] * tasks,
            },
            schema_overrides={"saturated": pl.Float64},
        )
    checksum = f"{'official' if official else 'stand-in'} {problem}" if has_data else None
    data = {"name": problem.rpartition("-")[2], "kind": "directory", "checksum": checksum, "official": official}
    if not has_data:
        data["kind"] = "simulator"
    about = comparison(experiment, facts) | ({} if schema is None else {"schema": schema})
    record = Record(
        identity=identity(experiment, facts, checksum), config=facts, table=table, data=data, seconds=seconds, **about
    )
    write_record(
        record, record_path(store, f"{problem[:8]}/{method[:3]}_seed{seed}".replace("<", "-"), record.identity)
    )
    return record


def write_store(store: Path) -> Path:
    """Write a store with two problems, one of them on stand-in data and with a search, and a failed run."""
    for seed in (0, 1):
        write_run(store, "sgd", seed=seed, tasks=60, accuracy=0.8, slope=-0.002)
        write_run(store, "adam", seed=seed, tasks=60, accuracy=0.75)
        write_run(store, "adam+wc", seed=seed, tasks=60, accuracy=0.7, slope=0.002, kappa=1.0, lr=0.0001)
        for kappa in (1.0, 2.0, 3.0):
            for lr in (0.1, 0.01):
                score = 0.4 - abs(kappa - 2) / 10 - lr
                wide = {"problem": EMNIST, "official": False, "seed": seed, "tasks": 8}
                write_run(store, "sgd+wc", accuracy=score, kappa=kappa, lr=lr, **wide)
        write_run(store, "sgd", problem=EMNIST, official=False, seed=seed, tasks=8, accuracy=0.2)
    write_failed(store)
    return store


def write_failed(store: Path, reason: str = "MemoryError: no memory", identity: str = "0" * 12) -> None:
    traceback = f"Traceback (most recent call last):\n  ...\n{reason}\n"
    config = {"problem": MNIST, "method": "adam", "seed": 7}
    place = f"{MNIST}/adam/lr0.001_seed7"
    write_failure(store, Failure(place, identity, "streaming", config, reason, traceback, "2024-05-01T12:00:00+00:00"))
