"""Speedup of `load` over reading one record at a time.

20,000 synthetic records of ten tasks, with the columns of streaming runs, in a temporary directory. Both methods return
one table and check the hash of every record; `load` also adds the configurations to the rows. They alternate in one
process; the ratio is the median over the pairs.

    python benchmarks/loading.py [--quick]

With `--quick` there are at most 2,000 records, fewer if writing them takes long.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from timing import deadline, elapsed, leave, median_ratio, print_claim, rounds, time_limit

from weightclip.lab.experiments.streaming.metrics import METRICS, make_schema
from weightclip.lab.records.record import Record, identity, read_record, write_record
from weightclip.lab.records.store import record_path
from weightclip.lab.records.table import load

FILLED_BY = 18.0
"""Seconds since the start of the process after which `--quick` writes only as many records as needed."""

SCHEMA = make_schema()
NEEDED = 50
TASKS = 10
METHODS = ("sgd", "adam", "sgd+wc", "adam+wc")
CONFIG = {
    "problem": "input-permuted-mnist",
    "method": "sgd",
    "lr": 0.001,
    "kappa": 1.0,
    "decay": None,
    "sigma": None,
    "settings": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "seed": 0,
    "steps": 5000 * TASKS,
    "period": 5000,
    "hidden": [300, 150],
    "activation": "leaky_relu",
    "outputs": 10,
    "variant": "paper",
    "backend": "fused",
    "dtype": "float32",
    "diagnostics": True,
    "rules": None,
}
VERSIONS = {"python": "3.12.0", "weightclip": "0.1.0", "torch": "2.6.0", "numpy": "2.2.0", "polars": "1.30.0"}
DATA: dict[str, Any] = {
    "name": "mnist",
    "kind": "directory",
    "location": "",
    "checksum": "0" * 32,
    "official": True,
    "samples": 60_000,
}


def make_table() -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame({"seed": [0] * TASKS, "task": range(1, TASKS + 1)}).with_columns(
        (pl.col("task") * 5000).alias("samples"),
        *(pl.Series(name, random.random(TASKS)) for name in METRICS),
        *(pl.Series(f"rank_{layer}", random.integers(1, 300, TASKS)) for layer in (1, 2, 3)),
    )


def fill(store: Path, records: int, quick: bool) -> int:
    """Write records that differ only in method and seed, and return their number."""
    table = make_table()
    for number in range(records):
        if quick and number >= NEEDED and elapsed() > FILLED_BY:
            return number
        method, seed = METHODS[number % len(METHODS)], number // len(METHODS)
        config = {**CONFIG, "method": method, "seed": seed}
        name = identity("streaming", config, DATA["checksum"])
        own = table.with_columns(pl.lit(seed, pl.Int64).alias("seed"))
        record = Record(SCHEMA, name, config, own, DATA, seconds=1.0, versions=VERSIONS, platform="")
        write_record(record, record_path(store, f"{method}/seed{seed}", name))
    return records


def one_by_one(store: Path) -> pl.DataFrame:
    return pl.concat([read_record(path).table for path in sorted(store.rglob("*.parquet"))])


def seconds(function: Callable[[Path], pl.DataFrame], store: Path) -> float:
    began = time.perf_counter()
    function(store)
    return time.perf_counter() - began


def main(quick: bool) -> None:
    records, pairs = (2_000, 5) if quick else (20_000, 3)
    slow: list[float] = []
    fast: list[float] = []
    with time_limit(quick), tempfile.TemporaryDirectory() as directory:
        store = Path(directory)
        began = time.perf_counter()
        records = fill(store, records, quick)
        print(f"{records:,} records written in {time.perf_counter() - began:.1f} s", flush=True)
        for _ in rounds(pairs, deadline(quick)):
            fast.append(seconds(load, store))
            slow.append(seconds(one_by_one, store))
    if slow:
        print(f"loaded in {min(fast):.2f} s here, one by one in {min(slow):.2f} s")
    print_claim(f"{records:,} records, one by one / load", median_ratio(slow, fast), digits=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 2,000 records, within 45 s")
    arguments = parser.parse_args()
    main(arguments.quick)
    leave(arguments.quick)
