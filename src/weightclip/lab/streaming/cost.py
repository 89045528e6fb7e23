"""What a streaming run will take, from a second of it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from weightclip.lab.data import Dataset
from weightclip.lab.experiment import Cost, ignore
from weightclip.lab.results.record import Record, write_record
from weightclip.lab.streaming.config import Config
from weightclip.lab.streaming.experiment import complete, run_config

STEPS = 500


def estimate(config: Config, dataset: Dataset) -> Cost:
    """The time of a step, of a task's end and of a start, from three short runs; the size of a record that long."""
    config = complete(config, dataset)
    assert config.period is not None  # resolved
    with tempfile.TemporaryDirectory(prefix="weightclip-") as directory:

        def run(steps: int, period: int) -> Record:
            short = replace(config, steps=steps, period=period)
            return run_config(short, dataset, out=directory, overwrite=True, on_event=ignore)

        def seconds(steps: int, period: int) -> float:
            began = time.perf_counter()
            run(steps, period)
            return time.perf_counter() - began

        record = run(10, 10)  # compiles
        one = min(seconds(STEPS, STEPS) for _ in range(2))
        longer = min(seconds(2 * STEPS, 2 * STEPS) for _ in range(2))
        two = min(seconds(2 * STEPS, STEPS) for _ in range(2))
        step, task = max(longer - one, 0.0) / STEPS, max(two - longer, 0.0)
        start = max(one - STEPS * step - task, 0.0)
        tasks = -(-config.steps // config.period)
        return Cost(start + config.steps * step + tasks * task, _size(record, tasks, Path(directory)))


def _size(record: Record, rows: int, directory: Path) -> int:
    """Of a record with that many rows of numbers that do not repeat."""
    random = np.random.default_rng(0).random((rows, len(record.table.columns)))
    path = directory / "size.parquet"
    write_record(replace(record, table=pl.DataFrame(random, schema=record.table.columns)), path)
    return path.stat().st_size
