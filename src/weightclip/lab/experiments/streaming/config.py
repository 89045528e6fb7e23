"""The configuration of a streaming run: fields, defaults and checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from weightclip.lab.config import (
    METHOD,
    OUTPUT,
    PROBLEM,
    Help,
    MethodConfig,
    check_fields,
    fill,
    paper_tables,
    resolve_method,
    resolver,
)
from weightclip.lab.constraints import AtLeast, FilePath, OneOf
from weightclip.lab.experiments.streaming.problem import find_problem
from weightclip.lab.experiments.streaming.rules import (
    ORIGINAL,
    PAPER,
    Rule,
    external_rules,
    load_rules,
    parse_rules,
    plugged_rules,
    rule_components,
    state_hint,
)
from weightclip.lab.methods import Components, Method
from weightclip.lab.networks import ACTIVATIONS

if TYPE_CHECKING:
    from torch import nn

NAME = "streaming"
"""Name of the experiment, in records and entry points."""

PAPER_METHODS = ("sgd", "adam", "sgd+l2init", "adam+l2init", "sgd+sp", "adam+sp", "sgd+wc", "adam+wc", "madam")
"""The nine methods of the paper's figures."""


@dataclass(frozen=True)
class Config(MethodConfig):
    """The configuration of one run. `resolve` replaces None by the paper's value for the problem and the method."""

    experiment = NAME

    steps: Annotated[int, AtLeast(1), Help("total samples", PROBLEM)] = 1_000_000
    period: Annotated[int | None, AtLeast(1), Help("samples per task", PROBLEM)] = None
    hidden: Annotated[tuple[int, ...], AtLeast(1), Help("units of each hidden layer")] = (300, 150)
    activation: Annotated[str, OneOf(*ACTIVATIONS), Help("activation of the hidden layers")] = "leaky_relu"
    outputs: Annotated[int | None, AtLeast(1), Help("outputs of the network (default: the number of classes)")] = None
    variant: Annotated[
        str,
        OneOf(PAPER, ORIGINAL),
        Help(f"l2init and sp as in the paper, or {ORIGINAL} (as in their original papers)", METHOD),
    ] = PAPER
    backend: Annotated[str, OneOf("fused", "reference"), Help("fused (compiled) or reference (plain PyTorch)")] = (
        "fused"
    )
    dtype: Annotated[str, OneOf("float32", "float64"), Help("floating-point type")] = "float32"
    diagnostics: Annotated[bool, Help("record more metrics than accuracy and loss", OUTPUT)] = True
    rules: Annotated[str | None, FilePath(), Help("Python file with your own update rules", METHOD, "FILE")] = None

    def components(self) -> Components[Rule]:
        user_rules: Mapping[str, Rule] = {} if self.rules is None else load_rules(self.rules)
        return rule_components(self.variant, {**plugged_rules(), **user_rules})

    def parsed_method(self) -> Method[Rule]:
        return parse_rules(self.method, self.components())

    def missing_setting_hint(self, method: Method[Rule], setting: str) -> str:
        return state_hint(method, setting)

    def small_network(self) -> tuple[nn.Module, str]:
        from weightclip.lab.networks.mlp import mlp

        return mlp(1, [1] * len(self.hidden), 1), "fan_in"


def presets() -> dict[str, Any]:
    """The paper's tables 1 (`grid`) and 2 (`best`)."""
    return paper_tables(__package__)


@resolver
def resolve(config: Config) -> Config:
    """Check a configuration and fill in every field but `outputs`, which depends on the data."""
    config = check_fields(config)
    problem = find_problem(config.problem)
    config = resolve_method(fill(config, {"period": problem.period}), presets()["best"][problem.settings_of])
    largest = float(np.finfo(config.dtype).max)
    for name, setting in config.all_settings().items():
        if largest < abs(setting) < math.inf:
            raise ValueError(f"{name}: got {setting!r}, expected at most {largest:.3g}, the largest {config.dtype}")
    external = external_rules(config.parsed_method())
    if config.backend == "reference" and external:
        names = ", ".join(rule.name for rule in external)
        raise ValueError(f"method: got {names}, but the reference backend has only built-in rules; use backend 'fused'")
    return config


def check_outputs(config: Config, classes: int, dataset: str) -> int:
    """The number of outputs of the network. Raise a ValueError if the data has more classes."""
    outputs = classes if config.outputs is None else config.outputs
    if outputs < classes:
        raise ValueError(f"outputs: got {outputs}, expected at least the {classes} classes of {dataset}")
    return outputs
