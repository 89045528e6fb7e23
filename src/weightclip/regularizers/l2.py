"""L2 regularization on top of any optimizer: g <- g + lambda w."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._validation import Patterns
from weightclip.regularizers._penalty import Penalty, SelectiveRegularizer


def l2(
    optimizer: Optimizer,
    decay: float,
    *,
    model: nn.Module | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> L2:
    """Add the gradient of lambda/2 |w|^2 before each step: g <- g + lambda w.

    This equals `weight_decay` of SGD and Adam bit for bit, and works for optimizers that have none or decouple it.
    lambda is stored in the groups as `l2_decay`: it can be scheduled, and checkpoints save it.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        decay: lambda, at least 0, for groups without a value of their own.
        model: provides the parameter names for `include` and `exclude`.
        include: names or glob patterns; every other parameter is skipped.
        exclude: names or glob patterns of parameters to skip.

    Examples:
        >>> import torch
        >>> model = nn.Linear(4, 1)
        >>> regularizer = l2(torch.optim.Adam(model.parameters()), 1e-3, model=model, exclude="*bias")
    """
    return L2(optimizer, decay, model, include, exclude).attach()


class L2(SelectiveRegularizer):
    """Pulls the weights toward 0. Returned by `l2`."""

    key = "l2"
    group_keys = ("l2_decay",)

    def __init__(
        self,
        optimizer: Optimizer,
        decay: float,
        model: nn.Module | None,
        include: Patterns | None,
        exclude: Patterns | None,
    ) -> None:
        super().__init__(optimizer, model, include, exclude, l2_decay=decay)
        self._penalty = Penalty(self.optimizer)

    def adjust_gradient(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if not self.is_selected(p):
            return gradient
        return self._penalty.add_to(group, p, gradient, group.get("l2_decay", 0.0))
