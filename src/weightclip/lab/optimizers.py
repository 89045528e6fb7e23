"""Building a method: an optimizer of all parameters of a module with its regularizers attached."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._validation import check_name
from weightclip.bounds import Rule
from weightclip.clipping import clip_weights, find_clipper
from weightclip.lab.methods import OPTIMIZERS, own_settings
from weightclip.madam import Madam
from weightclip.regularizers.l2 import l2
from weightclip.regularizers.l2_init import l2_init
from weightclip.regularizers.shrink_and_perturb import shrink_and_perturb

_NOISE = 4
"""Keeps the seed of the noise apart from others made of the same one."""


def noise_seed(seed: int, key: int = _NOISE) -> int:
    """Of Shrink & Perturb's noise in a run with that seed, or with another key of other noise."""
    return int(np.random.SeedSequence([seed, key]).generate_state(1)[0])


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of an optimizer; a ValueError if the installed PyTorch does not have it."""
    class_name, _ = OPTIMIZERS[name]
    found: type[Optimizer] | None = Madam if name == "madam" else getattr(torch.optim, class_name, None)
    if found is None:
        raise ValueError(f"method: got {name!r}, but PyTorch {torch.__version__} has no torch.optim.{class_name}")
    return found


def make_optimizer(
    model: nn.Module,
    optimizer: str,
    remedies: Sequence[str],
    settings: Mapping[str, Any],
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
        settings: those of the remedies (`kappa`, which may be a rule of ranges, `decay`, `sigma`), and any argument of
            the optimizer that is a number, or `beta1` and `beta2` for its betas.
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
            clip_weights(made, model, settings["kappa"], bounds=bounds, track_clipped=statistics)
    return made


def share_at_box(optimizer: Optimizer) -> float:
    """The share of entries at a side of their box, of those in clipped tensors; 0 where nothing is clipped."""
    clipper = find_clipper(optimizer)
    sides = {} if clipper is None else clipper.sides()
    at = sum(int(at_side(tensor, side).sum()) for tensor, side in sides.items())
    return at / max(1, sum(tensor.numel() for tensor in sides))


def at_side(tensor: Tensor, side: float | Tensor) -> Tensor:
    """Which entries lie at a side of the box [-side, side]: bool, of the tensor's shape."""
    at: Tensor = tensor.detach().abs() >= side * (1 - 1e-6)
    return at


def _bare(
    model: nn.Module, optimizer: str, remedies: Sequence[str], settings: Mapping[str, float], fused: bool
) -> Optimizer:
    kind = optimizer_class(optimizer)
    known = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {name: value for name, value in settings.items() if name not in own_settings(remedies)}
    if "betas" in known and {"beta1", "beta2"} & arguments.keys():
        first, second = known["betas"].default
        arguments["betas"] = (arguments.pop("beta1", first), arguments.pop("beta2", second))
    for name in arguments:
        check_name("settings", name, known)
    if fused and "fused" in known:
        arguments["fused"] = True
    try:
        return kind(model.parameters(), **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"method: {optimizer} with {dict(settings)}: {error}") from error
