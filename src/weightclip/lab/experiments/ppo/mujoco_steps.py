"""Steps of MuJoCo environments without Gymnasium's Python code: the same observations, rewards and ends, bit for bit.

MuJoCo simulates one environment after the other. Observations, rewards and terminations of all environments are
computed together. Resets remain Gymnasium's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from weightclip.lab.experiments.ppo import mujoco_state

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_DEFAULTS = {
    "_exclude_current_positions_from_observation": True,
    "_terminate_when_unhealthy": True,
    "_use_contact_forces": False,
}
"""Options of Gymnasium's classes that change observations, rewards or terminations; weights and ranges are read."""


def direct_steps(environments: Sequence[gym.Env[Any, Any]]) -> DirectSteps | None:
    """Direct steps of environments of one id; None if there are none for them.

    A subclass of Gymnasium's class, an option that changes observations or rewards, or another wrapper may have steps
    of its own.
    """
    first: Any = environments[0].unwrapped
    name = f"{type(first).__module__}.{type(first).__qualname__}"
    kind = _KINDS.get(name)
    if kind is None or not mujoco_state.has_state(environments[0]) or first.render_mode is not None:
        return None
    defaults = all(getattr(first, option, default) == default for option, default in _DEFAULTS.items())
    return kind(environments) if defaults else None


class DirectSteps:
    """Steps of several environments of one id.

    Args:
        environments: environments after `gym.make`, with the same options.

    Class attributes:
        hidden_positions: number of entries of qpos, from the first, that are not observed.
        fields: fields of MjData that are observed after qpos and qvel.
        unobserved: fields that the position is computed from.
    """

    hidden_positions: ClassVar[int] = 1
    fields: ClassVar[tuple[str, ...]] = ()
    unobserved: ClassVar[tuple[str, ...]] = ()

    def __init__(self, environments: Sequence[gym.Env[Any, Any]]) -> None:
        self._unwrapped: list[Any] = [one.unwrapped for one in environments]
        first = self._unwrapped[0]
        self._limits = [mujoco_state.time_limits(one) for one in environments]
        # The models are equal and constant: with one for all, more of the simulation stays in the cache.
        self._model = first.model
        self._frames, self._dt = first.frame_skip, first.dt
        self._data = [one.data for one in self._unwrapped]
        # Arrays of MjData are views of its memory, which stays in place.
        self._controls = [data.ctrl for data in self._data]
        names = ("qpos", "qvel", *self.fields, *self.unobserved)
        self._parts = [[getattr(data, name).reshape(-1) for name in names] for data in self._data]
        ends = np.cumsum([part.size for part in self._parts[0]]).tolist()
        self._columns = {name: slice(start, end) for name, start, end in zip(names, [0, *ends], ends, strict=False)}
        self._observed = ends[1 + len(self.fields)]
        num_envs = len(environments)
        self._state = np.zeros((num_envs, ends[-1]))  # qpos, qvel and the other fields
        self._x = np.zeros(num_envs)  # position that the forward velocity is computed from
        for i in range(num_envs):
            self.refresh(i)

    def refresh(self, i: int) -> None:
        """Read the state of environment i after a reset or a restored state."""
        np.concatenate(self._parts[i], out=self._state[i])
        self._x[i] = self.positions(slice(i, i + 1))[0]

    def step(self, actions: NDArray[Any], active: Iterable[int], observations: Array) -> tuple[Array, Bools, Bools]:
        """Step the active environments with actions [s, a] inside the action space.

        Fills `observations` [s, d] and returns rewards, terminated and truncated, [s] each; rows of environments that
        are not active are meaningless.
        """
        import mujoco  # type: ignore[import-untyped]

        truncated, controls = np.zeros(len(self._data), dtype=bool), actions.astype(np.float64)
        for i in active:
            data = self._data[i]
            self._controls[i][:] = controls[i]
            mujoco.mj_step(self._model, data, self._frames)
            mujoco.mj_rnePostConstraint(self._model, data)  # contact forces, which mj_step does not compute
            np.concatenate(self._parts[i], out=self._state[i])
            for limit in self._limits[i]:
                limit._elapsed_steps += 1
                truncated[i] |= limit._elapsed_steps >= limit._max_episode_steps
        before, self._x = self._x, self.positions()
        healthy = self.healthy()
        rewards = self.rewards((self._x - before) / self._dt, actions, healthy)
        self.observe(observations)
        return rewards, ~healthy, truncated

    def positions(self, rows: slice = slice(None)) -> Array:
        """The positions along x of some environments, a new array."""
        return self._state[rows, 0].copy()

    def observe(self, out: Array) -> None:
        """Write the observations [s, d]."""
        out[:] = self._state[:, self.hidden_positions : self._observed]

    def healthy(self) -> Bools:
        """Whether each episode continues, [s]."""
        return np.ones(len(self._data), dtype=bool)

    def rewards(self, velocities: Array, actions: NDArray[Any], healthy: Bools) -> Array:
        """Rewards [s] from the velocities along x [s] and the actions [s, a]."""
        raise NotImplementedError


class _HalfCheetah(DirectSteps):
    def rewards(self, velocities: Array, actions: NDArray[Any], healthy: Bools) -> Array:
        env = self._unwrapped[0]
        # In the precision of the actions, as in Gymnasium.
        costs = env._ctrl_cost_weight * np.sum(np.square(actions), axis=1)
        found: Array = env._forward_reward_weight * velocities - costs
        return found


class _Walker2d(DirectSteps):
    def observe(self, out: Array) -> None:
        super().observe(out)
        velocities = out[:, self._columns["qvel"].start - self.hidden_positions :]
        np.clip(velocities, -10, 10, out=velocities)

    def rewards(self, velocities: Array, actions: NDArray[Any], healthy: Bools) -> Array:
        env = self._unwrapped[0]
        costs = env._ctrl_cost_weight * np.sum(np.square(actions), axis=1)
        found: Array = env._forward_reward_weight * velocities + self.alive(healthy) - costs
        return found

    def alive(self, healthy: Bools) -> Any:
        """The reward for a healthy state, which v4 gives in the last step of an episode as well."""
        env = self._unwrapped[0]
        return (healthy | env._terminate_when_unhealthy) * env._healthy_reward

    def healthy(self) -> Bools:
        env = self._unwrapped[0]
        (low, high), (left, right) = env._healthy_z_range, env._healthy_angle_range
        z, angle = self._state[:, 1], self._state[:, 2]
        found: Bools = (low < z) & (z < high) & (left < angle) & (angle < right)
        return found


class _Hopper(_Walker2d):
    def healthy(self) -> Bools:
        low, high = self._unwrapped[0]._healthy_state_range
        state = self._state[:, 2:]
        found: Bools = super().healthy() & ((low < state) & (state < high)).all(axis=1)
        return found


class _Walker2dV5(_Walker2d):
    def alive(self, healthy: Bools) -> Any:
        return healthy * self._unwrapped[0]._healthy_reward


class _HopperV5(_Hopper, _Walker2dV5):
    pass


class _Ant(DirectSteps):
    hidden_positions = 2
    unobserved = ("xpos",)

    def positions(self, rows: slice = slice(None)) -> Array:
        torso = self._model.body("torso").id
        return self._state[rows, self._columns["xpos"].start + 3 * torso].copy()

    def healthy(self) -> Bools:
        low, high = self._unwrapped[0]._healthy_z_range
        z = self._state[:, 2]
        found: Bools = np.isfinite(self._state[:, : self._observed]).all(axis=1) & (low <= z) & (z <= high)
        return found

    def rewards(self, velocities: Array, actions: NDArray[Any], healthy: Bools) -> Array:
        env = self._unwrapped[0]
        alive = (healthy | env._terminate_when_unhealthy) * env._healthy_reward
        found: Array = velocities + alive - env._ctrl_cost_weight * np.sum(np.square(actions), axis=1)
        return found


class _Humanoid(DirectSteps):
    hidden_positions = 2
    fields = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    unobserved = ("xipos",)

    def __init__(self, environments: Sequence[gym.Env[Any, Any]]) -> None:
        self._mass = environments[0].unwrapped.model.body_mass.copy()  # type: ignore[attr-defined]
        self._total = self._mass.sum()
        super().__init__(environments)

    def positions(self, rows: slice = slice(None)) -> Array:
        state = self._state[rows]
        centers = state[:, self._columns["xipos"]].reshape(len(state), -1, 3)
        # With all three coordinates, the sum adds one body after the other, as Gymnasium's einsum does. For x alone, a
        # sum over adjacent numbers would be pairwise.
        found: Array = (self._mass[:, None] * centers).sum(axis=1)[:, 0] / self._total
        return found

    def healthy(self) -> Bools:
        low, high = self._unwrapped[0]._healthy_z_range
        z = self._state[:, 2]
        found: Bools = (low < z) & (z < high)
        return found

    def rewards(self, velocities: Array, actions: NDArray[Any], healthy: Bools) -> Array:
        env = self._unwrapped[0]
        alive = (healthy | env._terminate_when_unhealthy) * env._healthy_reward
        costs = env._ctrl_cost_weight * np.sum(np.square(actions.astype(np.float64)), axis=1)
        found: Array = env._forward_reward_weight * velocities + alive - costs
        return found


class _HumanoidStandup(DirectSteps):
    hidden_positions = 2
    fields = _Humanoid.fields

    def rewards(self, velocities: Array, actions: NDArray[Any], healthy: Bools) -> Array:
        upward = (self._state[:, 2] - 0) / self._model.opt.timestep
        control = 0.1 * np.square(actions.astype(np.float64)).sum(axis=1)
        impact = 0.5e-6 * np.square(self._state[:, self._columns["cfrc_ext"]]).sum(axis=1)
        found: Array = upward - control - np.minimum(impact, 10) + 1
        return found


_KINDS: dict[str, type[DirectSteps]] = {
    "gymnasium.envs.mujoco.ant_v4.AntEnv": _Ant,
    "gymnasium.envs.mujoco.half_cheetah_v4.HalfCheetahEnv": _HalfCheetah,
    "gymnasium.envs.mujoco.half_cheetah_v5.HalfCheetahEnv": _HalfCheetah,
    "gymnasium.envs.mujoco.hopper_v4.HopperEnv": _Hopper,
    "gymnasium.envs.mujoco.hopper_v5.HopperEnv": _HopperV5,
    "gymnasium.envs.mujoco.humanoid_v4.HumanoidEnv": _Humanoid,
    "gymnasium.envs.mujoco.humanoidstandup_v4.HumanoidStandupEnv": _HumanoidStandup,
    "gymnasium.envs.mujoco.walker2d_v4.Walker2dEnv": _Walker2d,
    "gymnasium.envs.mujoco.walker2d_v5.Walker2dEnv": _Walker2dV5,
}
"""Gymnasium's classes that have direct steps."""
