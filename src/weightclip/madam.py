"""Madam (Bernstein et al., 2020): a multiplicative update with clipped weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from weightclip._renamed import ARGUMENTS, accept_old_arguments, rename_arguments
from weightclip._validation import check_number


class Madam(Optimizer):
    """w <- clip(w exp(-lr g_hat sign(w)), -kappa rms(w_0), kappa rms(w_0)), with one bound per tensor.

    g_hat = g / sqrt(v_hat), clipped to [-max_update, max_update], with 0/0 = 0; v is the moving average of g^2 with
    rate beta, v_hat = v / (1 - beta^t) corrects its bias, and rms(w_0) is the root mean square of the tensor before the
    first step. A weight of 0 stays 0, and no weight changes its sign.

    Args:
        params: parameters or parameter groups.
        lr: step size.
        kappa: largest absolute weight in units of rms(w_0).
        beta: rate of the moving average, in [0, 1).
        max_update: largest absolute value of g_hat.

    Examples:
        >>> w = torch.nn.Parameter(torch.tensor([1.0, -1.0, 0.0]))
        >>> optimizer = Madam([w], lr=0.5)
        >>> w.grad = torch.full((3,), 7.0)
        >>> optimizer.step()
        >>> [round(value, 4) for value in w.tolist()]  # exp(-0.5), -exp(0.5), 0
        [0.6065, -1.6487, 0.0]
    """

    @accept_old_arguments
    def __init__(
        self, params: ParamsT, lr: float = 0.01, kappa: float = 3.0, beta: float = 0.999, max_update: float = 10.0
    ) -> None:
        beta = check_number("beta", beta, zero=True)
        if beta >= 1:
            raise ValueError(f"beta: got {beta!r}, expected a number below 1")
        defaults = {
            "lr": check_number("lr", lr, zero=True),
            "kappa": check_number("kappa", kappa, infinite=True),
            "beta": beta,
            "max_update": check_number("max_update", max_update, infinite=True),
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; its settings default to those of the optimizer."""
        renamed = not ARGUMENTS["Madam"].keys().isdisjoint(param_group)
        super().add_param_group(rename_arguments("Madam", param_group) if renamed else param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for values in (self.defaults, *self.param_groups):  # checkpoints and pickles of 0.1.0
            for old, new in ARGUMENTS["Madam"].items():
                if old in values:
                    values[new] = values.pop(old)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one step; a closure reevaluates the loss and its gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(group, p)
        return loss

    def _update(self, group: dict[str, Any], p: torch.Tensor) -> None:
        if p.grad is None or p.grad.is_sparse:
            raise RuntimeError("Madam does not support sparse gradients")
        state, beta = self.state[p], group["beta"]
        if not state:
            state["step"] = 0
            state["v"] = torch.zeros_like(p)
            state["rms"] = p.square().mean().sqrt()
        state["step"] += 1
        v = state["v"].mul_(beta).addcmul_(p.grad, p.grad, value=1 - beta)
        g_hat = (p.grad / (v / (1 - beta ** state["step"])).sqrt_()).masked_fill_(v == 0, 0.0)
        g_hat.clamp_(-group["max_update"], group["max_update"])
        p.mul_(torch.exp(-group["lr"] * g_hat * p.sign()))
        bound = group["kappa"] * state["rms"]
        torch.clamp(p, -bound, bound, out=p)
