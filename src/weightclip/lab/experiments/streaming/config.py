"""The configuration of a streaming run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from weightclip._validation import check_count, check_name, check_seed
from weightclip.lab.config import METHOD, OUTPUT, PROBLEM, Ranged, kappa_option, option, split_kappa
from weightclip.lab.experiments.streaming.methods import Method, check_settings, default_settings, parse_method
from weightclip.lab.experiments.streaming.problem import find_problem
from weightclip.lab.experiments.streaming.rules import ORIGINAL, PAPER, load_rules, plugged_rules
from weightclip.lab.networks import ACTIVATIONS

NAME = "streaming"
"""Of the experiment, in records and entry points."""

BACKENDS = ("fused", "reference")
DTYPES = ("float32", "float64")
NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with a field of their own; other ones (a rule's `beta`, ...) go into `settings`."""


@dataclass(frozen=True)
class Config(Ranged):
    """One run. What is None takes the paper's value for the problem and the method (`resolve`)."""

    problem: str = field(metadata=option("the problem, for example input-permuted-mnist"))
    method: str = field(
        default="adam+wc", metadata=option("optimizer+regularizer+..., for example sgd, adam+wc, adam+sp", METHOD)
    )
    lr: float | None = field(default=None, metadata=option("step size", METHOD))
    kappa: float | None = field(default=None, metadata=kappa_option("wc, madam"))
    kappa_rule: str | None = field(default=None, metadata=option("the rule of ranges, where kappa is not a number"))
    decay: float | None = field(default=None, metadata=option("lambda of l2, l2init and sp", METHOD))
    sigma: float | None = field(default=None, metadata=option("standard deviation of the noise of sp", METHOD))
    settings: Mapping[str, float] = field(
        default_factory=dict, metadata=option("other settings of the update rules, for example beta1=0.95", METHOD)
    )
    seed: int = field(default=0, metadata=option("of initial weights, sample order, permutations and noise"))
    steps: int = field(default=1_000_000, metadata=option("total samples", PROBLEM))
    period: int | None = field(default=None, metadata=option("samples per task", PROBLEM))
    hidden: tuple[int, ...] = field(default=(300, 150), metadata=option("units of each hidden layer"))
    activation: str = field(default="leaky_relu", metadata=option(f"one of {', '.join(ACTIVATIONS)}"))
    outputs: int | None = field(default=None, metadata=option("outputs of the network (default: the classes)"))
    variant: str = field(
        default=PAPER, metadata=option(f"of l2init and sp: {PAPER}, or {ORIGINAL} (their authors')", METHOD)
    )
    backend: str = field(default="fused", metadata=option("fused (compiled) or reference (plain PyTorch)"))
    dtype: str = field(default="float32", metadata=option("float32 or float64"))
    diagnostics: bool = field(default=True, metadata=option("record more than accuracy and loss", OUTPUT))
    rules: str | None = field(default=None, metadata=option("Python file with your own update rules", METHOD, "FILE"))

    def parsed_method(self) -> Method:
        own = {} if self.rules is None else load_rules(self.rules)
        return parse_method(self.method, self.variant, {**plugged_rules(), **own})

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method by name; of a resolved configuration."""
        named = {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}
        return {**named, **self.settings}

    def display_settings(self) -> dict[str, Any]:
        """Every setting, with the rule of ranges if there is one."""
        return {**self.all_settings(), "kappa_rule": self.kappa_rule}

    def facts(self) -> dict[str, Any]:
        """All fields as a record holds them; `kappa_rule` only if there is one."""
        found = {name: value for name, value in asdict(self).items() if name != "kappa_rule" or value is not None}
        return {**found, "hidden": list(self.hidden)}


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open but `outputs`, which the data decide."""
    config = _plain(config)
    problem = find_problem(config.problem)
    method = config.parsed_method()
    settings = {**default_settings(method, problem.settings_of), **config.all_settings()}
    if config.kappa_rule is not None:
        if "kappa" not in settings or "kappa" in method.optimizer.settings:
            raise ValueError(f"kappa: got {config.kappa_rule!r}, but {config.method} does not take ranges; wc does")
        settings["kappa"] = 1.0  # the rule has the ranges
    checked = check_settings(method, settings)
    check_name("activation", config.activation, tuple(ACTIVATIONS))
    check_name("backend", config.backend, BACKENDS)
    check_name("dtype", config.dtype, DTYPES)
    kappa = checked.get("kappa")
    largest = float(np.finfo(config.dtype).max)
    for name, setting in checked.items():
        if largest < abs(setting) < math.inf:
            raise ValueError(f"{name}: got {setting!r}, expected at most {largest:.3g}, the largest {config.dtype}")
    if config.backend == "reference" and method.own_rules:
        names = ", ".join(rule.name for rule in method.own_rules)
        raise ValueError(f"method: got {names}, but the reference back end has PyTorch's methods; use backend 'fused'")
    return replace(
        config,
        method="+".join(rule.name for rule in method.rules),  # one name for each method, with wc at its end
        lr=checked.pop("lr", None),
        kappa=None if checked.pop("kappa", None) is None or config.kappa_rule is not None else kappa,
        decay=checked.pop("decay", None),
        sigma=checked.pop("sigma", None),
        settings=checked,
        period=problem.period if config.period is None else config.period,
    )


def check_outputs(config: Config, classes: int, dataset: str) -> int:
    """The number of the network's outputs; a ValueError if the data has more classes."""
    outputs = classes if config.outputs is None else config.outputs
    if outputs < classes:
        raise ValueError(f"outputs: got {outputs}, expected at least the {classes} classes of {dataset}")
    return outputs


def _plain(config: Config) -> Config:
    """Every field as a plain object of its type; a ValueError for what is not of it."""
    for name in ("problem", "method", "activation", "variant", "backend", "dtype"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name}: got {getattr(config, name)!r}, expected a name")
    if not isinstance(config.diagnostics, bool):
        raise ValueError(f"diagnostics: got {config.diagnostics!r}, expected True or False")
    if not isinstance(config.settings, Mapping):
        raise ValueError(f"settings: got {config.settings!r}, expected names and numbers, such as {{'beta1': 0.5}}")
    for name in config.settings:
        if name in NAMED:
            raise ValueError(f"settings: got {name!r}, expected it as an option of its own")
    if not isinstance(config.hidden, Iterable):
        raise ValueError(f"hidden: got {config.hidden!r}, expected the units of each layer, such as (300, 150)")
    kappa, rule = split_kappa(config.kappa, config.kappa_rule)
    return replace(
        config,
        kappa=kappa,
        kappa_rule=rule,
        settings=dict(config.settings),
        seed=check_seed(config.seed),
        steps=check_count("steps", config.steps),
        period=None if config.period is None else check_count("period", config.period),
        hidden=tuple(check_count("hidden", units) for units in config.hidden),
        outputs=None if config.outputs is None else check_count("outputs", config.outputs),
        rules=None if config.rules is None else str(config.rules),
    )
