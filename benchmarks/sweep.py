"""What two workers gain over one run after the other, and what a Ray cluster costs beside processes of this machine.

The runs: sgd+wc on input-permuted MNIST, 784-300-150-10, fused engine, a little over two seconds each, different
seeds. One after the other, this process calls `run_config` for each, with a store, as the workers do. The sides take
turns in rounds, because the speed of a machine drifts: some runs one after the other, the same on two local workers,
the same over Ray.

A round counts from when the workers are up, each having made a tiny run. The start of the local workers is added once,
as a sweep of all runs has it; with --quick, where there are few and short runs, it is left out, as it is of Ray.

    python benchmarks/sweep.py [--quick]
"""

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from weightclip.lab.data import Dataset
from weightclip.lab.streaming.config import Config
from weightclip.lab.streaming.experiment import run_config
from weightclip.lab.streaming.plugin import EXPERIMENT
from weightclip.lab.sweep.executor import Ended, Executor, Shared
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.plan import make_runs
from weightclip.lab.sweep.ray import Ray

PROBLEM, METHOD, PERIOD = "input-permuted-mnist", "sgd+wc", 5000
WORKERS = 2


def config_of(seed: int, steps: int) -> Config:
    return EXPERIMENT.configure(PROBLEM, {"method": METHOD, "period": PERIOD, "seed": seed, "steps": steps})


def steps_of(seconds: float, data: Dataset) -> int:
    """How many whole tasks take that long here."""
    run_config(config_of(0, PERIOD), data)  # compiles
    began = time.perf_counter()
    run_config(config_of(0, 2 * PERIOD), data)
    return PERIOD * math.ceil(2 * seconds / (time.perf_counter() - began))


def one_after_the_other(configs: Sequence[Config], data: Dataset, store: Path) -> float:
    began = time.perf_counter()
    for config in configs:
        run_config(config, data, out=store)
    return time.perf_counter() - began


def swept(executor: Executor, configs: Sequence[Config], data: Dataset, store: Path) -> tuple[float, float]:
    """Seconds until the last run has ended, in all, and since each worker has made a tiny run."""
    tiny = [replace(configs[0], seed=len(configs) + number, steps=10) for number in range(WORKERS)]
    jobs = [(run,) for run in make_runs(EXPERIMENT, [*tiny, *configs], data)]
    shared = Shared(EXPERIMENT, store, data={EXPERIMENT.data_key(configs[0]): data})
    ends = [time.perf_counter()]
    for report in executor.run(shared, jobs):
        if isinstance(report, Ended):
            assert all(outcome.status == "done" for outcome in report.outcomes)
            ends.append(time.perf_counter())
    return ends[-1] - ends[0], ends[-1] - ends[len(tiny)]


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    data = EXPERIMENT.load(config_of(0, PERIOD), None)
    print(f"data: {data.source}")
    number, rounds, seconds = (14, 1, 0.7) if quick else (200, 5, 2.2)
    steps = steps_of(seconds, data)
    configs = [config_of(seed, steps) for seed in range(number)]
    serial = local = start = ray = 0.0
    for part in (configs[first::rounds] for first in range(rounds)):
        with tempfile.TemporaryDirectory() as folder:
            serial += one_after_the_other(part, data, Path(folder, "serial"))
            whole, up = swept(Local(WORKERS), part, data, Path(folder, "local"))
            local, start = local + up, whole - up
            if find_spec("ray") is not None:
                ray += swept(Ray(count=WORKERS), part, data, Path(folder, "ray"))[1]
    local += 0.0 if quick else start
    print(f"{number} runs of {steps} samples: {serial / number:.2f} s each, one after the other")
    print(f"local workers: {start:.1f} s until they were up")
    print(f"two workers / half of serial: {local / (serial / WORKERS):.2f}")
    print(f"ray / local: {ray / local:.2f}" if ray else "ray / local: ray is not installed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few runs, within 45 s")
    main(parser.parse_args().quick)
