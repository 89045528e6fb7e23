"""The configuration of a PPO run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weightclip._validation import check_count, check_fraction, check_name, check_number, check_truth
from weightclip.lab.config import METHOD, PROBLEM, MethodConfig, check_names, option, packaged_presets, with_settings
from weightclip.lab.methods import OPTIMIZERS, split_method

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


@dataclass(frozen=True)
class Config(MethodConfig):
    """One run. What is None takes the value of the scale, the environment and the method (`resolve`)."""

    how = ("scale",)

    problem: str = field(default=NAME, metadata=option(NAME))
    seed: int = field(default=0, metadata=option("of initial weights, environments, actions and minibatches"))
    env: str = field(default="Ant-v4", metadata=option("id of a Gymnasium environment with Box actions", PROBLEM))
    scale: str = field(
        default="paper", metadata=option("paper, or laptop (shorter, not the paper's; tuned on Hopper-v4)", PROBLEM)
    )
    bounds: str | None = field(
        default=None, metadata=option("of clipping: paper (clips the log-std as well) or fan_in (by layer)", METHOD)
    )
    steps: int | None = field(default=None, metadata=option("total environment steps", PROBLEM))
    anneal: bool | None = field(default=None, metadata=option("anneal the step size linearly to 0"))
    epochs: int | None = field(default=None, metadata=option("update epochs per rollout"))
    rollout: int = field(default=2048, metadata=option("steps per rollout"))
    minibatches: int = field(default=32, metadata=option("minibatches per epoch"))
    gamma: float = field(default=0.99, metadata=option("discount factor"))
    lam: float = field(default=0.95, metadata=option("lambda of generalized advantage estimation"))
    clip: float = field(default=0.2, metadata=option("clipping coefficient of the probability ratio"))
    clip_values: bool = field(default=True, metadata=option("clip the value loss"))
    normalise_advantages: bool = field(default=True, metadata=option("normalise advantages in each minibatch"))
    value_weight: float = field(default=0.5, metadata=option("coefficient of the value loss"))
    entropy_weight: float = field(default=0.0, metadata=option("coefficient of the entropy bonus"))
    gradient_norm: float = field(default=0.5, metadata=option("maximum norm of the gradient"))
    hidden: tuple[int, ...] = field(default=(64, 64), metadata=option("units of each hidden layer"))
    bootstrap: bool = field(default=False, metadata=option("bootstrap the value at the end of truncated episodes"))

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
    table = tables[check_name("scale", scale, SCALES)]
    own = table.get("environments", {}).get(env, {})
    usual = {**tables["paper"]["best"], **table["best"]}
    best = {method: {**settings, **own.get(method, {})} for method, settings in usual.items()}
    return {"grid": table["grid"], "best": {NAME: best}}


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    check_names(config, ("problem", "env", "method", "scale"))
    check_name("problem", config.problem, (NAME,))
    size = packaged_presets(__package__)[check_name("scale", config.scale, SCALES)]["size"]
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
        check_fraction(name, getattr(config, name))
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
