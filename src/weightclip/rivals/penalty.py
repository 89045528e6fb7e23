"""Quadratic penalties, as part of the gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def with_penalty(
    optimizer: Optimizer, group: dict[str, Any], gradient: Tensor, factor: float, difference: Tensor
) -> Tensor:
    """The gradient + factor * difference: as if factor/2 |difference|^2 were in the loss.

    A sparse gradient is changed only where it has entries.
    """
    # Fused optimizers divide the gradients by GradScaler's factor inside their step, so ours must carry it.
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        difference = difference * scale
    factor = -factor if group.get("maximize", False) else factor
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return gradient + factor * difference.sparse_mask(gradient)
    return gradient.add(difference, alpha=factor)


def refuse_line_search(optimizer: Optimizer) -> None:
    """Raise for an optimizer that compares losses, in which a penalty of ours is not."""
    if any(group.get("line_search_fn") for group in optimizer.param_groups):
        raise ValueError("optimizer: a line search needs the penalty in the loss; add it there instead")


def require_step_size(optimizer: Optimizer) -> None:
    """Raise for an optimizer without a step size, which the paper's variants scale with."""
    if not all("lr" in group for group in optimizer.param_groups):
        raise ValueError(f"optimizer: {type(optimizer).__name__} has no 'lr' in its groups; expected a step size there")
