"""Returns of our PPO and of a plain loop with the same seeds.

The plain loop (`plain_ppo.py`, which follows CleanRL) runs its seeds one by one and saves each in a directory when it
has finished; ours are read from a store written by `weightclip run policy-collapse --method adam` or by a sweep. The
score of a seed is the mean return of the episodes in the last tenth of its steps; intervals are 95% Student's t
intervals. With few seeds the intervals are wide, so overlap is weak evidence; tests/lab/experiments/ppo/test_ppo.py
shows that both loops learn the same from the same random draws. CleanRL's published returns are shown if available.

    python benchmarks/ppo_learning.py --env Walker2d-v4 --seeds 4 --steps 1M --plain plain/ --ours results/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl
import torch
from plain_ppo import Settings, train

from weightclip.cli.arguments import count
from weightclip.lab.analysis.statistics import half_width
from weightclip.lab.experiments.ppo.config import Config, resolve
from weightclip.lab.experiments.ppo.training import identify
from weightclip.lab.files import write_whole
from weightclip.lab.records.table import load

LAST = 0.1
LEVEL = 0.95
PUBLISHED = {
    "HalfCheetah-v4": (1442.64, 46.03),
    "Walker2d-v4": (2287.95, 571.78),
    "Hopper-v4": (2382.86, 271.74),
    "Humanoid-v4": (716.11, 49.08),
}
"""CleanRL's ppo_continuous_action.py, three seeds of 1M steps: mean and standard deviation, from docs.cleanrl.dev."""


def run_plain(env: str, seed: int, steps: int, directory: Path) -> pl.DataFrame:
    """Return a row (`samples`, `return`) per iteration in which an episode ended, from a file if the seed was run."""
    path = directory / f"{env}_seed{seed}_{steps}.csv"
    if path.exists():
        return pl.read_csv(path)
    rollout = Settings().num_steps
    rows = []
    for iteration, returns in enumerate(train(env, seed, steps // rollout), start=1):
        if returns:
            rows.append(
                {"samples": iteration * rollout, "return": sum(returns) / len(returns), "episodes": len(returns)}
            )
        if iteration % 50 == 0:
            print(f"{env} plain seed {seed}: {iteration * rollout:,} of {steps:,} steps", flush=True)
    table = pl.DataFrame(rows)
    write_whole(path, table.write_csv().encode())  # an existing file is a finished seed
    return table


def final_return(table: pl.DataFrame, steps: int) -> float:
    """The mean return of the episodes in the last tenth."""
    last = table.filter(pl.col("samples") > (1 - LAST) * steps, pl.col("episodes") > 0)
    return float(last.select((pl.col("return") * pl.col("episodes")).sum() / pl.col("episodes").sum()).item())


def run_of(runs: pl.DataFrame, env: str, seed: int, steps: int) -> pl.DataFrame:
    """Select our runs with exactly CleanRL's settings."""
    wanted = identify(resolve(Config(env=env, method="adam", seed=seed, steps=steps)))
    found = runs.filter(identity=wanted)
    if found.is_empty():
        raise SystemExit(f"there is no run of {env} adam seed {seed} with {steps:,} steps and the paper's settings")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", required=True)
    parser.add_argument("--seeds", type=count, default=4, help="how many, from 0 on (default: 4)")
    parser.add_argument("--steps", type=count, default=1_000_000, help="of each run (default: 1M)")
    parser.add_argument("--plain", type=Path, required=True, help="a directory for the plain loop's returns")
    parser.add_argument("--ours", type=Path, help="a store; without it, the plain loop runs and nothing is compared")
    parser.add_argument("--out", type=Path, help="a CSV of both")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.seeds)
    plain = [run_plain(arguments.env, seed, arguments.steps, arguments.plain) for seed in seeds]
    if arguments.ours is None:
        return
    runs = load(arguments.ours)
    ours = [run_of(runs, arguments.env, seed, arguments.steps) for seed in seeds]
    rows = [
        {"env": arguments.env, "loop": loop, "seed": seed, "return": final_return(table, arguments.steps)}
        for loop, tables in (("plain", plain), ("weightclip", ours))
        for seed, table in zip(seeds, tables, strict=True)
    ]
    found = pl.DataFrame(rows)
    if arguments.out is not None:
        write_whole(arguments.out, found.write_csv().encode())
    value = pl.col("return")
    summary = found.group_by("loop", maintain_order=True).agg(value.mean(), value.std().alias("std"), pl.len())
    widths = half_width(summary["std"], summary["len"], LEVEL)
    intervals = []
    for row, width in zip(summary.iter_rows(named=True), widths, strict=True):
        if width is None:
            print(f"{arguments.env} {row['loop']}: {row['return']:,.0f}, one seed")
            continue
        low, high = row["return"] - width, row["return"] + width
        intervals.append((low, high))
        each = ", ".join(f"{one:,.0f}" for one in found.filter(loop=row["loop"])["return"].sort())
        print(f"{arguments.env} {row['loop']}: {row['return']:,.0f} ({low:,.0f} to {high:,.0f}); seeds: {each}")
    if intervals:
        (low, high), (other_low, other_high) = intervals
        overlap = max(low, other_low) <= min(high, other_high)
        print(f"the intervals of the mean {'overlap' if overlap else 'do not overlap'}")
    if arguments.env in PUBLISHED:
        mean, deviation = PUBLISHED[arguments.env]
        print(f"CleanRL publishes {mean:,.0f} ± {deviation:,.0f} (standard deviation over three seeds, 1M steps)")


if __name__ == "__main__":
    main()
