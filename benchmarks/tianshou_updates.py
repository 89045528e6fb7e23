"""Updates of Tianshou's DQN and Rainbow from a replay buffer with random transitions, for comparison.

The networks and settings are from Tianshou's Atari examples.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
from tianshou.algorithm import DQN, RainbowDQN
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer
from tianshou.env.atari.atari_network import DQNet, RainbowNet

BATCH, ACTIONS, ROOM = 32, 6, 5_000
STORED = {"ignore_obs_next": True, "save_only_last_obs": True, "stack_num": 4}

Steps = Callable[[int], None]
"""Makes the given number of updates."""


def dqn(transitions: int, rings: int) -> Steps:
    """DQN with the given number of initial transitions and games."""
    network = DQNet(c=4, h=84, w=84, action_shape=ACTIONS)
    policy = DiscreteQLearningPolicy(model=network, action_space=gym.spaces.Discrete(ACTIONS))
    optim = AdamOptimizerFactory(lr=1e-4)
    algorithm = DQN(policy=policy, optim=optim, n_step_return_horizon=3, target_update_freq=500)
    return _steps(algorithm, _filled(VectorReplayBuffer(ROOM, rings, **STORED), transitions, rings))


def rainbow(transitions: int, rings: int) -> Steps:
    """Rainbow with the given number of initial transitions and games."""
    network = RainbowNet(
        c=4, h=84, w=84, action_shape=ACTIONS, num_atoms=51, noisy_std=0.1, is_dueling=True, is_noisy=True
    )
    space = gym.spaces.Discrete(ACTIONS)
    policy = C51Policy(model=network, action_space=space, num_atoms=51, v_min=-10.0, v_max=10.0)
    optim = AdamOptimizerFactory(lr=6.25e-5)
    algorithm = RainbowDQN(policy=policy, optim=optim, n_step_return_horizon=3, target_update_freq=500)
    buffer = PrioritizedVectorReplayBuffer(ROOM, rings, **STORED, alpha=0.5, beta=0.4)
    return _steps(algorithm, _filled(buffer, transitions, rings))


def _filled(buffer: VectorReplayBuffer, transitions: int, rings: int) -> VectorReplayBuffer:
    generator = np.random.default_rng(0)
    for _ in range(transitions // rings):
        frames = generator.integers(256, size=(rings, 4, 84, 84)).astype(np.uint8)
        buffer.add(
            Batch(
                obs=frames,
                act=generator.integers(ACTIONS, size=rings),
                rew=generator.normal(size=rings),
                terminated=generator.random(rings) < 0.005,
                truncated=np.zeros(rings, bool),
                obs_next=frames,
                info={},
            ),
            buffer_ids=np.arange(rings),
        )
    return buffer


def _steps(algorithm: DQN | RainbowDQN, buffer: VectorReplayBuffer) -> Steps:
    def steps(number: int) -> None:
        with policy_within_training_step(algorithm.policy):
            for _ in range(number):
                algorithm.update(buffer=buffer, sample_size=BATCH)

    return steps
