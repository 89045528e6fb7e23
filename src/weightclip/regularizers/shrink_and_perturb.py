"""Shrink & Perturb (Ash & Adams, 2020) on top of any optimizer: w <- (1 - lambda) w + sigma e."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._box import Scratch
from weightclip._validation import Patterns, check_count, check_name
from weightclip.regularizers._penalty import Penalty, SelectiveRegularizer, add_scaled_, require_step_size


def shrink_and_perturb(
    optimizer: Optimizer,
    decay: float,
    sigma: float,
    *,
    every: int = 1,
    seed: int = 0,
    variant: Literal["ash", "paper"] = "ash",
    model: nn.Module | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> ShrinkAndPerturb:
    """Shrink the weights and add noise e ~ N(0, 1) from a separate generator.

    `ash`: w <- (1 - lambda) w + sigma e after every n-th step. `paper` (as run for the weight clipping paper):
    g <- g + lambda w before each step and w <- w - lr sigma e after it.

    The same seed gives the same noise, so replicas on several processes stay equal; checkpoints save the generator's
    state. lambda and sigma are stored in the groups as `sp_decay` and `sp_sigma`: they can be scheduled, and
    checkpoints save them.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        decay: lambda, at least 0 (at most 1 for `ash`), for groups without a value of their own.
        sigma: the standard deviation of the noise, at least 0, for groups without a value of their own.
        every: n; `paper` requires 1.
        seed: seeds the noise generator.
        variant: `ash` or `paper`, see above.
        model: provides the parameter names for `include` and `exclude`.
        include: names or glob patterns; every other parameter is skipped.
        exclude: names or glob patterns of parameters to skip.

    Examples:
        >>> w = nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> regularizer = shrink_and_perturb(optimizer, decay=0.25, sigma=0.0)
        >>> w.grad = torch.zeros(1)
        >>> optimizer.step()
        >>> w.item()
        0.75
    """
    return ShrinkAndPerturb(optimizer, decay, sigma, every, seed, variant, model, include, exclude).attach()


class ShrinkAndPerturb(SelectiveRegularizer):
    """Shrinks and perturbs the weights. Returned by `shrink_and_perturb`."""

    key = "shrink_and_perturb"
    group_keys = ("sp_decay", "sp_sigma")

    def __init__(
        self,
        optimizer: Optimizer,
        decay: float,
        sigma: float,
        every: int,
        seed: int,
        variant: str,
        model: nn.Module | None,
        include: Patterns | None,
        exclude: Patterns | None,
    ) -> None:
        self.variant = check_name("variant", variant, ("ash", "paper"))
        super().__init__(optimizer, model, include, exclude, sp_decay=decay, sp_sigma=sigma)
        self.every = check_count("every", every)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed: got {seed!r}, expected a whole number")
        self.seed = seed
        if variant == "paper":
            self._penalty = Penalty(self.optimizer)
            require_step_size(self.optimizer)
        if variant == "paper" and every != 1:
            raise ValueError(f"every: got {every!r}, expected 1, because variant 'paper' acts at every step")
        self._steps = 0
        self._scratch = Scratch()
        self._generators: dict[str, torch.Generator] = {}

    def _check_settings(self) -> None:
        super()._check_settings()
        for decay in (self.settings["sp_decay"], *(g.get("sp_decay", 0.0) for g in self.optimizer.param_groups)):
            if self.variant == "ash" and decay > 1:
                raise ValueError(f"decay: got {decay!r}, expected at most 1, because w is multiplied by 1 - decay")

    @torch.no_grad()
    def apply(self) -> None:
        """Apply w <- (1 - lambda) w + sigma e once to every selected parameter."""
        super().before_step()
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if self.is_selected(p):
                    self._shrink_and_perturb(group, p)

    def adjust_gradient(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "paper" and self.is_selected(p):
            return self._penalty.add_to(group, p, gradient, group.get("sp_decay", 0.0))
        return gradient

    @torch.no_grad()
    def after_step(self) -> None:
        if self.step_skipped():
            return
        self._steps += 1
        selected = [(group, p) for group, p in self.updated_parameters() if self.is_selected(p)]
        if self.variant == "paper":
            for group, p in selected:
                add_scaled_(p, self._noise(p), -group["lr"] * group.get("sp_sigma", 0.0))
        elif self._steps % self.every == 0:
            for group, p in selected:
                self._shrink_and_perturb(group, p)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the state of the noise generator of each device."""
        generators = {device: generator.get_state() for device, generator in self._generators.items()}
        return {"steps": self._steps, "generators": generators}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._generators = {}
        for device, saved in state["generators"].items():
            self._generator(device).set_state(saved.cpu())

    def _shrink_and_perturb(self, group: dict[str, Any], p: Tensor) -> None:
        decay, sigma = (float(group.get(key, 0.0)) for key in self.group_keys)
        p.mul_(1 - decay).add_(self._noise(p), alpha=sigma)

    def _noise(self, p: Tensor) -> Tensor:
        generator = self._generator(str(p.device))
        if not hasattr(p, "device_mesh"):
            return self._scratch.like(p).normal_(generator=generator)
        noise = torch.empty(p.shape, dtype=p.dtype, device=p.device).normal_(generator=generator)
        # Every process draws the noise of the whole tensor and keeps its shard: the result equals that of one process.
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(noise, p.device_mesh, p.placements, src_data_rank=None)  # type: ignore[attr-defined]

    def _generator(self, device: str) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]
