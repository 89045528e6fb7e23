"""Madam (Bernstein et al., 2020): a multiplicative update with clipped weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from weightclip.checks import check_number


class Madam(Optimizer):
    """w <- clip(w exp(-lr g_hat sign(w)), -kappa rms(w_0), kappa rms(w_0)), with one bound for each tensor.

    g_hat = g / sqrt(v_hat), clipped to [-10, 10], 0/0 read as 0; v is the moving average of g^2 with rate beta, and
    v_hat = v / (1 - beta^t) corrects its bias; rms(w_0) is the root mean square of the tensor before the first step.
    A weight that is 0 stays 0, and no weight changes its sign.

    Args:
        params: as for every optimizer.
        lr: the step size.
        kappa: how many times rms(w_0) a weight may reach.
        beta: the rate of the moving average.
        largest: the limit of g_hat.
    """

    def __init__(
        self, params: ParamsT, lr: float = 0.01, kappa: float = 3.0, beta: float = 0.999, largest: float = 10.0
    ) -> None:
        beta = check_number("beta", beta, zero=True)
        if beta >= 1:
            raise ValueError(f"beta: got {beta!r}, expected a number below 1")
        defaults = {
            "lr": check_number("lr", lr, zero=True),
            "kappa": check_number("kappa", kappa, infinite=True),
            "beta": beta,
            "largest": check_number("largest", largest, infinite=True),
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step; a closure recomputes the loss and its gradients first."""
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
        g_hat.clamp_(-group["largest"], group["largest"])
        p.mul_(torch.exp(-group["lr"] * g_hat * p.sign()))
        bound = group["kappa"] * state["rms"]
        torch.clamp(p, -bound, bound, out=p)
