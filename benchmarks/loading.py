"""How much faster `load` reads a store than one record at a time.

20,000 made-up records of ten tasks, with the columns of streaming runs, in a temporary directory. Both ways make one
table and check every record's seal, and `load` also puts the configurations beside the rows. They run in turn, in one
process; the ratio is the median over the pairs.

    python benchmarks/loading.py [--quick]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from weightclip.lab.results.loading import load
from weightclip.lab.results.record import Record, identity, read_record, write_record
from weightclip.lab.results.store import record_path
from weightclip.lab.streaming.metrics import METRICS

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


def fill(store: Path, records: int) -> None:
    """The same numbers everywhere, but for method and seed."""
    table = make_table()
    for number in range(records):
        method, seed = METHODS[number % len(METHODS)], number // len(METHODS)
        config = {**CONFIG, "method": method, "seed": seed}
        name = identity("streaming", config, DATA["checksum"])
        own = table.with_columns(pl.lit(seed, pl.Int64).alias("seed"))
        record = Record("streaming", name, config, own, DATA, seconds=1.0, versions=VERSIONS, platform="")
        write_record(record, record_path(store, f"{method}/seed{seed}", name))


def one_by_one(store: Path) -> pl.DataFrame:
    return pl.concat([read_record(path).table for path in sorted(store.rglob("*.parquet"))])


def seconds(function: Callable[[Path], pl.DataFrame], store: Path) -> float:
    began = time.perf_counter()
    function(store)
    return time.perf_counter() - began


def main(quick: bool) -> None:
    records, pairs = (2_000, 5) if quick else (20_000, 3)
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory)
        began = time.perf_counter()
        fill(store, records)
        print(f"{records:,} records written in {time.perf_counter() - began:.1f} s", flush=True)
        together = [(seconds(load, store), seconds(one_by_one, store)) for _ in range(pairs)]
    print(
        f"loaded in {min(fast for fast, _ in together):.2f} s here, one by one in {min(s for _, s in together):.2f} s"
    )
    print(f"{records:,} records, one by one / load: {statistics.median(slow / fast for fast, slow in together):.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 records")
    main(parser.parse_args().quick)
