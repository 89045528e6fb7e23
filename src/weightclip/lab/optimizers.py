"""Build the PyTorch optimizer of a method, with its regularizers attached."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._layer_ranges import ModelBounds
from weightclip._ranges import Kappa, read_kappa
from weightclip._validation import check_name
from weightclip.bounds import Rule
from weightclip.clipping import clip_weights, find_clipper
from weightclip.lab.methods import OPTIMIZERS, Method
from weightclip.madam import Madam
from weightclip.regularizers.l2 import l2
from weightclip.regularizers.l2_init import l2_init
from weightclip.regularizers.shrink_and_perturb import shrink_and_perturb

_NOISE = 4
"""Separates the seed of the noise from other seeds derived from the same one."""


def noise_seed(seed: int, key: int = _NOISE) -> int:
    """The seed of Shrink & Perturb's noise in a run with seed `seed`; another key gives other noise."""
    return int(np.random.SeedSequence([seed, key]).generate_state(1)[0])


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of an optimizer. Raise a ValueError if the installed PyTorch does not have it.

    Args:
        name: one of `methods.OPTIMIZERS`.
    """
    class_name = OPTIMIZERS[name].torch_class
    found: type[Optimizer] | None = Madam if name == "madam" else getattr(torch.optim, class_name, None)
    if found is None:
        raise ValueError(f"method: got {name!r}, but PyTorch {torch.__version__} has no torch.optim.{class_name}")
    return found


def make_optimizer(
    model: nn.Module,
    method: Method[Any],
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    original: bool = False,
    bounds: Rule = "fan_in",
    track_clipped: bool = False,
    fused: bool = False,
) -> Optimizer:
    """An optimizer of all parameters with the regularizers that act after every step.

    Args:
        model: the module whose parameters are optimized.
        method: parsed method; the caller applies regularizers that act at the switch.
        settings: all settings of the method; `kappa` can be a rule for ranges.
        seed: the run's seed, from which the seed of Shrink & Perturb's noise is derived.
        original: whether to use the original definitions of L2 Init and Shrink & Perturb instead of the paper's code.
        bounds: clipping bounds; see `clip_weights`.
        track_clipped: whether to count the entries that clipping changes.
        fused: whether to update all tensors in one kernel, if the optimizer supports it.
    """
    optimizer = _bare_optimizer(model, method, settings, fused)
    for regularizer in method.every_step:
        if regularizer == "l2":
            l2(optimizer, settings["decay"])
        elif regularizer == "l2init":
            l2_init(optimizer, settings["decay"], variant="kumar" if original else "paper")
        elif regularizer == "sp":
            shrink_and_perturb(
                optimizer,
                settings["decay"],
                settings["sigma"],
                seed=noise_seed(seed),
                variant="ash" if original else "paper",
            )
        elif regularizer == "wc":
            clip_weights(optimizer, model, settings["kappa"], bounds=bounds, track_clipped=track_clipped)
        else:
            raise ValueError(f"method: got the regularizer {regularizer!r}, expected l2, l2init, sp or wc")
    return optimizer


def check_range_names(model: nn.Module, bounds: Rule, kappa: Kappa | None) -> None:
    """Raise a ValueError, as in `clip_weights`, for a name or a pattern in `kappa` that changes nothing in a model."""
    if kappa is not None:
        resolver = ModelBounds(model, bounds, include=None, exclude=None, clip_output_layers=True)
        resolver.resolve([list(model.parameters())], read_kappa(kappa)[1])


def fraction_at_bound(optimizer: Optimizer) -> float:
    """The fraction of entries of all clipped tensors at their bound; 0 without clipping."""
    clipper = find_clipper(optimizer)
    sides = {} if clipper is None else clipper.sides()
    at_bound = sum(int(at_side(tensor, side).sum()) for tensor, side in sides.items())
    return at_bound / max(1, sum(tensor.numel() for tensor in sides))


def at_side(tensor: Tensor, side: float | Tensor) -> Tensor:
    """Whether each entry lies on the boundary of [-side, side]: bool, with the shape of the tensor."""
    at: Tensor = tensor.detach().abs() >= side * (1 - 1e-6)
    return at


def _bare_optimizer(model: nn.Module, method: Method[Any], settings: Mapping[str, Any], fused: bool) -> Optimizer:
    """The optimizer without regularizers."""
    name = method.optimizer.base
    kind = optimizer_class(name)
    parameters = inspect.signature(kind).parameters
    own = {*method.optimizer.settings, *method.optimizer.options}
    others = {setting for part in method.regularizers for setting in part.settings} - own  # rules have `lr` as well
    given = {key: value for key, value in settings.items() if key not in others}
    if "betas" in parameters and {"beta1", "beta2"} & given.keys():
        first, second = parameters["betas"].default
        given["betas"] = (given.pop("beta1", first), given.pop("beta2", second))
    arguments: dict[str, Any] = {
        key: _as_annotated(value, parameters[check_name("settings", key, parameters)]) for key, value in given.items()
    }
    if fused and "fused" in parameters:
        arguments["fused"] = True
    try:
        return kind(model.parameters(), **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"method: {name} with {dict(settings)}: {error}") from error


def _as_annotated(value: Any, parameter: inspect.Parameter) -> Any:
    """Convert a float setting to the type of its argument: int (Muon's `ns_steps`) or bool (Adam's `amsgrad`)."""
    for kind in (int, bool):
        if parameter.annotation in (kind, kind.__name__) and value == kind(value):
            return kind(value)
    return value
