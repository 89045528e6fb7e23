"""DQN and Rainbow on Atari: a step of the game and an update, and the same in Stable-Baselines3 and Tianshou.

Replay ratio 1, batch 32, the network of Mnih et al. (2015), Space Invaders, one thread. All sides take turns in one
process; a side's time is the median over its turns, a ratio the median over those of each round. Ours and
Stable-Baselines3's play ten games at once (two with `--quick`), with the actions that the network finds best, and make
as many updates after each step of all. Tianshou's have the update alone, from a memory with as many transitions: its
trainer copies the whole memory in between. Rainbow's networks are as Tianshou's example has them. Our memory has room
for 100,000 transitions, theirs for fewer, as they take more space; all hold some 300 at first (60 with `--quick`). The
time that drawing a batch takes is that of our memory when it is full (with `--quick`, one for 10,000 transitions).

Stable-Baselines3's DQN is not double: it takes two passes through a network and one back. Double DQN takes three and
one back, and so does Tianshou's, double or not. Each claim compares the same algorithm: `dqn_double` is our preset,
double with three steps and the squared error, against Tianshou's; `dqn_not_double` is ours without double, with one
step and Huber's error, against Stable-Baselines3's; `rainbow` is against Tianshou's.

    python benchmarks/dqn.py [--quick]

With `--quick`, Tianshou's memories are of one game and are not compiled, which adds about a millisecond to its updates:
compiling them takes longer than all the rest. On a slow core, importing the libraries may leave `--quick` without time
for the later claims.

Needs `pip install "weightclip[atari,hosts]"`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import ale_py
import gymnasium as gym
import numba
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack
from timing import deadline, elapsed, leave, median_ratio, print_claim, rounds, time_limit, without_warm_up

from weightclip.lab.experiments.dqn.config import Config, resolve
from weightclip.lab.experiments.dqn.replay_buffer import ReplayBuffer
from weightclip.lab.experiments.dqn.training import Trainer

BATCH = 32
OURS, THEIRS = 100_000, 5_000
"""Transitions that memories have room for."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a comparison.

    Args:
        games: at once.
        turns: rounds, at most.
        steps: steps and updates of a turn.
        filled: transitions in each memory at first.
        rings: games that those in Tianshou's memories are of.
        full: transitions in the memory that batches are drawn from to time that.
    """

    games: int
    turns: int
    steps: int
    filled: int
    rings: int
    full: int


FULL, QUICK = Sizes(10, 12, 50, 300, 10, OURS), Sizes(2, 8, 4, 60, 1, 10_000)
"""A full block has many steps, so that the cost per call of Stable-Baselines3 is negligible."""

Steps = Callable[[int], None]
"""Takes that many steps and updates."""


def ours(sizes: Sizes, agent: str, **options: Any) -> Trainer:
    config = resolve(
        Config(agent=agent, method="adam", game="SpaceInvaders", num_envs=sizes.games, buffer_size=OURS,
               exploration_initial_eps=0.0, exploration_final_eps=0.0, **options)
    )  # fmt: skip
    trainer = Trainer(config, torch.device("cpu"))
    trainer.play(sizes.filled // sizes.games)
    return trainer


def our_steps(trainer: Trainer, games: int) -> Steps:
    def steps(number: int) -> None:
        for _ in range(number // games):
            trainer.play(1)
            trainer.train(games)

    return steps


def baselines3(sizes: Sizes) -> Steps:
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("SpaceInvadersNoFrameskip-v4", n_envs=sizes.games, seed=0), n_stack=4)
    agent = DQN(
        "CnnPolicy",
        env,
        learning_rate=1e-4,
        buffer_size=THEIRS,
        batch_size=BATCH,
        learning_starts=sizes.filled,
        train_freq=1,
        gradient_steps=sizes.games,
        target_update_interval=500,  # steps of all games, and so updates
        exploration_initial_eps=0.01,
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
    )
    agent.learn(sizes.filled)
    return lambda number: void(agent.learn(number, reset_num_timesteps=False))


def void(_: object) -> None:
    """For functions that return nothing."""


def tianshou(agent: str, sizes: Sizes, quick: bool) -> Steps:
    if quick:  # else its memories compile for many seconds, at each start
        numba.config.DISABLE_JIT = True
    import tianshou_updates  # not before that

    return {"dqn": tianshou_updates.dqn, "rainbow": tianshou_updates.rainbow}[agent](sizes.filled, sizes.rings)


def sampling_time(alpha: float, number: int, transitions: int) -> float:
    """Seconds that drawing a batch takes from our memory when it is full, by priority unless alpha is 0."""
    games, generator = 1000, np.random.default_rng(0)
    memory = ReplayBuffer(transitions, games, (1, 84, 84), alpha=alpha)
    frames = generator.integers(256, size=(games, 1, 84, 84)).astype(np.uint8)
    nothing, actions = np.zeros(games, bool), np.zeros(games, np.int64)
    for _ in range(transitions // games):
        memory.add(frames, actions, np.ones(games), nothing, nothing, frames)
    began = time.perf_counter()
    for _ in range(number):
        batch = memory.sample(BATCH, generator, 0.5)
        memory.update_priorities(batch.places, np.ones(BATCH))
    return (time.perf_counter() - began) / number


def update_time(trainer: Trainer, number: int) -> float:
    """Seconds that an update takes, without a step of the game."""
    began = time.perf_counter()
    trainer.train(number)
    return (time.perf_counter() - began) / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns, within 45 s")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    sizes = QUICK if quick else FULL
    trainers: dict[str, Trainer] = {}
    sides: dict[str, Steps] = {}
    times: dict[str, list[float]] = defaultdict(list)

    def make_ours(name: str, agent: str, **options: Any) -> Steps:
        trainers[name] = ours(sizes, agent, **options)
        return our_steps(trainers[name], sizes.games)

    makers: dict[str, Callable[[], Steps]] = {
        "ours, not double": partial(make_ours, "ours, not double", "dqn", double=False, n_step=1, loss="huber"),
        "Stable-Baselines3": partial(baselines3, sizes),
        "ours": partial(make_ours, "ours", "dqn"),
        "Tianshou": partial(tianshou, "dqn", sizes, quick),
        "ours, Rainbow": partial(make_ours, "ours, Rainbow", "rainbow"),
        "Tianshou, Rainbow": partial(tianshou, "rainbow", sizes, quick),
    }

    def take_turn(name: str) -> None:
        began = time.perf_counter()
        sides[name](sizes.steps)
        times[name].append((time.perf_counter() - began) / sizes.steps)

    with time_limit(quick):
        for name, make in makers.items():  # the sides of a claim after each other, for a run that is cut
            sides[name] = make()
            sides[name](sizes.games)  # the first updates are slower
            take_turn(name)
        if elapsed() < deadline(quick):
            for _ in rounds(sizes.turns, deadline(quick)):
                for name in sides:
                    take_turn(name)
        for name, own in times.items():
            print(f"{name}: {1000 * median(without_warm_up(own)):.1f} ms for a step and an update")
        for name, alpha in (("ours", 0.0), ("ours, Rainbow", 0.5)):
            fraction = sampling_time(alpha, 40, sizes.full) / update_time(trainers[name], sizes.steps)
            print(f"{name}: drawing a batch takes {fraction:.1%} of an update")

    def ratio(own: str, other: str) -> float | None:
        """How many times as fast as the other; None if a side is missing."""
        return median_ratio(without_warm_up(times[other]), without_warm_up(times[own]))

    print_claim("dqn_not_double", ratio("ours, not double", "Stable-Baselines3"))
    print_claim("dqn_double", ratio("ours", "Tianshou"))
    print_claim("rainbow", ratio("ours, Rainbow", "Tianshou, Rainbow"))
    leave(quick)


if __name__ == "__main__":
    main()
