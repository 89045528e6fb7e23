"""Speedup of two workers over sequential runs, and overhead of a Ray cluster over local processes.

The runs are sgd+wc on input-permuted MNIST, 784-300-150-10, fused engine, a little over two seconds each, with
different seeds. The sequential baseline calls `run_config` with a store for each, as the workers do. The sides take
turns in rounds, because the speed of a machine drifts: some runs sequentially, the same runs on two local workers, and
the same runs on Ray.

The time of a round starts when each worker has finished a tiny run. The startup time of the local workers is added
once, as in a sweep of all runs; with --quick, which has few short runs, it is excluded, as it is for Ray.

    python benchmarks/sweep.py [--quick]

With --quick, Ray is started only if the local workers started fast enough, because a slow core has no time for it.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from timing import CUT, elapsed, leave, print_claim, time_limit

from weightclip.lab.data import Dataset
from weightclip.lab.experiments.streaming.config import Config
from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.experiments.streaming.training import run_config
from weightclip.lab.sweep.executor import Ended, Executor
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.plan import data_key, make_runs
from weightclip.lab.sweep.ray import Ray
from weightclip.lab.sweep.worker import Shared

PROBLEM, METHOD = "input-permuted-mnist", "sgd+wc"
WORKERS = 2

RAY_START = 2.0
"""Expected ratio of the time to start and stop Ray to the startup time of the local workers."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a comparison.

    Args:
        runs: total number of runs.
        rounds: number of rounds over which the runs are distributed.
        seconds: approximate time of a run.
        period: steps per task.
    """

    runs: int
    rounds: int
    seconds: float
    period: int


FULL, QUICK = Sizes(200, 5, 2.2, 5000), Sizes(8, 1, 0.4, 1000)


@dataclass
class Seconds:
    """Seconds of all runs; `start` is the startup time of the local workers in the last round."""

    serial: float = 0.0
    local: float = 0.0
    start: float = 0.0
    ray: float = 0.0


def config_of(seed: int, steps: int, period: int) -> Config:
    return EXPERIMENT.configure(PROBLEM, {"method": METHOD, "period": period, "seed": seed, "steps": steps})


def configs_of(sizes: Sizes, data: Dataset) -> list[Config]:
    """Create runs with as many whole tasks as take the given time on this machine."""
    period = sizes.period
    run_config(config_of(0, period, period), data)  # compiles
    began = time.perf_counter()
    run_config(config_of(0, 2 * period, period), data)
    tasks = math.ceil(2 * sizes.seconds / (time.perf_counter() - began))
    return [config_of(seed, period * tasks, period) for seed in range(sizes.runs)]


def one_after_the_other(configs: Sequence[Config], data: Dataset, store: Path) -> float:
    began = time.perf_counter()
    for config in configs:
        run_config(config, data, out=store)
    return time.perf_counter() - began


def swept(executor: Executor, configs: Sequence[Config], data: Dataset, store: Path) -> tuple[float, float]:
    """Return the seconds until the last run ended, in total and since each worker finished a tiny run."""
    tiny = [replace(configs[0], seed=len(configs) + number, steps=10) for number in range(WORKERS)]
    jobs = [(run,) for run in make_runs(EXPERIMENT, [*tiny, *configs], data)]
    shared = Shared(EXPERIMENT, store, data={data_key(EXPERIMENT, configs[0]): data})
    ends = [time.perf_counter()]
    for report in executor.run(shared, jobs):
        if isinstance(report, Ended):
            assert all(outcome.status == "done" for outcome in report.outcomes)
            ends.append(time.perf_counter())
    return ends[-1] - ends[0], ends[-1] - ends[len(tiny)]


def measure(found: Seconds, sizes: Sizes, quick: bool) -> None:
    """Sum the times of each side."""
    data = EXPERIMENT.load(config_of(0, sizes.period, sizes.period), None)
    print(f"data: {data.source}")
    configs = configs_of(sizes, data)
    print(f"{sizes.runs} runs of {configs[0].steps} samples")
    for part in (configs[first :: sizes.rounds] for first in range(sizes.rounds)):
        with tempfile.TemporaryDirectory() as folder:
            found.serial += one_after_the_other(part, data, Path(folder, "serial"))
            whole, up = swept(Local(WORKERS), part, data, Path(folder, "local"))
            found.local, found.start = found.local + up, whole - up
            in_time = not quick or elapsed() + RAY_START * found.start + up < CUT
            if find_spec("ray") is not None and in_time:
                found.ray += swept(Ray(count=WORKERS), part, data, Path(folder, "ray"))[1]


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    sizes, found = QUICK if quick else FULL, Seconds()
    with time_limit(quick):
        measure(found, sizes, quick)
    if found.local:
        print(f"one after the other: {found.serial / sizes.runs:.2f} s each")
        print(f"local workers: {found.start:.1f} s until they were up")
    local = found.local if quick else found.local + found.start
    print_claim("two workers / half of serial", local / (found.serial / WORKERS) if local else None)
    if find_spec("ray") is None:
        print("ray / local: ray is not installed")
    else:
        print_claim("ray / local", found.ray / local if found.ray else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few short runs, within 45 s")
    arguments = parser.parse_args()
    main(arguments.quick)
    leave(arguments.quick)
