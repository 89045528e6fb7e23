"""The configuration of a PPO run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from weightclip.checks import check_choice, check_count, check_name, check_number, check_seed
from weightclip.lab.methods import (
    check_other_settings,
    choose_settings,
    named_settings,
    optimizer_settings,
    split_method,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "policy-collapse"
"""Of the experiment, and of its one problem."""

METHODS = ("adam", "adam+wc")
"""Those of the paper."""

EQUAL_BETAS = "adam-equal-betas"
"""Adam with beta2 = beta1, which Dohare et al. (2023b) recommend against policy collapse."""

ENVIRONMENTS = ("Ant-v4", "Walker2d-v4", "Humanoid-v4", "HumanoidStandup-v4")
"""Those of the paper."""

LOCKSTEP = 8
"""So many seeds train together; more gain little."""

BOUNDS = ("paper", "default")
SCALES = ("paper", "laptop")
NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with a field of their own; other ones (Adam's `beta2`, ...) go into `settings`."""

HOW = ("scale",)
"""Fields that stand for others; the run's numbers are not theirs."""

COUNTS = ("steps", "epochs", "rollout", "minibatches")
SHARES = ("gamma", "lam")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class Config:
    """One run. What is None takes the value of the scale, the environment and the method (`resolve`)."""

    problem: str = field(default=NAME, metadata=_help(NAME))
    env: str = field(default="Ant-v4", metadata=_help("an id of Gymnasium with a Box of actions"))
    method: str = field(
        default="adam+wc", metadata=_help("optimizer+remedy+..., for example adam, adam+wc, adam+l2init")
    )
    scale: str = field(default="paper", metadata=_help("paper, or laptop (not the paper's setting)"))
    bounds: str = field(default="paper", metadata=_help("of clipping: paper (log-std too), or default (layers alone)"))
    lr: float | None = field(default=None, metadata=_help("step size"))
    kappa: float | None = field(default=None, metadata=_help("half-width of the box in units of s_l (wc)"))
    decay: float | None = field(default=None, metadata=_help("lambda of l2, l2init and sp"))
    sigma: float | None = field(default=None, metadata=_help("standard deviation of sp's noise"))
    settings: Mapping[str, float] = field(
        default_factory=dict, metadata=_help("other arguments of the optimizer, for example beta2=0.9")
    )
    seed: int = field(default=0, metadata=_help("fixes initial weights, environments, actions and minibatches"))
    steps: int | None = field(default=None, metadata=_help("of the environment, in all"))
    anneal: bool | None = field(default=None, metadata=_help("let the step size fall to 0 over the run"))
    epochs: int | None = field(default=None, metadata=_help("passes over each rollout"))
    rollout: int = field(default=2048, metadata=_help("steps between updates"))
    minibatches: int = field(default=32, metadata=_help("in each pass"))
    gamma: float = field(default=0.99, metadata=_help("discount"))
    lam: float = field(default=0.95, metadata=_help("lambda of the advantage estimates"))
    clip: float = field(default=0.2, metadata=_help("of the probability ratio"))
    clip_values: bool = field(default=True, metadata=_help("clip the value loss, too"))
    normalise_advantages: bool = field(default=True, metadata=_help("in each minibatch"))
    value_weight: float = field(default=0.5, metadata=_help("of the value loss"))
    entropy_weight: float = field(default=0.0, metadata=_help("of the entropy"))
    gradient_norm: float = field(default=0.5, metadata=_help("the largest allowed"))
    hidden: tuple[int, ...] = field(default=(64, 64), metadata=_help("units in each hidden layer"))
    bootstrap: bool = field(default=False, metadata=_help("truncated episodes: add the value of the final observation"))

    def parts(self) -> tuple[str, tuple[str, ...]]:
        """The optimizer and the remedies."""
        return method_parts(self.method)

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method by name; of a resolved configuration."""
        named = {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}
        return {**named, **self.settings}

    def facts(self) -> dict[str, Any]:
        """What the run's numbers depend on."""
        return {**{k: v for k, v in asdict(self).items() if k not in HOW}, "hidden": list(self.hidden)}

    @property
    def iterations(self) -> int:
        """Rollouts and updates; of a resolved configuration."""
        return check_count("steps", self.steps) // self.rollout

    def step_size(self, iteration: int) -> float:
        """In iteration 0, 1, ...; of a resolved configuration."""
        left = 1.0 - iteration / self.iterations if self.anneal else 1.0
        return left * check_number("lr", self.lr, zero=True)


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "presets.toml").read_text())


def presets(env: str = "", scale: str = "paper") -> dict[str, Any]:
    """The settings searched (`grid`) and found best (`best`), in an environment at a scale."""
    table = _tables()[check_choice("scale", scale, SCALES)]
    own = table.get(env, {})
    best = {method: {**settings, **own.get(method, {})} for method, settings in table["best"].items()}
    return {"grid": table["grid"], "best": {NAME: best}}


def method_parts(method: str) -> tuple[str, tuple[str, ...]]:
    """The optimizer and the remedies of a method."""
    return split_method(re.sub(rf"^{EQUAL_BETAS}(?=\+|$)", "adam", method))


def method_settings(method: str) -> tuple[str, ...]:
    """The settings of a method that have a field of their own."""
    return named_settings(*method_parts(method), NAMED)


def other_settings(method: str) -> tuple[str, ...]:
    """The other arguments of a method's optimizer."""
    names = optimizer_settings(method_parts(method)[0])
    betas = ("beta1", "beta2") if "betas" in names else ()
    return (*betas, *(name for name in names if name not in ("betas", *NAMED)))


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open."""
    for name in ("problem", "env", "method", "scale", "bounds"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a name")
    check_choice("problem", config.problem, (NAME,))
    check_choice("bounds", config.bounds, BOUNDS)
    size = _tables()[check_choice("scale", config.scale, SCALES)]["size"]
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
        if check_number(name, getattr(config, name), zero=True) > 1:
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a number from 0 to 1")
    for name in ("clip", "gradient_norm"):
        check_number(name, getattr(config, name), infinite=True)
    for name in ("value_weight", "entropy_weight"):
        check_number(name, getattr(config, name), zero=True)
    hidden = tuple(check_count("hidden", units) for units in config.hidden)
    return replace(config, **counts, **_settings(config), hidden=hidden, seed=check_seed(config.seed))


def _settings(config: Config) -> dict[str, Any]:
    """The method's settings: given, or those of the presets, a combination's from its parts."""
    optimizer, remedies = config.parts()
    best = presets(config.env, config.scale)["best"][NAME]
    parts = (optimizer, *(f"{optimizer}+{remedy}" for remedy in remedies), config.method)
    tables = [best.get(part, {}) for part in parts]
    given = {name: getattr(config, name) for name in NAMED if getattr(config, name) is not None}
    found = choose_settings(config.method, method_settings(config.method), tables, given)
    others = {name: value for table in tables for name, value in table.get("settings", {}).items()}
    others |= check_other_settings(config.settings, [one.name for one in fields(Config)])
    for name in others:
        check_name("settings", name, other_settings(config.method))
    if config.method.startswith(EQUAL_BETAS):
        others.setdefault("beta1", 0.9)
        if others.setdefault("beta2", others["beta1"]) != others["beta1"]:
            raise ValueError(f"settings: got beta2={others['beta2']:g}, but with {config.method} it is beta1")
    return {**{name: found.get(name) for name in NAMED}, "settings": others}
