"""PPO: environment steps per second on one core, of eight seeds in lockstep and of a plain loop with one environment.

Both have the same hyper-parameters and one thread, and take turns in one process; a side's speed is the median over its
turns. The plain loop (`plain_ppo.py`) follows CleanRL's. A last turn, not counted, measures the fraction of our time
that MuJoCo itself takes. `--quick` has shorter rollouts, which costs our side a few percent, and no last turn.

    python benchmarks/ppo.py [--quick] [--method adam+wc]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median

import mujoco
import torch
from plain_ppo import Settings, train
from timing import deadline, elapsed, leave, print_claim, rounds, time_limit, without_warm_up

from weightclip.lab.experiments.ppo.config import LOCKSTEP, Config, resolve
from weightclip.lab.experiments.ppo.ppo import Learners

ENVIRONMENTS = ("Walker2d-v4", "Humanoid-v4")
MINIBATCH = 64
MANY = 1000
"""Iterations that a run would have; only the first few are timed."""

SLOW_START = 8.0
"""On a core that takes so many seconds to import everything, `--quick` has the shortest rollouts."""


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


class Sides:
    """Both loops in an environment, and the steps per second of their turns.

    Args:
        env: its id.
        method: ours.
        rollout: steps of an iteration.
    """

    def __init__(self, env: str, method: str, rollout: int) -> None:
        minibatches = rollout // MINIBATCH
        self._rollout = rollout
        self._plain = train(env, 0, MANY, Settings(num_steps=rollout, num_minibatches=minibatches))
        config = Config(env=env, method=method, num_steps=rollout, num_minibatches=minibatches, steps=MANY * rollout)
        self._learners = Learners([resolve(replace(config, seed=seed)) for seed in range(LOCKSTEP)])
        self.plain: list[float] = []
        self.ours: list[float] = []

    def turn(self, number: int) -> None:
        """An iteration of each."""
        began = time.perf_counter()
        next(self._plain)
        between = time.perf_counter()
        self._learners.iterate(number)
        ended = time.perf_counter()
        self.plain.append(self._rollout / (between - began))
        self.ours.append(LOCKSTEP * self._rollout / (ended - between))

    def mujoco_fraction(self) -> float:
        """The fraction of our next turn's time that MuJoCo takes."""
        with counting() as seconds:
            began = time.perf_counter()
            self._learners.iterate(len(self.ours))
            return seconds[0] / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns, within 45 s")
    parser.add_argument("--method", default="adam", help="ours; the plain loop has Adam alone (default: adam)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rollout, turns = 2048, 5
    if arguments.quick:
        rollout, turns = (256 if elapsed() < SLOW_START else 128), 6
    found: dict[str, Sides] = {}
    ratios: dict[str, float | None] = dict.fromkeys(ENVIRONMENTS)
    with time_limit(arguments.quick):
        found |= {env: Sides(env, arguments.method, rollout) for env in ENVIRONMENTS}
        for turn in rounds(turns + 1, deadline(arguments.quick)):  # the first one warms up
            for sides in found.values():
                sides.turn(turn)
    for env, sides in found.items():
        if not sides.ours:
            continue
        plain, ours = (median(without_warm_up(speeds)) for speeds in (sides.plain, sides.ours))
        ratios[env] = ours / plain
        mujoco = "" if arguments.quick else f"; MuJoCo {sides.mujoco_fraction():.0%}"
        print(f"{env}: plain {plain:,.0f} steps/s, {LOCKSTEP} seeds in lockstep {ours:,.0f} steps/s{mujoco}")
    for env, ratio in ratios.items():
        print_claim(env, ratio)
    leave(arguments.quick)


if __name__ == "__main__":
    main()
