"""A toy environment: actions push a point, and an episode terminates when it leaves the table."""

from typing import Any

import gymnasium as gym
import numpy as np

from weightclip.lab.experiments.ppo.config import Config, resolve
from weightclip.lab.experiments.ppo.experiment import EXPERIMENT
from weightclip.lab.records.store import relative_path

NAME = "WeightclipToy-v0"
LIMIT = 25
EDGE = 1.5


class Toy(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.at = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-0.5, 0.5, 2)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.asarray(action, np.float32))
        self.at = self.at + 0.2 * np.asarray(action, np.float64) + self.np_random.normal(0, 0.05, 2)
        return self._seen(), 1.0 - float(np.abs(self.at).sum()), bool(np.abs(self.at).max() > EDGE), False, {}

    def render(self) -> Any:
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[tuple(np.clip(8 + 4 * self.at, 0, 15).astype(int))] = 255
        return picture

    def _seen(self) -> Any:
        return np.append(self.at, self.at.sum())


gym.register(NAME, Toy, max_episode_steps=LIMIT)


def config(method: str = "adam+wc", seed: int = 0, **more: Any) -> Config:
    """Create the configuration of a small, short run."""
    given = {
        "env": NAME,
        "num_steps": 64,
        "num_minibatches": 4,
        "update_epochs": 2,
        "steps": 4 * 64,
        "hidden": (8, 8),
        **more,
    }
    return resolve(Config(method=method, seed=seed, **given))


def path_of(one: Config) -> str:
    return relative_path(EXPERIMENT.schema, one)


def identify(one: Config) -> str:
    return EXPERIMENT.identify(one, None)
