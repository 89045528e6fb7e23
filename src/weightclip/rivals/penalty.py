"""Quadratic penalties, as part of the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Penalty:
    """Adds factor * (w - centre) to gradients, as if factor/2 |w - centre|^2 were in the loss.

    A sparse gradient is changed only where it has entries.
    """

    def __init__(self, optimizer: Optimizer, factor: float) -> None:
        if any(group.get("line_search_fn") for group in optimizer.param_groups):
            raise ValueError("optimizer: a line search needs the penalty in the loss; add it there instead")
        self.optimizer = optimizer
        self.factor = factor
        self._results: dict[Tensor, Tensor] = {}  # kept: asking for the memory anew costs more than the addition

    def added(self, group: dict[str, Any], p: Tensor, gradient: Tensor, centre: Tensor | None = None) -> Tensor:
        """The gradient with the penalty's; without a centre, this is 0. `gradient` stays as it is."""
        out = self._result(p, gradient)
        difference = p.detach() if centre is None else torch.sub(p, centre, out=out)
        # Fused optimizers divide the gradients by GradScaler's factor inside their step, so ours must carry it.
        scale = getattr(self.optimizer, "grad_scale", None)
        if scale is not None:
            difference = difference * scale
        factor = -self.factor if group.get("maximize", False) else self.factor
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


def require_step_size(optimizer: Optimizer) -> None:
    """Raise for an optimizer without a step size, which the paper's variants scale with."""
    if not all("lr" in group for group in optimizer.param_groups):
        raise ValueError(f"optimizer: {type(optimizer).__name__} has no 'lr' in its groups; expected a step size there")
