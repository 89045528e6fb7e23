"""A run on the tiny data set in a separate process that can be killed."""

import multiprocessing
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tiny_data import tiny_dataset

from weightclip.lab.callbacks import NO_CALLBACKS
from weightclip.lab.experiments.streaming.config import Config
from weightclip.lab.experiments.streaming.training import run_config

TASKS = 12
PERIOD = {"reference": 40, "fused": 20_000}  # a few hundredths of a second each


def config(backend: str, method: str) -> Config:
    period = PERIOD[backend]
    return Config("input-permuted-mnist", method, steps=TASKS * period, period=period, hidden=(8, 6), backend=backend)


def run(out: Path, backend: str, method: str) -> None:
    run_config(config(backend, method), tiny_dataset(), out=out, callbacks=NO_CALLBACKS)


def start(out: Path, backend: str, method: str) -> ForkServerProcess:
    """Start a run in a fork of a server that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    process = context.Process(target=run, args=(out, backend, method))
    process.start()
    return process
