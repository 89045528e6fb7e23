"""PPO: environment steps per second on one core, of eight seeds in lockstep and of a plain loop with one environment.

Both have the same hyper-parameters and one thread, and take turns in one process; a side's speed is the median over its
turns. The plain loop (`plain_ppo.py`) follows CleanRL's. A last turn, not counted, measures the share of our time that
MuJoCo itself takes.

    python benchmarks/ppo.py [--quick] [--method adam+wc]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import mujoco
import torch
from plain_ppo import Settings, train

from weightclip.lab.policy.config import LOCKSTEP, Config, resolve
from weightclip.lab.policy.ppo import Learners

ENVIRONMENTS = ("Walker2d-v4", "Humanoid-v4")
MINIBATCH = 64
MANY = 1000
"""Iterations that a run would have; only the first few are timed."""


@contextmanager
def counting() -> Iterator[list[float]]:
    """Seconds spent in MuJoCo's own functions, as they add up."""
    seconds = [0.0]
    originals = {name: getattr(mujoco, name) for name in ("mj_step", "mj_forward", "mj_rnePostConstraint")}

    def timed(function: Callable[..., None], *arguments: object, **more: object) -> None:
        began = time.perf_counter()
        function(*arguments, **more)
        seconds[0] += time.perf_counter() - began

    for name, function in originals.items():
        setattr(mujoco, name, partial(timed, function))
    try:
        yield seconds
    finally:
        for name, function in originals.items():
            setattr(mujoco, name, function)


def compare(env: str, method: str, rollout: int, turns: int) -> float:
    """Print both speeds; their ratio."""
    minibatches = rollout // MINIBATCH
    plain = train(env, 0, MANY, Settings(rollout=rollout, minibatches=minibatches))
    config = Config(env=env, method=method, rollout=rollout, minibatches=minibatches, steps=MANY * rollout)
    learners = Learners([resolve(Config(**{**config.__dict__, "seed": seed})) for seed in range(LOCKSTEP)])
    speeds: dict[str, list[float]] = {"plain": [], "ours": []}
    for turn in range(turns + 1):
        began = time.perf_counter()
        next(plain)
        between = time.perf_counter()
        learners.iterate(turn)
        ended = time.perf_counter()
        if turn:  # the first one warms up
            speeds["plain"].append(rollout / (between - began))
            speeds["ours"].append(LOCKSTEP * rollout / (ended - between))
    with counting() as seconds:
        began = time.perf_counter()
        learners.iterate(turns + 1)
        share = seconds[0] / (time.perf_counter() - began)
    ours, theirs = median(speeds["ours"]), median(speeds["plain"])
    print(f"{env}: plain {theirs:,.0f} steps/s, {LOCKSTEP} seeds in lockstep {ours:,.0f} steps/s; MuJoCo {share:.0%}")
    return ours / theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--method", default="adam", help="ours; the plain loop has Adam alone (default: adam)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rollout, turns = (1024, 2) if arguments.quick else (2048, 5)
    ratios = {env: compare(env, arguments.method, rollout, turns) for env in ENVIRONMENTS}
    for env, ratio in ratios.items():
        print(f"{env}: {ratio:.2f}")


if __name__ == "__main__":
    main()
