"""DQN and Rainbow on Atari: a step of the game and an update, and the same in Stable-Baselines3 and Tianshou.

Replay ratio 1, batch 32, the network of Mnih et al. (2015), Space Invaders, one thread. All sides take turns in one
process; a side's time is the median over its turns, a ratio the median over those of each round. Ours and
Stable-Baselines3's play ten games at once (two with `--quick`), with the actions that the network finds best, and make
as many updates after each step of all. Tianshou's have the update alone, from a memory with as many transitions: its
trainer copies the whole memory in between. Rainbow's networks are as Tianshou's example has them. Our memory has room
for 100,000 transitions, theirs for fewer, as they take more space; all hold some 300 at first. The time that drawing a
batch takes is that of our memory when it is full.

Stable-Baselines3's DQN is not double: it takes two passes through a network and one back. Double DQN takes three and
one back, and so does Tianshou's, double or not. `dqn` is our preset, double with three steps and the squared error,
against the faster of both, although Stable-Baselines3's takes a pass less. `dqn_double` is the same against Tianshou's
alone, `dqn_not_double` ours as Stable-Baselines3's is, not double, of one step, with Huber's error, against that one.

    python benchmarks/dqn.py [--quick]

Needs `pip install "weightclip[atari,hosts]"`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from operator import truediv
from statistics import median
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack
from tianshou.algorithm import DQN as TianshouDQN
from tianshou.algorithm import RainbowDQN
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer
from tianshou.env.atari.atari_network import DQNet, RainbowNet

from weightclip.lab.replay.config import Config, resolve
from weightclip.lab.replay.memory import Memory
from weightclip.lab.replay.training import Trainer

BATCH, FILLED, ACTIONS, RINGS = 32, 300, 6, 10
OURS, THEIRS = 100_000, 5_000
"""Transitions that memories have room for."""

FULL, QUICK = (10, 12, 50), (2, 3, 4)
"""Games at once; turns; steps and updates of each, many in the full one, so that what Stable-Baselines3 does once for
each call is little beside them.
"""

Steps = Callable[[int], None]
"""Takes that many steps and updates."""


def ours(games: int, agent: str, **options: Any) -> Trainer:
    config = resolve(
        Config(agent=agent, method="adam", game="SpaceInvaders", environments=games, memory=OURS, epsilon=0.0,
               epsilon_final=0.0, **options)
    )  # fmt: skip
    trainer = Trainer(config, torch.device("cpu"))
    trainer.play(FILLED // games)
    return trainer


def our_steps(trainer: Trainer, games: int) -> Steps:
    def steps(number: int) -> None:
        for _ in range(number // games):
            trainer.play(1)
            trainer.practise(games)

    return steps


def baselines3(games: int) -> Steps:
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("SpaceInvadersNoFrameskip-v4", n_envs=games, seed=0), n_stack=4)
    agent = DQN(
        "CnnPolicy",
        env,
        learning_rate=1e-4,
        buffer_size=THEIRS,
        batch_size=BATCH,
        learning_starts=FILLED,
        train_freq=1,
        gradient_steps=games,
        target_update_interval=500,  # steps of all games, and so updates
        exploration_initial_eps=0.01,
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
    )
    agent.learn(FILLED)
    return lambda number: void(agent.learn(number, reset_num_timesteps=False))


def void(_: object) -> None:
    """For functions that return nothing."""


def filled(buffer: VectorReplayBuffer) -> VectorReplayBuffer:
    generator = np.random.default_rng(0)
    nothing = np.zeros(RINGS, bool)
    for _ in range(FILLED // RINGS):
        frames = generator.integers(256, size=(RINGS, 4, 84, 84)).astype(np.uint8)
        ended = generator.random(RINGS) < 0.005
        buffer.add(
            Batch(
                obs=frames,
                act=generator.integers(ACTIONS, size=RINGS),
                rew=generator.normal(size=RINGS),
                terminated=ended,
                truncated=nothing,
                obs_next=frames,
                info={},
            ),
            buffer_ids=np.arange(RINGS),
        )
    return buffer


def tianshou_dqn() -> Steps:
    space = gym.spaces.Discrete(ACTIONS)
    network = DQNet(c=4, h=84, w=84, action_shape=ACTIONS)
    policy = DiscreteQLearningPolicy(model=network, action_space=space)
    optim = AdamOptimizerFactory(lr=1e-4)
    algorithm = TianshouDQN(policy=policy, optim=optim, n_step_return_horizon=3, target_update_freq=500)
    stored = {"ignore_obs_next": True, "save_only_last_obs": True, "stack_num": 4}
    return tianshou_steps(algorithm, filled(VectorReplayBuffer(THEIRS, RINGS, **stored)))


def tianshou_rainbow() -> Steps:
    space = gym.spaces.Discrete(ACTIONS)
    network = RainbowNet(
        c=4, h=84, w=84, action_shape=ACTIONS, num_atoms=51, noisy_std=0.1, is_dueling=True, is_noisy=True
    )
    policy = C51Policy(model=network, action_space=space, num_atoms=51, v_min=-10.0, v_max=10.0)
    optim = AdamOptimizerFactory(lr=6.25e-5)
    algorithm = RainbowDQN(policy=policy, optim=optim, n_step_return_horizon=3, target_update_freq=500)
    stored = {"ignore_obs_next": True, "save_only_last_obs": True, "stack_num": 4, "alpha": 0.5, "beta": 0.4}
    return tianshou_steps(algorithm, filled(PrioritizedVectorReplayBuffer(THEIRS, RINGS, **stored)))


def tianshou_steps(algorithm: object, buffer: VectorReplayBuffer) -> Steps:
    from tianshou.algorithm.algorithm_base import policy_within_training_step

    def steps(number: int) -> None:
        with policy_within_training_step(algorithm.policy):
            for _ in range(number):
                algorithm.update(buffer=buffer, sample_size=BATCH)

    return steps


def sampling_time(alpha: float, number: int) -> float:
    """Seconds that drawing a batch takes from our memory when it is full, by priority unless alpha is 0."""
    games, generator = 1000, np.random.default_rng(0)
    memory = Memory(OURS, games, (1, 84, 84), alpha=alpha)
    frames = generator.integers(256, size=(games, 1, 84, 84)).astype(np.uint8)
    nothing, actions = np.zeros(games, bool), np.zeros(games, np.int64)
    for _ in range(OURS // games):
        memory.add(frames, actions, np.ones(games), nothing, nothing, frames)
    began = time.perf_counter()
    for _ in range(number):
        batch = memory.sample(BATCH, generator, 0.5)
        memory.prioritise(batch.places, np.ones(BATCH))
    return (time.perf_counter() - began) / number


def update_time(trainer: Trainer, number: int) -> float:
    """Seconds that an update takes, without a step of the game."""
    began = time.perf_counter()
    trainer.practise(number)
    return (time.perf_counter() - began) / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    games, turns, turn = QUICK if quick else FULL
    trainers = {
        "ours": ours(games, "dqn"),
        "ours, not double": ours(games, "dqn", double=False, n_step=1, loss="huber"),
        "ours, Rainbow": ours(games, "rainbow"),
    }
    sides = {
        **{name: our_steps(trainer, games) for name, trainer in trainers.items()},
        "Stable-Baselines3": baselines3(games),
        "Tianshou": tianshou_dqn(),
        "Tianshou, Rainbow": tianshou_rainbow(),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for steps in sides.values():
        steps(games)  # the first updates are slower
    for _ in range(turns):
        for name, steps in sides.items():
            began = time.perf_counter()
            steps(turn)
            times[name].append((time.perf_counter() - began) / turn)
    found = {name: median(own) for name, own in times.items()}
    for name, seconds in found.items():
        print(f"{name}: {1000 * seconds:.1f} ms for a step and an update")
    for name, alpha in (("ours", 0.0), ("ours, Rainbow", 0.5)):
        share = sampling_time(alpha, 40) / update_time(trainers[name], turn)
        print(f"{name}: drawing a batch takes {share:.1%} of an update")

    def ratio(own: str, *theirs: str) -> float:
        """Of the fastest of theirs."""
        return min(median(map(truediv, times[one], times[own])) for one in theirs)

    print(f"dqn_not_double: {ratio('ours, not double', 'Stable-Baselines3'):.2f}")
    print(f"dqn_double: {ratio('ours', 'Tianshou'):.2f}")
    print(f"dqn: {ratio('ours', 'Stable-Baselines3', 'Tianshou'):.2f}")
    print(f"rainbow: {ratio('ours, Rainbow', 'Tianshou, Rainbow'):.2f}")


if __name__ == "__main__":
    main()
