"""Loss of plasticity on input-permuted MNIST: Adam with and without weight clipping.

The network classifies handwritten digits, one sample at a time. Every 5,000 samples a new task begins with a new
permutation of the pixels. Both methods use the paper's best settings. Run `python examples/loss_of_plasticity.py`.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl

from weightclip.cli.arguments import count, seeds
from weightclip.lab.callbacks import Callbacks
from weightclip.lab.data import Dataset, load
from weightclip.lab.experiments.streaming.config import Config, resolve
from weightclip.lab.experiments.streaming.figures import draw_run
from weightclip.lab.experiments.streaming.metrics import METRICS
from weightclip.lab.experiments.streaming.training import run_config

PROBLEM, METHODS, PERIOD = "input-permuted-mnist", ("adam", "adam+wc"), 5000
SHOWN = ("accuracy", "loss", "plasticity", "weight_l2", "gradient_l2")


def learn(method: str, tasks: int, seed: int, out: Path) -> pl.DataFrame:
    """Run one seed and return a row per task. If its record exists, read it instead."""
    config = Config(PROBLEM, method, steps=tasks * PERIOD, period=PERIOD, seed=seed)
    tenth = max(1, tasks // 10) * PERIOD

    def progress(samples: int, accuracy: float) -> None:
        if samples % tenth == 0:
            print(f"  {method}, seed {seed}: {samples:,} samples, accuracy {accuracy:.1%}", flush=True)

    callbacks = Callbacks(on_event=print, on_progress=progress)
    return run_config(config, load("mnist"), out / "records", callbacks=callbacks).table


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over seeds of each metric by task."""
    return table.group_by("task").agg(pl.col(SHOWN).mean()).sort("task")


def as_markdown(tables: dict[str, pl.DataFrame], data: Dataset) -> str:
    """Format a table with a row per task and the mean over seeds of each metric and method."""
    kind = "official" if data.source.official else "stand-in"
    seeds = ", ".join(map(str, tables[METHODS[0]]["seed"].unique().sort()))
    heads = [f"{METRICS[name].label}: {method}" for name in SHOWN for method in tables]
    lines = [f"{PROBLEM}, {len(data.labels):,} digits ({kind}, md5 {data.source.checksum}), seeds {seeds}: means.", ""]
    lines += ["| task | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    means = {method: summary(table) for method, table in tables.items()}
    for row, task in enumerate(means[METHODS[0]]["task"]):
        cells = [f"{means[method][name][row]:.4g}" for name in SHOWN for method in tables]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(tasks: int, several: list[int], out: Path) -> None:
    """Run both methods for each seed on two cores, print a summary, and write the table and the figure."""
    runs = [(method, seed) for seed in several for method in METHODS]
    data = load("mnist", on_event=print)  # download once, before the worker processes load it
    print(f"data: {data.source}")
    print(
        f"{PROBLEM}, {tasks} tasks of {PERIOD:,} samples: {', '.join(f'{m} (seed {s})' for m, s in runs)}", flush=True
    )
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        futures = [pool.submit(learn, method, tasks, seed, out) for method, seed in runs]
        done = [future.result() for future in futures]
    tables = {
        method: pl.concat([table for (name, _), table in zip(runs, done, strict=True) if name == method])
        for method in METHODS
    }
    ten = min(10, tasks)
    for method, table in tables.items():
        by_task = summary(table)
        first, last = by_task.head(ten), by_task.tail(ten)
        print(
            f"{method}: accuracy {first['accuracy'].mean():.1%} in the first {ten} tasks, "
            f"{last['accuracy'].mean():.1%} in the last {ten}; plasticity {first['plasticity'].mean():.3f} -> "
            f"{last['plasticity'].mean():.3f}; weight norm {first['weight_l2'][0]:.1f} -> {last['weight_l2'][-1]:.1f}"
        )
    (out / "loss_of_plasticity.md").write_text(as_markdown(tables, data))
    kappas = {method: kappa for method in METHODS if (kappa := resolve(Config(PROBLEM, method)).kappa) is not None}
    draw_run(tables, out / "loss_of_plasticity.png", title=PROBLEM, kappas=kappas)
    print(f"table: {out / 'loss_of_plasticity.md'}\npicture: {out / 'loss_of_plasticity.png'}")
    print("at the paper's full length, 200 tasks (with --seeds 0-19 for all of its seeds):")
    for method in METHODS:
        print(f"  {os.path.relpath(sys.executable)} -m weightclip run {PROBLEM} --method {method}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=count, default=100, help="number of tasks (default: 100)")
    parser.add_argument("--seeds", type=seeds, default=[0], help="4, 0-3 or 0,2,5 (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the results (default: demo)")
    arguments = parser.parse_args()
    main(arguments.tasks, arguments.seeds, arguments.out)
