"""Whether our PPO learns what a plain one learns: the returns of both, over the same seeds.

The plain loop (`plain_ppo.py`, which follows CleanRL's) runs its seeds one by one, and keeps each in a directory as
soon as it is finished; ours are read from a store that `weightclip run policy-collapse --method adam` or a sweep has
filled. A seed's number is the mean return of the episodes in the last tenth of its steps; intervals are Student's, 95%.

    python benchmarks/ppo_learning.py --env Walker2d-v4 --seeds 4 --steps 1M --plain plain/ --ours results/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl
import torch
from plain_ppo import Settings, train

from weightclip.cli.arguments import count
from weightclip.lab.policy.config import Config, resolve
from weightclip.lab.policy.experiment import identify
from weightclip.lab.results.loading import load
from weightclip.lab.results.statistics import half_width

LAST = 0.1
LEVEL = 0.95


def run_plain(env: str, seed: int, steps: int, directory: Path) -> pl.DataFrame:
    """A row for each iteration in which an episode ended: `samples` and `return`; from a file if it was run before."""
    path = directory / f"{env}_seed{seed}_{steps}.csv"
    if path.exists():
        return pl.read_csv(path)
    rollout = Settings().rollout
    rows = []
    for iteration, returns in enumerate(train(env, seed, steps // rollout), start=1):
        if returns:
            rows.append(
                {"samples": iteration * rollout, "return": sum(returns) / len(returns), "episodes": len(returns)}
            )
        if iteration % 50 == 0:
            print(f"{env} plain seed {seed}: {iteration * rollout:,} of {steps:,} steps", flush=True)
    directory.mkdir(parents=True, exist_ok=True)
    table = pl.DataFrame(rows)
    table.write_csv(path)
    return table


def final_return(table: pl.DataFrame, steps: int) -> float:
    """The mean over the episodes of the last tenth."""
    last = table.filter(pl.col("samples") > (1 - LAST) * steps, pl.col("episodes") > 0)
    return float(last.select((pl.col("return") * pl.col("episodes")).sum() / pl.col("episodes").sum()).item())


def run_of(runs: pl.DataFrame, env: str, seed: int, steps: int) -> pl.DataFrame:
    """Ours with CleanRL's settings, and no other."""
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
        found.write_csv(arguments.out)
    value = pl.col("return")
    summary = found.group_by("loop", maintain_order=True).agg(value.mean(), value.std().alias("std"), pl.len())
    widths = half_width(summary["std"], summary["len"], LEVEL)
    for row, width in zip(summary.iter_rows(named=True), widths, strict=True):
        low, high = row["return"] - width, row["return"] + width
        print(f"{arguments.env} {row['loop']}: {row['return']:,.0f} ({low:,.0f} to {high:,.0f}), {row['len']} seeds")


if __name__ == "__main__":
    main()
