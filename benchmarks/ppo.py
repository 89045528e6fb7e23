"""Environment steps per second of PPO on one core: eight seeds in lockstep and a plain loop with one environment.

Three sides take turns in one process, with the same hyperparameters and one thread: the plain loop (`plain_ppo.py`),
which follows CleanRL, and eight seeds with the fused and with the reference backend. All times are CPU times of this
process, to reduce the effect of other processes on the machine. A ratio is the median over the rounds. A final turn,
which is not counted, measures the fraction of our time spent in MuJoCo. `--quick` uses shorter rollouts, which makes
our side slower by a few percent. The first run compiles the fused backend, which takes part of the time of `--quick`.

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
from timing import deadline, elapsed, leave, median_ratio, print_claim, rounds, time_limit, without_warm_up

from weightclip.lab.experiments.ppo.config import LOCKSTEP, Config, resolve
from weightclip.lab.experiments.ppo.ppo import Learners

ENVIRONMENTS = ("Walker2d-v4", "Humanoid-v4")
BACKENDS = ("fused", "reference")
MINIBATCH = 64
MANY = 1000
"""Number of iterations for learning rate annealing; only the first few are timed."""

SLOW_START = 8.0
"""If imports take this many seconds, `--quick` uses the shortest rollouts."""


@contextmanager
def counting() -> Iterator[list[float]]:
    """Yield the accumulated seconds spent in MuJoCo's functions."""
    seconds = [0.0]
    originals = {name: getattr(mujoco, name) for name in ("mj_step", "mj_forward", "mj_rnePostConstraint")}

    def timed(function: Callable[..., None], *arguments: object, **more: object) -> None:
        began = time.process_time()
        function(*arguments, **more)
        seconds[0] += time.process_time() - began

    for name, function in originals.items():
        setattr(mujoco, name, partial(timed, function))
    try:
        yield seconds
    finally:
        for name, function in originals.items():
            setattr(mujoco, name, function)


class Sides:
    """The three training loops in one environment and the seconds per step of their turns.

    Args:
        env: environment id.
        method: method of our side.
        rollout: steps per iteration.
    """

    def __init__(self, env: str, method: str, rollout: int) -> None:
        minibatches = rollout // MINIBATCH
        self._rollout = rollout
        self._plain = train(env, 0, MANY, Settings(num_steps=rollout, num_minibatches=minibatches))
        config = Config(env=env, method=method, num_steps=rollout, num_minibatches=minibatches, steps=MANY * rollout)
        self._learners = {
            backend: Learners([resolve(replace(config, backend=backend, seed=seed)) for seed in range(LOCKSTEP)])
            for backend in BACKENDS
        }
        self.times: dict[str, list[float]] = {name: [] for name in ("plain", *BACKENDS)}
        self.mujoco: float | None = None

    def turn(self, number: int) -> None:
        """Run one iteration of each loop."""
        self._time("plain", self._rollout, lambda: next(self._plain))
        for backend, learners in self._learners.items():
            self._time(backend, LOCKSTEP * self._rollout, partial(learners.iterate, number))

    def _time(self, name: str, steps: int, iterate: Callable[[], object]) -> None:
        began = time.process_time()
        iterate()
        self.times[name].append((time.process_time() - began) / steps)

    def measure_mujoco(self) -> None:
        """Measure the fraction of a turn of the fused backend that is spent in MuJoCo."""
        with counting() as seconds:
            began = time.process_time()
            self._learners["fused"].iterate(len(self.times["fused"]))
            self.mujoco = seconds[0] / (time.process_time() - began)

    def ratio(self, name: str) -> float | None:
        """The speedup over the plain loop."""
        return median_ratio(*(without_warm_up(self.times[one]) for one in ("plain", name)))

    def _spread(self, name: str) -> list[str]:
        """The ratios of the slowest and the fastest round."""
        plain, own = (without_warm_up(self.times[one]) for one in ("plain", name))
        ratios = [one / other for one, other in zip(plain, own, strict=False)]
        return [f"{name} / plain {min(ratios):.2f} to {max(ratios):.2f}"] if ratios else []

    def __str__(self) -> str:
        speeds = [
            f"{name} {1 / median(without_warm_up(times)):,.0f} steps/s" for name, times in self.times.items() if times
        ]
        return ", ".join(
            [
                *speeds,
                *(text for backend in BACKENDS for text in self._spread(backend)),
                *([] if self.mujoco is None else [f"MuJoCo {self.mujoco:.0%} of fused"]),
            ]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns, within 45 s")
    parser.add_argument(
        "--method", default="adam", help="method of our side; the plain loop always uses Adam (default: adam)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rollout, turns = 2048, 5
    if arguments.quick:
        rollout, turns = (256 if elapsed() < SLOW_START else 128), 6
    found: dict[str, Sides] = {}
    with time_limit(arguments.quick):
        found |= {env: Sides(env, arguments.method, rollout) for env in ENVIRONMENTS}
        for turn in rounds(turns + 1, deadline(arguments.quick)):  # the first round is a warm-up
            for sides in found.values():
                sides.turn(turn)
        for sides in found.values():
            sides.measure_mujoco()
    for env, sides in found.items():
        print(f"{env}: {sides}")
    for suffix, backend in (("_reference", "reference"), ("", "fused")):
        for env in ENVIRONMENTS:
            print_claim(env + suffix, found[env].ratio(backend) if env in found else None)
    leave(arguments.quick)


if __name__ == "__main__":
    main()
