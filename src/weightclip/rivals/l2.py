"""L2 regularisation, on any optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from weightclip.checks import check_number
from weightclip.remedy import Remedy, attach, check_optimizer
from weightclip.rivals.penalty import Penalty


def l2(optimizer: Optimizer, decay: float) -> L2:
    """Before each step, g <- g + lambda w: the gradient of lambda/2 |w|^2 joins that of the loss.

    This is what `weight_decay` does in SGD and Adam, bit for bit, for optimizers that have none or decouple it.

    Args:
        optimizer: any `torch.optim.Optimizer`; all of its parameters are penalised.
        decay: lambda, at least 0.
    """
    return attach(L2(optimizer, decay))


class L2(Remedy):
    """Pulls the weights towards 0. Made by `l2`."""

    key = "l2"

    def __init__(self, optimizer: Optimizer, decay: float) -> None:
        super().__init__(check_optimizer(optimizer, self.key))
        self.decay = check_number("decay", decay, zero=True)
        self._penalty = Penalty(self.optimizer, self.decay)

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        return self._penalty.added(group, p, gradient)
