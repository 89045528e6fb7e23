"""The configuration of a PPO run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weightclip.checks import check_choice, check_count, check_name, check_number, check_share, check_truth
from weightclip.lab.method_config import MethodConfig, check_names, helped, usual_in, with_settings
from weightclip.lab.methods import OPTIMIZERS, split_method
from weightclip.lab.toml import packaged_presets

NAME = "policy-collapse"
"""Of the experiment, and of its one problem."""

METHODS = ("adam", "adam+wc")
"""Those of the paper."""

EQUAL_BETAS = "adam-equal-betas"
"""Adam with beta2 = beta1, which Dohare et al. (2023b) recommend against policy collapse."""

EQUAL_BETA = 0.99
"""Both, in their public configurations (shibhansh/loss-of-plasticity, lop/rl/cfg/ant/ns.yml)."""

ENVIRONMENTS = ("Ant-v4", "Walker2d-v4", "Humanoid-v4", "HumanoidStandup-v4")
"""Those of the paper."""

FIGURE_7 = ENVIRONMENTS[1:3]
"""Those of the paper's figure 7."""

LOCKSTEP = 8
"""So many seeds train together; more gain little."""

SCALES = ("paper", "laptop")
COUNTS = ("steps", "epochs", "rollout", "minibatches")
SHARES = ("gamma", "lam")

_usual = usual_in(__package__, "size", SCALES)


@dataclass(frozen=True)
class Config(MethodConfig):
    """One run. What is None takes the value of the scale, the environment and the method (`resolve`)."""

    how = ("scale",)

    problem: str = field(default=NAME, metadata=helped(NAME))
    seed: int = field(default=0, metadata=helped("fixes initial weights, environments, actions and minibatches"))
    env: str = field(default="Ant-v4", metadata=helped("an id of Gymnasium with a Box of actions"))
    scale: str = field(default="paper", metadata=helped("paper, or laptop (not the paper's; found on Hopper-v4)"))
    bounds: str | None = field(default=None, metadata=helped("of clipping: paper (log-std, too; default), or fan_in"))
    steps: int | None = field(default=None, metadata=helped("of the environment, in all", _usual("steps")))
    anneal: bool | None = field(default=None, metadata=helped("let the step size fall to 0", _usual("anneal")))
    epochs: int | None = field(default=None, metadata=helped("passes over each rollout", _usual("epochs")))
    rollout: int = field(default=2048, metadata=helped("steps between updates"))
    minibatches: int = field(default=32, metadata=helped("in each pass"))
    gamma: float = field(default=0.99, metadata=helped("discount"))
    lam: float = field(default=0.95, metadata=helped("lambda of the advantage estimates"))
    clip: float = field(default=0.2, metadata=helped("of the probability ratio"))
    clip_values: bool = field(default=True, metadata=helped("clip the value loss, too"))
    normalise_advantages: bool = field(default=True, metadata=helped("in each minibatch"))
    value_weight: float = field(default=0.5, metadata=helped("of the value loss"))
    entropy_weight: float = field(default=0.0, metadata=helped("of the entropy"))
    gradient_norm: float = field(default=0.5, metadata=helped("the largest allowed"))
    hidden: tuple[int, ...] = field(default=(64, 64), metadata=helped("units in each hidden layer"))
    bootstrap: bool = field(default=False, metadata=helped("of truncated episodes: add the value of their end"))

    @classmethod
    def split(cls, method: str) -> tuple[str, tuple[str, ...]]:
        check_name("method", method.partition("+")[0], sorted((*OPTIMIZERS, EQUAL_BETAS)))
        return split_method(re.sub(rf"^{EQUAL_BETAS}(?=\+|$)", "adam", method))

    @property
    def iterations(self) -> int:
        """Rollouts and updates; of a resolved configuration."""
        assert self.steps is not None
        return self.steps // self.rollout

    @property
    def passes(self) -> int:
        """Over each rollout: the epochs of a resolved configuration."""
        assert self.epochs is not None
        return self.epochs

    def step_size(self, iteration: int) -> float:
        """In iteration 0, 1, ...; of a resolved configuration."""
        assert self.lr is not None
        return self.lr * (1.0 - iteration / self.iterations if self.anneal else 1.0)


def presets(env: str = "", scale: str = "paper") -> dict[str, Any]:
    """The settings searched (`grid`) and found best (`best`), in an environment at a scale."""
    tables = packaged_presets(__package__)
    table = tables[check_choice("scale", scale, SCALES)]
    own = table.get("environments", {}).get(env, {})
    usual = {**tables["paper"]["best"], **table["best"]}
    best = {method: {**settings, **own.get(method, {})} for method, settings in usual.items()}
    return {"grid": table["grid"], "best": {NAME: best}}


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    check_names(config, ("problem", "env", "method", "scale"))
    check_choice("problem", config.problem, (NAME,))
    size = packaged_presets(__package__)[check_choice("scale", config.scale, SCALES)]["size"]
    config = replace(config, **{name: value for name, value in size.items() if getattr(config, name) is None})
    counts: dict[str, Any] = {name: check_count(name, getattr(config, name)) for name in COUNTS}
    if counts["steps"] < counts["rollout"]:
        raise ValueError(f"steps: got {config.steps}, expected at least the {config.rollout} of a rollout")
    if counts["rollout"] % counts["minibatches"] or counts["rollout"] == counts["minibatches"]:
        raise ValueError(
            f"minibatches: got {config.minibatches}, expected a divisor of the rollout's {config.rollout} steps, "
            "with 2 steps or more in each"
        )
    for name in SHARES:
        check_share(name, getattr(config, name))
    for name in ("clip", "gradient_norm"):
        check_number(name, getattr(config, name), infinite=True)
    for name in ("value_weight", "entropy_weight"):
        check_number(name, getattr(config, name), zero=True)
    for name in ("anneal", "clip_values", "normalise_advantages", "bootstrap"):
        check_truth(name, getattr(config, name))
    if not isinstance(config.hidden, Sequence):
        raise ValueError(f"hidden: got {config.hidden!r}, expected the units of each layer, such as (64, 64)")
    hidden = tuple(check_count("hidden", units) for units in config.hidden)
    config = with_settings(config, presets(config.env, config.scale)["best"][NAME])
    bounds = config.checked_bounds(config.bounds, "paper")
    return replace(config, **counts, hidden=hidden, bounds=bounds, settings=_with_equal_betas(config))


def _with_equal_betas(config: Config) -> dict[str, float]:
    settings = dict(config.settings)
    if config.method.startswith(EQUAL_BETAS):
        betas = {settings[name] for name in ("beta1", "beta2") if name in settings} or {EQUAL_BETA}
        if len(betas) > 1:
            both = f"beta1={settings['beta1']:g} and beta2={settings['beta2']:g}"
            raise ValueError(f"settings: got {both}, but with {config.method} they are equal")
        settings["beta1"] = settings["beta2"] = betas.pop()
    return settings
