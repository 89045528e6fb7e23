"""The configuration of a streaming run: what a user may set, the defaults, and the checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from weightclip.checks import check_choice, check_count
from weightclip.lab.streaming.methods import Method, check_settings, default_settings, parse_method
from weightclip.lab.streaming.problem import find_problem
from weightclip.lab.streaming.rules import ORIGINAL, PAPER, Rule, load_rules

ACTIVATIONS = ("leaky_relu", "relu", "tanh")
BACKENDS = ("fused", "reference")
DTYPES = ("float32", "float64")
NAMED = ("lr", "kappa", "decay", "sigma")
"""Settings with a field of their own; other ones (a rule's `beta`, ...) go into `settings`."""


def _help(text: str, metavar: str | None = None) -> dict[str, str]:
    return {"help": text} if metavar is None else {"help": text, "metavar": metavar}


@dataclass(frozen=True)
class Config:
    """One run. What is None takes the paper's value for the problem and the method (`resolve`)."""

    problem: str = field(metadata=_help("the problem, for example input-permuted-mnist"))
    method: str = field(default="adam+wc", metadata=_help("optimizer+remedy+..., for example sgd, adam+wc, adam+sp"))
    lr: float | None = field(default=None, metadata=_help("step size"))
    kappa: float | None = field(default=None, metadata=_help("half-width of the box in units of s_l (wc, madam)"))
    decay: float | None = field(default=None, metadata=_help("lambda of l2, l2init and sp"))
    sigma: float | None = field(default=None, metadata=_help("standard deviation of sp's noise"))
    settings: Mapping[str, float] = field(default_factory=dict, metadata=_help("other settings of the method's rules"))
    seed: int = field(default=0, metadata=_help("fixes initial weights, order, permutations and noise"))
    steps: int = field(default=1_000_000, metadata=_help("samples in all"))
    period: int | None = field(default=None, metadata=_help("samples in a task"))
    hidden: tuple[int, ...] = field(default=(300, 150), metadata=_help("units in each hidden layer"))
    activation: str = field(default="leaky_relu", metadata=_help(f"one of {', '.join(ACTIVATIONS)}"))
    outputs: int | None = field(default=None, metadata=_help("outputs of the network; default: the classes"))
    variant: str = field(default=PAPER, metadata=_help(f"of l2init and sp: {PAPER}, or {ORIGINAL} (their authors')"))
    backend: str = field(default="fused", metadata=_help("fused (compiled) or reference (plain PyTorch)"))
    dtype: str = field(default="float32", metadata=_help("float32 or float64"))
    diagnostics: bool = field(default=True, metadata=_help("measure more than accuracy and loss"))
    rules: str | None = field(default=None, metadata=_help("with update rules of your own, in Python", "FILE"))

    def own_rules(self) -> dict[str, Rule]:
        return {} if self.rules is None else load_rules(self.rules)

    def parsed_method(self) -> Method:
        return parse_method(self.method, self.variant, self.own_rules())

    def all_settings(self) -> dict[str, float]:
        """Every setting of the method by name; of a resolved configuration."""
        named = {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}
        return {**named, **self.settings}

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def resolve(config: Config) -> Config:
    """The same configuration, checked, with nothing left open but `outputs`, which the data decide."""
    problem = find_problem(config.problem)
    method = config.parsed_method()
    settings = {**default_settings(method, problem.settings_of), **config.all_settings()}
    checked = check_settings(method, settings)
    for name in ("steps", "period", "outputs"):
        value = getattr(config, name)
        if value is not None:
            check_count(name, value)
    if isinstance(config.seed, bool) or not isinstance(config.seed, int) or not 0 <= config.seed < 2**63:
        raise ValueError(f"seed: got {config.seed!r}, expected a whole number from 0 to 2**63 - 1")
    for units in config.hidden:
        check_count("hidden", units)
    check_choice("activation", config.activation, ACTIVATIONS)
    check_choice("backend", config.backend, BACKENDS)
    check_choice("dtype", config.dtype, DTYPES)
    largest = float(np.finfo(config.dtype).max)
    for name, setting in checked.items():
        if largest < abs(setting) < math.inf:
            raise ValueError(f"{name}: got {setting!r}, expected at most {largest:.3g}, the largest {config.dtype}")
    if config.backend == "reference" and config.own_rules():
        raise ValueError("rules: got a file, but the reference back end runs PyTorch optimizers; use backend 'fused'")
    return replace(
        config,
        lr=checked.pop("lr", None),
        kappa=checked.pop("kappa", None),
        decay=checked.pop("decay", None),
        sigma=checked.pop("sigma", None),
        settings=checked,
        period=problem.period if config.period is None else config.period,
        hidden=tuple(config.hidden),
    )
