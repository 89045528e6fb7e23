"""Regularizers of selected parameters, and the gradients of quadratic penalties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._hooks import Regularizer
from weightclip._validation import Patterns, check_number, name_filter
from weightclip.bounds import tensor_names


class SelectiveRegularizer(Regularizer):
    """Regularizer of the parameters that `include` and `exclude` select.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        model: provides the parameter names; by default, the names in the optimizer's groups are used.
        include: names or glob patterns; every other parameter is skipped.
        exclude: names or glob patterns of parameters to skip.
        settings: numbers of at least 0, stored in `optimizer.param_groups`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module | None,
        include: Patterns | None,
        exclude: Patterns | None,
        **settings: float,
    ) -> None:
        self._argument = {key: key.rpartition("_")[2] for key in settings}  # l2_decay -> decay
        numbers = {key: check_number(self._argument[key], value, zero=True) for key, value in settings.items()}
        super().__init__(optimizer, **numbers)
        self._model, self._include, self._exclude = model, include, exclude
        self._selected: dict[Tensor, bool] = {}
        self._check_settings()
        self._select()

    def before_step(self) -> None:
        self._check_settings()
        if any(p not in self._selected for p in self.parameters()):
            self._select()

    def is_selected(self, p: Tensor) -> bool:
        """Whether the regularizer acts on `p`."""
        return self._selected[p]

    def _check_settings(self) -> None:
        for group in self.optimizer.param_groups:
            for key, argument in self._argument.items():
                check_number(argument, group.get(key, 0.0), zero=True)

    def _select(self) -> None:
        """Decide for every parameter of the optimizer whether it is regularized."""
        tensors = self.parameters()
        if self._include is None and self._exclude is None:
            self._selected = dict.fromkeys(tensors, True)
            return
        if self._model is not None:
            names = tensor_names(self._model)
            if any(id(p) not in names for p in tensors):
                raise ValueError("model: it does not own all parameters of the optimizer, so some have no names")
        else:
            groups = self.optimizer.param_groups
            if not all("param_names" in group for group in groups):
                raise ValueError(
                    "include, exclude: the parameters have no names; pass model=..., or make the optimizer from "
                    "model.named_parameters()"
                )
            pairs = [pair for g in groups for pair in zip(g["params"], g["param_names"], strict=True)]
            names = {id(p): [name] for p, name in pairs}
        reason = name_filter(self._include, self._exclude, [name for own in names.values() for name in own])
        self._selected = {p: reason(names.get(id(p), [])) is None for p in tensors}


class Penalty:
    """Gradient of the penalty factor/2 |w - center|^2, which is factor (w - center), added to that of the loss.

    A sparse gradient changes only at its own entries.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if any(group.get("line_search_fn") for group in optimizer.param_groups):
            raise ValueError("optimizer: a line search needs the penalty in the loss; add it there instead")
        self.optimizer = optimizer
        self._results: dict[Tensor, Tensor] = {}  # reused: allocating the memory costs more than the addition

    def add_to(
        self, group: dict[str, Any], p: Tensor, gradient: Tensor, factor: float, center: Tensor | None = None
    ) -> Tensor:
        """Return gradient + factor (p - center), of the shape of `p`; the center is 0 by default."""
        out = self._result(p, gradient)
        difference = p.detach() if center is None else torch.sub(p, center, out=out)
        # Fused optimizers divide the gradients by GradScaler's scale inside their step, so the penalty is scaled too.
        scale = getattr(self.optimizer, "grad_scale", None)
        if scale is not None:
            difference = difference * scale
        factor = -float(factor) if group.get("maximize", False) else float(factor)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            return gradient + factor * difference.sparse_mask(gradient)
        return torch.add(gradient, difference, alpha=factor, out=out)

    def _result(self, p: Tensor, gradient: Tensor) -> Tensor | None:
        if gradient.is_sparse or hasattr(p, "to_local"):
            return None
        kept = self._results.get(p)
        if kept is None or kept.dtype != p.dtype or kept.device != p.device or kept.shape != p.shape:
            kept = self._results[p] = torch.empty_like(p)
        return kept


def add_scaled_(tensor: Tensor, other: Tensor, scale: float | Tensor) -> None:
    """tensor <- tensor + scale * other, in place; the scale may be a tensor, as step sizes may."""
    if isinstance(scale, Tensor):
        tensor.add_(other * scale)
    else:
        tensor.add_(other, alpha=scale)


def require_step_size(optimizer: Optimizer) -> None:
    """Raise for an optimizer without a step size, which the paper's variants scale with."""
    if not all("lr" in group for group in optimizer.param_groups):
        raise ValueError(f"optimizer: {type(optimizer).__name__} has no 'lr' in its groups; expected a step size there")
