"""Configurations of short runs, and random batches."""

from typing import Any

import numpy as np

from weightclip.lab.experiments.dqn.config import Config, resolve
from weightclip.lab.experiments.dqn.replay_buffer import Batch


def config(agent: str = "dqn", method: str = "adam+wc", seed: int = 0, **more: Any) -> Config:
    given = {
        "suite": "minatar",
        "game": "breakout",
        "frames": 400,
        "points": 4,
        "learning_starts": 60,
        "buffer_size": 300,
        "batch_size": 16,
        "eval_episodes": 2,
        "target_update_interval": 20,
        "covariance": 0,
        **more,
    }
    return resolve(Config(agent=agent, method=method, seed=seed, **given))


def batch(n: int = 6, channels: int = 4, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    return Batch(
        states=generator.integers(2, size=(2, n, channels, 10, 10)).astype(np.uint8),
        actions=generator.integers(6, size=n),
        returns=generator.normal(size=n).astype(np.float32),
        discounts=np.array([0.0, 0.97, *[0.9] * (n - 2)], np.float32),
        weights=generator.uniform(0.3, 1.0, n).astype(np.float32),
        indices=np.arange(n),
    )
