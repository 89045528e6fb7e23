"""Quadratic penalties, as part of the gradient."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from weightclip.remedy import Remedy


def add_penalty(remedy: Remedy, factor: float, centre: Mapping[Tensor, Tensor] | None = None) -> None:
    """Add factor (w - centre) to the gradient, as if factor/2 |w - centre|^2 were in the loss; no centre means 0.

    Parameters without a gradient are left alone, as they are by the optimizers' own weight decay. A sparse
    gradient is changed only where it has entries.
    """
    # Fused optimizers divide the gradients by GradScaler's factor inside their step, so ours must carry it.
    scale = getattr(remedy.optimizer, "grad_scale", None)
    for group, p in remedy.updated():
        assert p.grad is not None
        pull = p.detach() if centre is None else p - centre[p]
        if scale is not None:
            pull = pull * scale
        signed = -factor if group.get("maximize", False) else factor
        if p.grad.is_sparse:
            gradient = p.grad.coalesce()
            p.grad = gradient + signed * pull.sparse_mask(gradient)
        else:
            p.grad.add_(pull, alpha=signed)
