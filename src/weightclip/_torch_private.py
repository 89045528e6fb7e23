"""Private and undocumented names of PyTorch that weightclip relies on.

Every other module imports them from here, so a new PyTorch release is checked in one place. Each entry says why it is
needed and, in parentheses, a PyTorch version that already has it; weightclip requires 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.optim import optimizer as _optimizer_module

BatchNorm = _BatchNorm
"""Base class of all batch normalization layers, which has no public name (1.0)."""

Dropout = _DropoutNd
"""Base class of all dropout layers, which has no public name (1.0)."""

CONV_FORWARD = "_conv_forward"
"""Method of convolutions that computes the output; a subclass that overrides it computes another function (1.8)."""

disable_dynamo = _disable_dynamo
"""Runs a hook outside of a compiled step; `torch.compiler.disable` imports the compiler at once (2.1)."""

foreach_clamp_min_: Callable[[list[Tensor], list[Any]], None] = torch._foreach_clamp_min_
"""Clamps many tensors in one launch; there is no public function for it (2.0)."""

foreach_clamp_max_: Callable[[list[Tensor], list[Any]], None] = torch._foreach_clamp_max_
"""See `foreach_clamp_min_` (2.0)."""

global_step_post_hooks: dict[int, Any] = _optimizer_module._global_optimizer_post_hooks
"""Hooks after the steps of all optimizers, ordered; clipping moves its own to the end (2.0)."""

step_post_hooks: Callable[[Optimizer], dict[int, Any]] = attrgetter("_optimizer_step_post_hooks")
"""Hooks after the steps of one optimizer, ordered; clipping moves its own to the end (2.0)."""

own_parameters: Callable[[nn.Module], dict[str, Any]] = attrgetter("_parameters")
"""Parameters of a module without its children, None included; `named_parameters` is slower and skips these (0.1)."""

own_modules: Callable[[nn.Module], dict[str, Any]] = attrgetter("_modules")
"""Children of a module, each as often as it is registered; `named_children` lists every child once (0.1)."""

forward_pre_hooks: Callable[[nn.Module], dict[int, Any]] = attrgetter("_forward_pre_hooks")
"""Hooks before the forward pass: `weight_norm`, `spectral_norm` and pruning compute the weight in them (0.2)."""

COMPILED_PREFIX = "_orig_mod."
"""Part of the parameter names of a module inside the wrapper of `torch.compile` (2.0)."""


def compiled_module(model: nn.Module) -> nn.Module | None:
    """The module inside the wrapper of `torch.compile`, if `model` is one (`_orig_mod`, 2.0)."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def step_runs_hooks(optimizer: Optimizer) -> bool:
    """Whether PyTorch wrapped the class's `step` to run hooks (`hooked`, 1.9)."""
    return bool(getattr(type(optimizer).step, "hooked", False))


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether `Optimizer.__init__` ran, which makes the dictionary of step hooks (2.0)."""
    return "_optimizer_step_post_hooks" in optimizer.__dict__


def has_state_dict_hooks(optimizer: Optimizer) -> bool:
    """Whether `Optimizer.__init__` ran, which makes the dictionary of `state_dict` hooks (2.1)."""
    return "_optimizer_state_dict_post_hooks" in optimizer.__dict__
