"""Running normalization of observations and rewards for several learners at once, as in Gymnasium's wrappers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPSILON = 1e-8
LIMIT = 10.0
"""Normalized values are clipped to [-10, 10]."""


def normalize(x: Array, mean: Array, var: Array) -> NDArray[np.float32]:
    """(x - mean) / sqrt(var + epsilon), clipped; all of one shape."""
    found: Array = (x - mean) / np.sqrt(var + EPSILON)
    return np.clip(found, -LIMIT, LIMIT).astype(np.float32)


class Running:
    """Running mean and variance for each learner: [learners, d] each."""

    def __init__(self, learners: int, size: int) -> None:
        self.mean = np.zeros((learners, size))
        self.var = np.ones((learners, size))
        self.count = np.full((learners, 1), 1e-4)

    def update(self, x: Array, which: NDArray[np.bool_] | slice = slice(None)) -> None:
        """Welford's update with one sample x [learners, d], for the learners in `which`."""
        count = self.count[which]
        delta = x[which] - self.mean[which]
        total = count + 1.0
        self.mean[which] += delta / total
        self.var[which] = (self.var[which] * count + delta * delta * (count / total)) / total
        self.count[which] = total


class Normalizer:
    """Normalizes observations to mean 0 and variance 1, and rewards by the deviation of the discounted return.

    Args:
        learners: the number of learners, each with its own statistics.
        observations: the dimension of an observation.
        gamma: discount of the return.
    """

    def __init__(self, learners: int, observations: int, gamma: float) -> None:
        self.observations = Running(learners, observations)
        self.returns = Running(learners, 1)
        self.discounted = np.zeros((learners, 1))
        self.gamma = gamma

    def observe(self, x: Array, which: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float32]:
        """Update the statistics of the learners in `which` and normalize: [learners, d] -> [learners, d]."""
        self.observations.update(x, which)
        return self.normalize(x)

    def normalize(self, x: Array) -> NDArray[np.float32]:
        """Normalize with the current statistics: [learners, d] -> [learners, d]."""
        return normalize(x, self.observations.mean, self.observations.var)

    def reward(
        self, rewards: Array, terminated: NDArray[np.bool_], which: NDArray[np.bool_] | slice = slice(None)
    ) -> NDArray[np.float32]:
        """Update the statistics of the learners in `which` and normalize: [learners] -> [learners].

        The discounted return restarts at 0 when an episode terminates, not when it is truncated.
        """
        self.discounted *= self.gamma * ~terminated[:, None]
        self.discounted += rewards[:, None]
        self.returns.update(self.discounted, which)
        found = rewards / np.sqrt(self.returns.var[:, 0] + EPSILON)
        return np.clip(found, -LIMIT, LIMIT).astype(np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its state by name, [learners, ...] each; not copies."""
        parts = {"observations": self.observations, "returns": self.returns}
        found = {f"{name}_{key}": getattr(one, key) for name, one in parts.items() for key in ("mean", "var", "count")}
        return {**found, "discounted": self.discounted}
