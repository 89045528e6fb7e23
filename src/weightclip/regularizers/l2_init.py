"""L2 Init (Kumar, Marklund & Van Roy, 2023) on top of any optimizer: L2 regularization toward the initial weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._validation import Patterns, check_name
from weightclip.regularizers._penalty import Penalty, SelectiveRegularizer, add_scaled_, require_step_size


def l2_init(
    optimizer: Optimizer,
    decay: float,
    *,
    variant: Literal["kumar", "paper"] = "kumar",
    model: nn.Module | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> L2Init:
    """Pull the weights toward their initial values w_0.

    `kumar`: add the gradient of lambda |w - w_0|^2 before each step, g <- g + 2 lambda (w - w_0); w_0 are the weights
    when attaching. `paper` (as run for the weight clipping paper): g <- g + lambda w before the step and
    w <- w + lr lambda w_0 after it; w_0 are the weights after the first step. With SGD this is half the pull of
    `kumar`; with Adam, the decay passes through the preconditioner and the pull toward w_0 does not.

    lambda is stored in the groups as `l2_init_decay`: it can be scheduled, and checkpoints save it.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        decay: lambda, at least 0, for groups without a value of their own.
        variant: `kumar` or `paper`, see above.
        model: provides the parameter names for `include` and `exclude`.
        include: names or glob patterns; every other parameter is skipped.
        exclude: names or glob patterns of parameters to skip.

    Examples:
        >>> w = nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = torch.optim.SGD([w], lr=0.5)
        >>> regularizer = l2_init(optimizer, 0.5)  # w_0 = 1
        >>> w.data, w.grad = torch.tensor([3.0]), torch.zeros(1)
        >>> optimizer.step()
        >>> w.item()  # 3 - 0.5 * 2 * 0.5 * (3 - 1)
        2.0
    """
    return L2Init(optimizer, decay, variant, model, include, exclude).attach()


class L2Init(SelectiveRegularizer):
    """Pulls the weights toward their initial values. Returned by `l2_init`."""

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
            self._store_initial()

    def adjust_gradient(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if not self.is_selected(p):
            return gradient
        if self.variant == "paper":
            return self._penalty.add_to(group, p, gradient, group.get("l2_init_decay", 0.0))
        return self._penalty.add_to(group, p, gradient, 2 * group.get("l2_init_decay", 0.0), self._initial[p])

    @torch.no_grad()
    def after_step(self) -> None:
        if self.variant == "paper" and not self.step_skipped():
            self._store_initial()
            for group, p in self.updated_parameters():
                if self.is_selected(p):
                    add_scaled_(p, self._initial[p], group["lr"] * group.get("l2_init_decay", 0.0))

    def state_dict(self) -> dict[str, Any]:
        """The initial weights by parameter position."""
        return {"initial": {i: self._initial[p] for i, p in enumerate(self.parameters()) if p in self._initial}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors = self.parameters()
        self._initial = {tensors[i]: w.to(tensors[i], copy=True) for i, w in state["initial"].items()}

    def _store_initial(self) -> None:
        """Copy the weights of selected parameters that have no initial value yet."""
        for p in self.parameters():
            if p not in self._initial and self.is_selected(p):
                self._initial[p] = p.detach().clone()
