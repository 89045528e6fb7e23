"""L2 regularisation, on any optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.patterns import Patterns
from weightclip.remedy import attach
from weightclip.rivals.penalty import Penalty, Regularizer


def l2(
    optimizer: Optimizer,
    decay: float,
    *,
    model: nn.Module | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> L2:
    """Before each step, g <- g + lambda w: the gradient of lambda/2 |w|^2 joins that of the loss.

    This is what `weight_decay` does in SGD and Adam, bit for bit, for optimizers that have none or decouple it.
    lambda is kept in the groups as `l2_decay`: it can be scheduled, and checkpoints save it.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        decay: lambda, at least 0, for the groups that have none yet.
        model: gives the parameters their names, for `include` and `exclude`.
        include: names or glob patterns; every other parameter is left alone.
        exclude: names or glob patterns of parameters to leave alone.

    Examples:
        >>> import torch
        >>> model = nn.Linear(4, 1)
        >>> regularizer = l2(torch.optim.Adam(model.parameters()), 1e-3, model=model, exclude="*bias")
    """
    return attach(L2(optimizer, decay, model, include, exclude))


class L2(Regularizer):
    """Pulls the weights towards 0. Made by `l2`."""

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

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if not self.is_chosen(p):
            return gradient
        return self._penalty.added(group, p, gradient, group.get("l2_decay", 0.0))
