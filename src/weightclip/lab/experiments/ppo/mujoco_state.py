"""The complete state of a Gymnasium MuJoCo environment as arrays.

The integration state (time, qpos, qvel, ...) is not enough: Ant and Humanoid compute rewards from body positions of the
previous step, which MuJoCo keeps in its other buffers. The whole `MjData` is therefore saved.
"""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium as gym
import numpy as np

from weightclip.lab.checkpoint import Arrays, checksum, from_array, to_array

FORMAT = 2
"""Version of the format of the arrays."""

_CONTENT, _CHECKSUM = ("version", "data", "generator", "elapsed"), "checksum"
"""Names of the arrays of a state that the checksum covers, and its own name."""

_MODULE = "gymnasium.envs.mujoco."
_WRAPPERS = (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, gym.wrappers.FlattenObservation)
"""Wrappers without state between two steps of an episode."""


def has_state(environment: gym.Env[Any, Any]) -> bool:
    """Whether `state` contains everything that determines the next steps of the environment."""
    return type(environment.unwrapped).__module__.startswith(_MODULE) and all(
        isinstance(wrapper, (*_WRAPPERS, gym.wrappers.TimeLimit)) for wrapper in _wrappers(environment)
    )


def state(environment: gym.Env[Any, Any]) -> Arrays:
    """The state of an environment after a reset or a step: its MjData (about 0.7 MB), generator and time limit."""
    unwrapped: Any = environment.unwrapped
    found = {
        "version": np.array(_version(unwrapped.model)),
        "data": np.frombuffer(unwrapped.data.__getstate__(), np.uint8),
        "generator": to_array(unwrapped.np_random),
        "elapsed": np.array([one._elapsed_steps for one in time_limits(environment)], np.int64),
    }
    return {**found, _CHECKSUM: checksum(found)}


def load_state(environment: gym.Env[Any, Any], state: Arrays) -> None:
    """Restore a `state`. A ValueError names a damaged state, or one of another version or model.

    The checksum protects MuJoCo's own code from damaged bytes. States of earlier versions do not have one.
    """
    import mujoco  # type: ignore[import-untyped]

    unwrapped: Any = environment.unwrapped
    expected = _version(unwrapped.model)
    if str(state["version"]) != expected:
        raise ValueError(f"environment: got a state of {state['version']}, expected {expected}")
    if _CHECKSUM in state and not np.array_equal(state[_CHECKSUM], checksum({name: state[name] for name in _CONTENT})):
        raise ValueError("environment: the state is damaged")
    environment.reset()  # OrderEnforcing requires a reset before the first step
    saved = mujoco.MjData.__new__(mujoco.MjData)
    try:
        saved.__setstate__(state["data"].tobytes())
        mujoco.mj_copyData(unwrapped.data, unwrapped.model, saved)
    except (mujoco.FatalError, RuntimeError) as error:
        raise ValueError(f"environment: MuJoCo cannot read its state: {error}") from error
    from_array(unwrapped.np_random, state["generator"])
    for wrapper, steps in zip(time_limits(environment), state["elapsed"].tolist(), strict=True):
        wrapper._elapsed_steps = steps


def _wrappers(environment: gym.Env[Any, Any]) -> list[Any]:
    found = []
    while isinstance(environment, gym.Wrapper):
        found.append(environment)
        environment = environment.env
    return found


def time_limits(environment: gym.Env[Any, Any]) -> list[Any]:
    """The time limits among the wrappers of an environment."""
    return [one for one in _wrappers(environment) if isinstance(one, gym.wrappers.TimeLimit)]


def _version(model: Any) -> str:
    """The versions of the format, of MuJoCo, and of the compiled model, which a new version of Gymnasium may change."""
    import mujoco

    content = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    return f"format {FORMAT}, mujoco {mujoco.__version__}, model {hashlib.sha256(content.tobytes()).hexdigest()[:12]}"
