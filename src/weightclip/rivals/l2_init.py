"""L2 Init (Kumar, Marklund & Van Roy, 2023): regularisation towards the initial weights, on any optimizer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from weightclip.checks import check_choice, check_number
from weightclip.remedy import Remedy, attach, check_optimizer
from weightclip.rivals.penalty import Penalty, require_step_size
from weightclip.scratch import add_scaled_


def l2_init(optimizer: Optimizer, decay: float, *, variant: Literal["kumar", "paper"] = "kumar") -> L2Init:
    """Pull the weights towards where they started, w_0.

    `kumar`: before each step g <- g + 2 lambda (w - w_0), the gradient of lambda |w - w_0|^2, with w_0 the weights
    now. `paper` (as run for the weight-clipping paper): g <- g + lambda w before the step and
    w <- w + lr lambda w_0 after it, with w_0 the weights after the first step. With SGD that is half of `kumar`'s
    pull; with Adam the decay passes through the preconditioner and the pull does not.

    Args:
        optimizer: any `torch.optim.Optimizer`; all of its parameters are pulled.
        decay: lambda, at least 0.
        variant: see above.
    """
    return attach(L2Init(optimizer, decay, variant))


class L2Init(Remedy):
    """Pulls the weights towards their initial values. Made by `l2_init`."""

    key = "l2_init"

    def __init__(self, optimizer: Optimizer, decay: float, variant: str) -> None:
        super().__init__(check_optimizer(optimizer, self.key))
        self.decay = check_number("decay", decay, zero=True)
        self.variant = check_choice("variant", variant, ("kumar", "paper"))
        self._penalty = Penalty(self.optimizer, self.decay if variant == "paper" else 2 * self.decay)
        if variant == "paper":
            require_step_size(self.optimizer)
        self._initial: dict[Tensor, Tensor] = {}
        self.before_step()

    def before_step(self) -> None:
        if self.variant == "kumar":
            self._remember()

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        return self._penalty.added(group, p, gradient, None if self.variant == "paper" else self._initial[p])

    @torch.no_grad()
    def after_step(self) -> None:
        if self.variant == "paper" and not self.skipped():
            self._remember()
            for group, p in self.updated():
                add_scaled_(p, self._initial[p], group["lr"] * self.decay)

    def state_dict(self) -> dict[str, Any]:
        """The initial weights, by the parameter's position."""
        return {"initial": {i: self._initial[p] for i, p in enumerate(self.tensors()) if p in self._initial}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors = self.tensors()
        self._initial = {tensors[i]: w.to(tensors[i], copy=True) for i, w in state["initial"].items()}

    def _remember(self) -> None:
        for p in self.tensors():
            if p not in self._initial:
                self._initial[p] = p.detach().clone()
