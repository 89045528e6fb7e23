"""Methods: an optimizer and the remedies on top of it, written `optimizer+remedy+...`, and the paper's settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from weightclip._validation import check_finite, check_name, check_number
from weightclip.lab.config import packaged_presets
from weightclip.lab.experiments.streaming.rules import (
    OPTIMIZERS,
    ORIGINAL,
    PAPER,
    Rule,
    find_optimizer,
    find_remedy,
    is_built_in,
    location,
)

PAPER_METHODS = ("sgd", "adam", "sgd+l2init", "adam+l2init", "sgd+sp", "adam+sp", "sgd+wc", "adam+wc", "madam")
"""The nine methods of the paper's figures."""

NOTHING: Mapping[str, Rule] = MappingProxyType({})


@dataclass(frozen=True)
class Method:
    """An optimizer's rule and those of its remedies, in the order in which they act."""

    name: str
    optimizer: Rule
    remedies: tuple[Rule, ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (self.optimizer, *self.remedies)

    @property
    def own_rules(self) -> tuple[Rule, ...]:
        """Those that are not of this package."""
        return tuple(rule for rule in self.rules if not is_built_in(rule))

    @property
    def settings(self) -> dict[str, float | None]:
        """Setting -> the default in the rules, or None where the problem's presets decide."""
        found: dict[str, float | None] = {}
        for rule in self.rules:
            for name, default in rule.settings.items():
                found[name] = default if found.get(name) is None else found[name]
        return found


def parse_method(name: str, variant: str = PAPER, own: Mapping[str, Rule] = NOTHING) -> Method:
    """`adam+l2init+wc` -> its rules. Clipping acts last wherever it stands in the name."""
    check_name("variant", variant, (PAPER, ORIGINAL))
    first, *rest = name.split("+")
    optimizer = find_optimizer(first, own)
    for part in rest:
        if rest.count(part) > 1:
            raise ValueError(f"method: got {name!r}, expected each remedy once")
    remedies = sorted((find_remedy(part, variant, own) for part in rest), key=lambda rule: rule.name == "wc")
    for setting in ("decay", "kappa"):
        users = [rule.name for rule in (optimizer, *remedies) if setting in rule.settings]
        if len(users) > 1:
            raise ValueError(f"method: got {name!r}, expected one part with a {setting}, not {' and '.join(users)}")
    if len({rule.snapshot for rule in (optimizer, *remedies) if rule.reads("w0")}) > 1:
        raise ValueError(f"method: got {name!r}, expected parts that take w0 at the same time")
    return Method(name, optimizer, tuple(remedies))


def presets() -> dict[str, Any]:
    """The paper's tables 1 (`grid`) and 2 (`best`)."""
    return packaged_presets(__package__)


def default_settings(method: Method, problem: str) -> dict[str, float | None]:
    """A method's settings on a problem of table 2: the table's; None for what nobody has set.

    A combination that the table does not have takes the settings of its parts (`adam+l2init` and `adam+wc` for
    `adam+l2init+wc`), and the smallest of their step sizes. `l2` takes the decay of `l2init`.
    """
    best = presets()["best"][problem]
    found = dict(method.settings)
    base = method.optimizer.name
    parts = [base, *(f"{base}+{'l2init' if rule.name == 'l2' else rule.name}" for rule in method.remedies)]
    rows = [best[method.name]] if method.name in best else [best[part] for part in parts if part in best]
    for row in rows:
        for setting, value in row.items():
            if setting == "lr" and len(rows) > 1:
                value = min(other["lr"] for other in rows)
            if setting in found:
                found[setting] = value
    return found


def check_settings(method: Method, settings: Mapping[str, float | None]) -> dict[str, float]:
    """The settings as numbers; a ValueError for one that is missing, unknown or out of range."""
    checked = {}
    for name, value in settings.items():
        if name not in method.settings:
            known = ", ".join(method.settings)
            raise ValueError(f"{name}: got {value!r}, but {method.name} has no such setting; it has {known}")
        if value is None:
            raise ValueError(f"{name}: {method.name} has no default for it here; give one{_about_states(method, name)}")
        checked[name] = _check_setting(name, value, built_in=method.optimizer.name in OPTIMIZERS)
    return checked


def _about_states(method: Method, name: str) -> str:
    """For a rule of one's own, whose argument may have been meant as a state."""
    for rule in method.own_rules:
        for function in rule.functions:
            if name in inspect.signature(function).parameters and name not in ("lr", "kappa", "decay", "sigma"):
                states = ", ".join(rule.state) or "none"
                return f", or add it to the states of rule {rule.name} ({location(function)}; its states: {states})"
    return ""


def _check_setting(name: str, value: object, *, built_in: bool) -> float:
    """By its name: what rules of one's own call otherwise, or beta, may be any finite number."""
    if name in ("lr", "decay", "sigma") or (built_in and name == "eps"):
        return check_number(name, value, zero=True)
    if name == "kappa" or (built_in and name == "max_update"):
        return check_number(name, value, infinite=True)
    if built_in and name in ("beta", "beta1", "beta2") and check_number(name, value, zero=True) >= 1:
        raise ValueError(f"{name}: got {value!r}, expected a number below 1")
    return check_finite(name, value)
