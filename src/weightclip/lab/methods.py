"""Methods on PyTorch: an optimizer and remedies on top of it, by the names that users write: `sgd+wc`, `adam+sp`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.bounds import Rule
from weightclip.checks import check_name, check_number
from weightclip.clipping import clip_weights, find_clipper
from weightclip.rivals.l2 import l2
from weightclip.rivals.l2_init import l2_init
from weightclip.rivals.madam import Madam
from weightclip.rivals.shrink_and_perturb import shrink_and_perturb

REMEDIES: Mapping[str, tuple[str, ...]] = {
    "l2": ("decay",),
    "l2init": ("decay",),
    "sp": ("decay", "sigma"),
    "wc": ("kappa",),
}
"""Remedy -> its settings."""

_NOISE = 4
"""Keeps the seed of the noise apart from others made of the same one."""


def noise_seed(seed: int, key: int = _NOISE) -> int:
    """Of Shrink & Perturb's noise in a run with that seed, or with another key of other noise."""
    return int(np.random.SeedSequence([seed, key]).generate_state(1)[0])


def optimizers() -> dict[str, type[Optimizer]]:
    """Every optimizer of torch.optim that steps without a closure on dense gradients, and Madam, by lower-case name."""
    found = {name.lower(): one for name, one in vars(torch.optim).items() if _is_optimizer(one)}
    return {**found, "madam": Madam}


def _is_optimizer(one: object) -> bool:
    others = (Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    return isinstance(one, type) and issubclass(one, Optimizer) and one not in others


def split_method(name: str, remedies: Sequence[str] = tuple(REMEDIES)) -> tuple[str, tuple[str, ...]]:
    """`sgd+l2init+wc` -> ("sgd", ("l2init", "wc")); a ValueError for names that nobody knows."""
    optimizer, *parts = name.split("+")
    check_name("method", optimizer, sorted(optimizers()))
    for part in parts:
        check_name("method", part, remedies)
        if parts.count(part) > 1:
            raise ValueError(f"method: got {name!r}, expected each remedy once")
    return optimizer, tuple(parts)


def make_optimizer(
    model: nn.Module,
    optimizer: str,
    remedies: Sequence[str],
    settings: Mapping[str, float],
    *,
    seed: int = 0,
    original: bool = False,
    bounds: Rule = "fan_in",
    statistics: bool = False,
    fused: bool = False,
) -> Optimizer:
    """An optimizer of all parameters with its remedies attached.

    Args:
        model: whose parameters are optimized.
        optimizer: one of `optimizers`.
        remedies: some of `REMEDIES`.
        settings: those of the remedies (`kappa`, `decay`, `sigma`), and any argument of the optimizer that is a
            number, or `beta1` and `beta2` for its betas.
        seed: of Shrink & Perturb's noise.
        original: L2 Init and Shrink & Perturb as their own authors define them, not as run for the paper.
        bounds: of clipping; see `clip_weights`.
        statistics: count the entries that clipping changes.
        fused: all tensors in one kernel, where the optimizer can.
    """
    made = _bare(model, optimizer, remedies, settings, fused)
    for remedy in remedies:
        if remedy == "l2":
            l2(made, settings["decay"])
        elif remedy == "l2init":
            l2_init(made, settings["decay"], variant="kumar" if original else "paper")
        elif remedy == "sp":
            shrink_and_perturb(
                made,
                settings["decay"],
                settings["sigma"],
                seed=noise_seed(seed),
                variant="ash" if original else "paper",
            )
        else:
            clip_weights(made, model, settings["kappa"], bounds=bounds, statistics=statistics)
    return made


def share_at_box(optimizer: Optimizer) -> float:
    """The share of entries at a side of their box, of those in clipped tensors; 0 where nothing is clipped."""
    clipper = find_clipper(optimizer)
    sides = {} if clipper is None else clipper.sides()
    at = sum(int(at_side(tensor, side).sum()) for tensor, side in sides.items())
    return at / max(1, sum(tensor.numel() for tensor in sides))


def at_side(tensor: Tensor, side: float) -> Tensor:
    """Which entries lie at a side of the box [-side, side]: bool, of the tensor's shape."""
    return tensor.detach().abs() >= side * (1 - 1e-6)


def named_settings(optimizer: str, remedies: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that are settings of the optimizer or of one of the remedies."""
    own = {*optimizer_settings(optimizer), *own_settings(remedies)}
    return tuple(name for name in names if name in own)


def choose_settings(
    method: str, names: Sequence[str], tables: Sequence[Mapping[str, float]], given: Mapping[str, float]
) -> dict[str, float]:
    """A method's settings `names`: those given, else those of the last table that has one; checked.

    A ValueError for one that is given but not among them, that nobody has set, or that is out of range.
    """
    known = ", ".join(names)
    for name, value in given.items():
        if name not in names:
            raise ValueError(f"{name}: got {value!r}, but {method} has no such setting; it has {known}")
    found = {name: value for table in (*tables, given) for name, value in table.items() if name in names}
    for name in names:
        if name not in found:
            raise ValueError(f"{name}: {method} has no default for it here; give one")
    return {name: check_number(name, found[name], zero=name != "kappa", infinite=name == "kappa") for name in names}


def check_other_settings(settings: Mapping[str, float], fields: Sequence[str]) -> dict[str, float]:
    """Settings without a field of their own; a ValueError for what is no mapping, or has a field."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"settings: got {settings!r}, expected names and numbers, such as {{'momentum': 0.9}}")
    for name in settings:
        if name in fields:
            raise ValueError(f"settings: got {name!r}, expected it as an option of its own")
    return dict(settings)


def optimizer_settings(optimizer: str) -> list[str]:
    """The arguments of an optimizer besides its parameters."""
    return [name for name in inspect.signature(optimizers()[optimizer]).parameters if name != "params"]


def own_settings(remedies: Sequence[str]) -> list[str]:
    """The settings of the remedies."""
    return list(dict.fromkeys(name for remedy in remedies for name in REMEDIES[remedy]))


def _bare(
    model: nn.Module, optimizer: str, remedies: Sequence[str], settings: Mapping[str, float], fused: bool
) -> Optimizer:
    kind = optimizers()[optimizer]
    known = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {name: value for name, value in settings.items() if name not in own_settings(remedies)}
    if "betas" in known and {"beta1", "beta2"} & arguments.keys():
        first, second = known["betas"].default
        arguments["betas"] = (arguments.pop("beta1", first), arguments.pop("beta2", second))
    for name in arguments:
        check_name("settings", name, optimizer_settings(optimizer))
    if fused and "fused" in known:
        arguments["fused"] = True
    try:
        return kind(model.parameters(), **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"method: {optimizer} with {dict(settings)}: {error}") from error
