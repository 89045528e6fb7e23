"""Several environments of one id, one for each learner."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays
from weightclip.lab.experiments.ppo import mujoco_state
from weightclip.lab.experiments.ppo.config import ENVIRONMENTS
from weightclip.lab.experiments.ppo.mujoco_steps import direct_steps

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Step:
    """The result of a step of all environments; a new episode starts where one ended.

    Args:
        observations: [s, d]; the first observation of the next episode where one ended.
        rewards: [s].
        terminated, truncated: [s], whether the episode was terminated or truncated.
        final_obs: [s, d], the last observation of an episode that ended; otherwise equal to `observations`.
        episodes: learner, return and length of each episode that ended.
    """

    observations: Array
    rewards: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: Array
    episodes: list[tuple[int, float, int]]


class Environments:
    """Environments of one id, stepped sequentially. Actions are clipped to the action space.

    Args:
        name: the id, for example "Walker2d-v4"; the action space must be a Box of real numbers.
        num_envs: the number of environments.
        direct: whether to step known MuJoCo environments without Gymnasium, with the same results.
    """

    def __init__(self, name: str, num_envs: int, direct: bool = False) -> None:
        self._environments = [make_environment(name) for _ in range(num_envs)]
        self._direct = direct_steps(self._environments) if direct else None
        first = self._environments[0]
        assert isinstance(first.action_space, gym.spaces.Box)
        self.observations = int(np.prod(first.observation_space.shape or ()))
        self.actions = int(np.prod(first.action_space.shape))
        self._shape = first.action_space.shape
        self._low, self._high = first.action_space.low.ravel(), first.action_space.high.ravel()
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._obs = np.zeros((num_envs, self.observations))
        self.resumable = mujoco_state.has_state(first)
        """Whether `state` contains everything that determines the next steps."""

    def reset(self, seeds: Sequence[int]) -> Array:
        """Start new episodes in all environments and return the observations [s, d]."""
        for i, (environment, seed) in enumerate(zip(self._environments, seeds, strict=True)):
            self._begin(i, environment, seed)
        return self._obs.copy()

    def restart(self, i: int, seed: int) -> Array:
        """Start a new episode in environment i and return the observations of all environments [s, d]."""
        self._begin(i, self._environments[i], seed)
        return self._obs.copy()

    def state(self, i: int) -> Arrays:
        """The state of environment i and its episode; empty if the environment is not resumable."""
        if not self.resumable:
            return {}
        episode = {
            "return": np.array(self._returns[i]),
            "length": np.array(self._lengths[i]),
            "now": self._obs[i].copy(),
        }
        return {**episode, **mujoco_state.state(self._environments[i])}

    def load_state(self, i: int, state: Arrays) -> None:
        """Restore a `state` that is not empty. A ValueError names an incompatible one."""
        mujoco_state.load_state(self._environments[i], state)
        self._returns[i], self._lengths[i], self._obs[i] = state["return"], state["length"], state["now"]
        if self._direct is not None:
            self._direct.refresh(i)

    def step(self, actions: NDArray[Any], stopped: Container[int] = ()) -> Step:
        """Step with actions [s, a]; the environments of stopped learners are not stepped."""
        clipped = np.clip(actions, self._low, self._high)
        active = [i for i in range(len(self._environments)) if i not in stopped]
        rewards, terminated, truncated = (self._gymnasium_steps if self._direct is None else self._direct_steps)(
            clipped, active
        )
        self._returns[active] += rewards[active]
        self._lengths[active] += 1
        final_obs = self._obs.copy()
        episodes = []
        for i in np.flatnonzero(terminated | truncated).tolist():
            episodes.append((i, float(self._returns[i]), int(self._lengths[i])))
            self._begin(i, self._environments[i], None)
        return Step(self._obs.copy() if episodes else final_obs, rewards, terminated, truncated, final_obs, episodes)

    def _gymnasium_steps(self, actions: NDArray[Any], active: Sequence[int]) -> tuple[Array, Bools, Bools]:
        """Step the active environments and return rewards, terminated and truncated, [s] each."""
        rewards, terminated, truncated = _zeros(len(self._environments))
        for i in active:
            obs, rewards[i], terminated[i], truncated[i], _ = self._environments[i].step(
                actions[i].reshape(self._shape)
            )
            self._obs[i] = np.ravel(obs)
        return rewards, terminated, truncated

    def _direct_steps(self, actions: NDArray[Any], active: Sequence[int]) -> tuple[Array, Bools, Bools]:
        """Step the active environments and return rewards, terminated and truncated, [s] each."""
        assert self._direct is not None
        if len(active) == len(self._environments):
            return self._direct.step(actions, active, self._obs)
        found, obs = _zeros(len(self._environments)), np.empty_like(self._obs)
        for one, some in zip(found, self._direct.step(actions, active, obs), strict=True):
            one[active] = some[active]
        self._obs[active] = obs[active]
        return found

    def close(self) -> None:
        for environment in self._environments:
            environment.close()

    def _begin(self, i: int, environment: gym.Env[Any, Any], seed: int | None) -> None:
        obs, _ = environment.reset(seed=seed)
        self._obs[i] = np.ravel(obs)
        if self._direct is not None:
            self._direct.refresh(i)
        self._returns[i] = 0.0
        self._lengths[i] = 0


def _zeros(num_envs: int) -> tuple[Array, Bools, Bools]:
    """Rewards, terminated and truncated of environments that are not stepped."""
    return np.zeros(num_envs), np.zeros(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)


def make_environment(name: str, **options: Any) -> gym.Env[Any, Any]:
    """An environment by its id, with flat observations.

    Raise a ValueError for an unknown id, an id without version, or unsupported spaces.
    """
    _log_mujoco_warnings()
    with warnings.catch_warnings():
        # The paper uses v4, which is deprecated.
        warnings.filterwarnings("ignore", r".*is out of date", DeprecationWarning)
        # Without a version, Gymnasium would use the latest one, which is not the one of the paper.
        warnings.filterwarnings("error", r".*Using the latest versioned environment", UserWarning)
        try:
            environment = gym.make(name, disable_env_checker=True, **options)
        except UserWarning:
            raise ValueError(f"env: got {name!r}, expected an id with a version; {_versions(name)}") from None
        except gym.error.DependencyNotInstalled as error:
            raise ValueError(f"env: got {name!r}, which needs a package that is not installed: {error}") from error
        except (gym.error.Error, ImportError) as error:
            raise ValueError(f"env: got {name!r}: {' '.join(str(error).split())}") from error
    if not _is_real(environment.action_space):
        raise ValueError(
            f"env: got {name!r}, whose actions are {environment.action_space}; expected vectors of real numbers (Box)"
        )
    if _is_real(environment.observation_space):
        return environment  # already flat; a wrapper would slow down every step
    if not environment.observation_space.is_np_flattenable:
        raise ValueError(
            f"env: got {name!r}, whose observations are {environment.observation_space}; "
            "expected a space that can be flattened to a vector"
        )
    return gym.wrappers.FlattenObservation(environment)


def _is_real(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _versions(name: str) -> str:
    """The versions that Gymnasium knows and a suggestion: the paper's version, or the latest one."""
    base = name.rpartition(":")[2]
    available = [one for one in gym.registry if one.rpartition("-v")[0] == base]
    near = next((one for one in ENVIRONMENTS if one in available), available[-1])
    return f"known versions are {', '.join(available)}; did you mean {near!r}?"


def _log_mujoco_warnings() -> None:
    """Log MuJoCo's warnings; by default it writes them to the terminal and to a file in the working directory."""
    try:
        import mujoco  # type: ignore[import-untyped]
    except ImportError:  # not needed by every environment
        return
    mujoco.set_mju_user_warning(_log)


def _log(warning: str) -> None:
    if "settotalmass" not in warning:  # caused by Gymnasium's own models
        logging.getLogger(__name__).warning("MuJoCo: %s", warning)


EPSILON = 1e-8
LIMIT = 10.0
"""Normalized values are clipped to [-10, 10]."""


def normalize(x: Array, mean: Array, var: Array) -> NDArray[np.float32]:
    """(x - mean) / sqrt(var + epsilon), clipped; all of one shape."""
    found: Array = (x - mean) / np.sqrt(var + EPSILON)
    return np.clip(found, -LIMIT, LIMIT).astype(np.float32)


class RunningMeanStd:
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
        self.observations = RunningMeanStd(learners, observations)
        self.returns = RunningMeanStd(learners, 1)
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
        """The state by name, [learners, ...] each, without copying."""
        parts = {"observations": self.observations, "returns": self.returns}
        found = {f"{name}_{key}": getattr(one, key) for name, one in parts.items() for key in ("mean", "var", "count")}
        return {**found, "discounted": self.discounted}
