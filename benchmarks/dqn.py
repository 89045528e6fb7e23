"""DQN and Rainbow on Atari: a step of the game and an update, and the same in Stable-Baselines3 and Tianshou.

Replay ratio 1, batch 32, the network of Mnih et al. (2015), Space Invaders, one thread. All sides take turns in one
process; a side's time is the median over its turns, a ratio the median over those of each round. Ours and
Stable-Baselines3's play ten games at once, with the actions that the network finds best, and make ten updates after
each step of all. Tianshou's have the update alone, from a memory with as many transitions: its trainer copies the whole
memory in between. Rainbow's networks are as Tianshou's example has them. Our memory has room for 100,000 transitions,
theirs for fewer, as they take more space; all hold some 300 at first. The share of an update that drawing a batch takes
is that of our memory when it is full.

Stable-Baselines3's DQN is not double: it takes two passes through a network and one back, where double DQN takes three
and one back. `dqn` has the algorithm that all three have, not double, of one step, with Huber's error: ours against the
faster of both. `dqn_double` is our preset, double with three steps and the squared error, against Tianshou's alike.
`dqn_preset` is our preset against the faster of Stable-Baselines3's and that one, with a pass more than the former.

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
from weightclip.lab.replay.training import Trainer

BATCH, FILLED, ACTIONS = 32, 300, 6
OURS, THEIRS = 100_000, 5_000
"""Transitions that memories have room for."""

GAMES = 10
TURNS, TURN = 12, 50
QUICK_TURNS, QUICK_TURN = 3, 10
"""Turns, and steps and updates of each: what Stable-Baselines3 does once for each call is little beside so many."""

Steps = Callable[[int], None]
"""Takes that many steps and updates."""


def ours(agent: str, **options: Any) -> tuple[Trainer, Steps]:
    config = resolve(
        Config(agent=agent, method="adam", game="SpaceInvaders", environments=GAMES, memory=OURS, epsilon=0.0,
               epsilon_final=0.0, **options)
    )  # fmt: skip
    trainer = Trainer(config, torch.device("cpu"))
    trainer.play(FILLED // GAMES)

    def steps(number: int) -> None:
        for _ in range(number // GAMES):
            trainer.play(1)
            trainer.practise(GAMES)

    return trainer, steps


def baselines3() -> Steps:
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("SpaceInvadersNoFrameskip-v4", n_envs=GAMES, seed=0), n_stack=4)
    agent = DQN(
        "CnnPolicy",
        env,
        learning_rate=1e-4,
        buffer_size=THEIRS,
        batch_size=BATCH,
        learning_starts=FILLED,
        train_freq=1,
        gradient_steps=GAMES,
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
    nothing = np.zeros(GAMES, bool)
    for _ in range(FILLED // GAMES):
        frames = generator.integers(256, size=(GAMES, 4, 84, 84)).astype(np.uint8)
        ended = generator.random(GAMES) < 0.005
        buffer.add(
            Batch(
                obs=frames,
                act=generator.integers(ACTIONS, size=GAMES),
                rew=generator.normal(size=GAMES),
                terminated=ended,
                truncated=nothing,
                obs_next=frames,
                info={},
            ),
            buffer_ids=np.arange(GAMES),
        )
    return buffer


def tianshou_dqn(**options: Any) -> Steps:
    space = gym.spaces.Discrete(ACTIONS)
    network = DQNet(c=4, h=84, w=84, action_shape=ACTIONS)
    policy = DiscreteQLearningPolicy(model=network, action_space=space)
    optim = AdamOptimizerFactory(lr=1e-4)
    algorithm = TianshouDQN(policy=policy, optim=optim, target_update_freq=500, **options)
    stored = {"ignore_obs_next": True, "save_only_last_obs": True, "stack_num": 4}
    return tianshou_steps(algorithm, filled(VectorReplayBuffer(THEIRS, GAMES, **stored)))


def tianshou_rainbow() -> Steps:
    space = gym.spaces.Discrete(ACTIONS)
    network = RainbowNet(
        c=4, h=84, w=84, action_shape=ACTIONS, num_atoms=51, noisy_std=0.1, is_dueling=True, is_noisy=True
    )
    policy = C51Policy(model=network, action_space=space, num_atoms=51, v_min=-10.0, v_max=10.0)
    optim = AdamOptimizerFactory(lr=6.25e-5)
    algorithm = RainbowDQN(policy=policy, optim=optim, n_step_return_horizon=3, target_update_freq=500)
    stored = {"ignore_obs_next": True, "save_only_last_obs": True, "stack_num": 4, "alpha": 0.5, "beta": 0.4}
    return tianshou_steps(algorithm, filled(PrioritizedVectorReplayBuffer(THEIRS, GAMES, **stored)))


def tianshou_steps(algorithm: object, buffer: VectorReplayBuffer) -> Steps:
    from tianshou.algorithm.algorithm_base import policy_within_training_step

    def steps(number: int) -> None:
        with policy_within_training_step(algorithm.policy):
            for _ in range(number):
                algorithm.update(buffer=buffer, sample_size=BATCH)

    return steps


def sampling_share(trainer: Trainer, number: int) -> float:
    """The share of an update's time that drawing a batch takes, from a memory that is full."""
    generator = np.random.default_rng(0)
    frames = generator.integers(256, size=(GAMES, 1, 84, 84)).astype(np.uint8)
    nothing, actions = np.zeros(GAMES, bool), np.zeros(GAMES, np.int64)
    for _ in range(OURS // GAMES):
        trainer.memory.add(frames, actions, np.ones(GAMES), nothing, nothing, frames)
    began = time.perf_counter()
    for _ in range(number):
        batch = trainer.memory.sample(BATCH, generator, 0.5)
        trainer.memory.prioritise(batch.places, np.ones(BATCH))
    between = time.perf_counter()
    trainer.practise(number)
    return (between - began) / (time.perf_counter() - between)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    dqn, dqn_steps = ours("dqn")
    rainbow, rainbow_steps = ours("rainbow")
    sides = {
        "ours": dqn_steps,
        "ours, not double": ours("dqn", double=False, n_step=1, loss="huber")[1],
        "Stable-Baselines3, not double": baselines3(),
        "Tianshou, not double": tianshou_dqn(is_double=False, n_step_return_horizon=1, huber_loss_delta=1.0),
        "Tianshou": tianshou_dqn(n_step_return_horizon=3),
        "ours, Rainbow": rainbow_steps,
        "Tianshou, Rainbow": tianshou_rainbow(),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for steps in sides.values():
        steps(GAMES)  # the first updates are slower
    turns, turn = (QUICK_TURNS, QUICK_TURN) if quick else (TURNS, TURN)
    for _ in range(turns):
        for name, steps in sides.items():
            began = time.perf_counter()
            steps(turn)
            times[name].append((time.perf_counter() - began) / turn)
    found = {name: median(own) for name, own in times.items()}
    for name, seconds in found.items():
        print(f"{name}: {1000 * seconds:.1f} ms for a step and an update")
    for name, trainer in (("DQN", dqn), ("Rainbow", rainbow)):
        print(f"{name}: drawing a batch takes {sampling_share(trainer, 10 if quick else 40):.1%} of an update")

    def ratio(own: str, *theirs: str) -> float:
        """Of the fastest of theirs."""
        return min(median(map(truediv, times[one], times[own])) for one in theirs)

    print(f"dqn: {ratio('ours, not double', 'Stable-Baselines3, not double', 'Tianshou, not double'):.2f}")
    print(f"dqn_double: {ratio('ours', 'Tianshou'):.2f}")
    print(f"dqn_preset: {ratio('ours', 'Stable-Baselines3, not double', 'Tianshou'):.2f}")
    print(f"rainbow: {ratio('ours, Rainbow', 'Tianshou, Rainbow'):.2f}")


if __name__ == "__main__":
    main()
