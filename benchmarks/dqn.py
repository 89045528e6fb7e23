"""Time per step of DQN and Rainbow on Atari, compared with Stable-Baselines3 and Tianshou.

Replay ratio 1, batch size 32, the network of Mnih et al. (2015), Space Invaders, one thread. All sides take turns in
one process; the time of a side is the median over its turns, a ratio the median over the ratios of each round. Ours
and Stable-Baselines3 step ten games in parallel (two with `--quick`) with greedy actions and make one update per game
after each step. For Tianshou only the update is timed, with a replay buffer of the same size, because its trainer
copies the whole buffer between updates. Rainbow uses the networks of Tianshou's example. Our replay buffer has a
capacity of 100,000 transitions, theirs a smaller one because they use more memory per transition; all start with about
300 transitions (60 with `--quick`). The sampling time is measured with our buffer at capacity (10,000 transitions with
`--quick`).

Stable-Baselines3 implements DQN without double Q-learning: two forward passes and one backward pass. Double DQN takes
three forward passes and one backward pass, as does Tianshou with or without double Q-learning. Each claim compares
equal algorithms: `dqn_double` is our preset (double, three-step returns, squared error) against Tianshou;
`dqn_not_double` is ours without double Q-learning, with one-step returns and the Huber loss, against
Stable-Baselines3; `rainbow` is against Tianshou.

    python benchmarks/dqn.py [--quick]

With `--quick`, Tianshou's replay buffers hold one game and are not compiled, which adds about a millisecond to its
updates, because compiling takes longer than the rest of the benchmark. On a slow core, importing the libraries may
leave no time for the later claims with `--quick`.

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
"""Capacities of the replay buffers in transitions."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a comparison.

    Args:
        games: number of parallel games.
        turns: maximum number of rounds.
        steps: steps and updates per turn.
        filled: transitions in each replay buffer at the start.
        rings: number of games in Tianshou's replay buffers.
        full: transitions in the replay buffer for measuring the sampling time.
    """

    games: int
    turns: int
    steps: int
    filled: int
    rings: int
    full: int


FULL, QUICK = Sizes(10, 12, 50, 300, 10, OURS), Sizes(2, 8, 4, 60, 1, 10_000)
"""Sizes without and with `--quick`. Full turns have many steps to make Stable-Baselines3's cost per call negligible."""

Steps = Callable[[int], None]
"""Makes the given number of steps and updates."""


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
        target_update_interval=500,  # counts steps of all games, and thereby updates
        exploration_initial_eps=0.01,
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
    )
    agent.learn(sizes.filled)
    return lambda number: discard(agent.learn(number, reset_num_timesteps=False))


def discard(_: object) -> None:
    """Discard a return value."""


def tianshou(agent: str, sizes: Sizes, quick: bool) -> Steps:
    if quick:  # compiling the replay buffers takes many seconds in each process
        numba.config.DISABLE_JIT = True
    import tianshou_updates  # after DISABLE_JIT is set

    return {"dqn": tianshou_updates.dqn, "rainbow": tianshou_updates.rainbow}[agent](sizes.filled, sizes.rings)


def sampling_time(alpha: float, number: int, transitions: int) -> float:
    """Seconds to sample a batch from our replay buffer at capacity, with priorities unless alpha is 0."""
    games, generator = 1000, np.random.default_rng(0)
    replay_buffer = ReplayBuffer(transitions, games, (1, 84, 84), alpha=alpha)
    frames = generator.integers(256, size=(games, 1, 84, 84)).astype(np.uint8)
    nothing, actions = np.zeros(games, bool), np.zeros(games, np.int64)
    for _ in range(transitions // games):
        replay_buffer.add(frames, actions, np.ones(games), nothing, nothing, frames)
    began = time.perf_counter()
    for _ in range(number):
        batch = replay_buffer.sample(BATCH, generator, 0.5)
        replay_buffer.update_priorities(batch.indices, np.ones(BATCH))
    return (time.perf_counter() - began) / number


def update_time(trainer: Trainer, number: int) -> float:
    """Seconds per update without environment steps."""
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
        for name, make in makers.items():  # sides of a claim are consecutive, in case the time limit is reached
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
            print(f"{name}: sampling a batch takes {fraction:.1%} of an update")

    def ratio(own: str, other: str) -> float | None:
        """The speedup over the other side; None if a side is missing."""
        return median_ratio(without_warm_up(times[other]), without_warm_up(times[own]))

    print_claim("dqn_not_double", ratio("ours, not double", "Stable-Baselines3"))
    print_claim("dqn_double", ratio("ours", "Tianshou"))
    print_claim("rainbow", ratio("ours, Rainbow", "Tianshou, Rainbow"))
    leave(quick)


if __name__ == "__main__":
    main()
