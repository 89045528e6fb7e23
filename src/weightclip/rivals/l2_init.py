"""L2 Init (Kumar, Marklund & Van Roy, 2023): regularisation towards the initial weights, on any optimizer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.checks import check_name
from weightclip.patterns import Patterns
from weightclip.remedy import attach
from weightclip.rivals.penalty import Penalty, Regularizer, require_step_size
from weightclip.scratch import add_scaled_


def l2_init(
    optimizer: Optimizer,
    decay: float,
    *,
    variant: Literal["kumar", "paper"] = "kumar",
    model: nn.Module | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> L2Init:
    """Pull the weights towards where they started, w_0.

    `kumar`: before each step g <- g + 2 lambda (w - w_0), the gradient of lambda |w - w_0|^2, with w_0 the weights
    now. `paper` (as run for the weight-clipping paper): g <- g + lambda w before the step and
    w <- w + lr lambda w_0 after it, with w_0 the weights after the first step. With SGD that is half of `kumar`'s
    pull; with Adam the decay passes through the preconditioner and the pull does not.

    lambda is kept in the groups as `l2_init_decay`: it can be scheduled, and checkpoints save it.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        decay: lambda, at least 0, for the groups that have none yet.
        variant: see above.
        model: gives the parameters their names, for `include` and `exclude`.
        include: names or glob patterns; every other parameter is left alone.
        exclude: names or glob patterns of parameters to leave alone.
    """
    return attach(L2Init(optimizer, decay, variant, model, include, exclude))


class L2Init(Regularizer):
    """Pulls the weights towards their initial values. Made by `l2_init`."""

    key = "l2_init"
    group_keys = ("l2_init_decay",)

    def __init__(
        self,
        optimizer: Optimizer,
        decay: float,
        variant: str,
        model: nn.Module | None,
        include: Patterns | None,
        exclude: Patterns | None,
    ) -> None:
        super().__init__(optimizer, model, include, exclude, l2_init_decay=decay)
        self.variant = check_name("variant", variant, ("kumar", "paper"))
        self._penalty = Penalty(self.optimizer)
        if variant == "paper":
            require_step_size(self.optimizer)
        self._initial: dict[Tensor, Tensor] = {}
        self.before_step()

    def before_step(self) -> None:
        super().before_step()
        if self.variant == "kumar":
            self._remember()

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if not self.is_chosen(p):
            return gradient
        if self.variant == "paper":
            return self._penalty.added(group, p, gradient, group.get("l2_init_decay", 0.0))
        return self._penalty.added(group, p, gradient, 2 * group.get("l2_init_decay", 0.0), self._initial[p])

    @torch.no_grad()
    def after_step(self) -> None:
        if self.variant == "paper" and not self.skipped():
            self._remember()
            for group, p in self.updated():
                if self.is_chosen(p):
                    add_scaled_(p, self._initial[p], group["lr"] * group.get("l2_init_decay", 0.0))

    def state_dict(self) -> dict[str, Any]:
        """The initial weights, by the parameter's position."""
        return {"initial": {i: self._initial[p] for i, p in enumerate(self.tensors()) if p in self._initial}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors = self.tensors()
        self._initial = {tensors[i]: w.to(tensors[i], copy=True) for i, w in state["initial"].items()}

    def _remember(self) -> None:
        for p in self.tensors():
            if p not in self._initial and self.is_chosen(p):
                self._initial[p] = p.detach().clone()
