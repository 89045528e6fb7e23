"""Shrink & Perturb (Ash & Adams, 2020), on any optimizer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.checks import check_count, check_name
from weightclip.patterns import Patterns
from weightclip.remedy import attach
from weightclip.rivals.penalty import Penalty, Regularizer, require_step_size
from weightclip.scratch import Scratch, add_scaled_


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
    """Shrink the weights and add noise e ~ N(0, 1), drawn from a generator of its own.

    `ash`: after every n-th step, w <- (1 - lambda) w + sigma e. `paper` (as run for the weight-clipping paper):
    g <- g + lambda w before each step, and w <- w - lr sigma e after it.

    The same seed gives the same noise, so replicas on several processes stay equal; checkpoints save its position.
    lambda and sigma are kept in the groups as `sp_decay` and `sp_sigma`: they can be scheduled, and checkpoints save
    them.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        decay: lambda, at least 0 (and at most 1 for `ash`), for the groups that have none yet.
        sigma: the noise's standard deviation, at least 0, for the groups that have none yet.
        every: n; for `paper` always 1.
        seed: of the noise.
        variant: see above.
        model: gives the parameters their names, for `include` and `exclude`.
        include: names or glob patterns; every other parameter is left alone.
        exclude: names or glob patterns of parameters to leave alone.
    """
    return attach(ShrinkAndPerturb(optimizer, decay, sigma, every, seed, variant, model, include, exclude))


class ShrinkAndPerturb(Regularizer):
    """Shrinks and perturbs the weights. Made by `shrink_and_perturb`."""

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
        """Shrink and perturb once, now: every chosen parameter, by w <- (1 - lambda) w + sigma e."""
        super().before_step()
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if self.is_chosen(p):
                    self._shrink_and_perturb(group, p)

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "paper" and self.is_chosen(p):
            return self._penalty.added(group, p, gradient, group.get("sp_decay", 0.0))
        return gradient

    @torch.no_grad()
    def after_step(self) -> None:
        if self.skipped():
            return
        self._steps += 1
        chosen = [(group, p) for group, p in self.updated() if self.is_chosen(p)]
        if self.variant == "paper":
            for group, p in chosen:
                add_scaled_(p, self._noise(p), -group["lr"] * group.get("sp_sigma", 0.0))
        elif self._steps % self.every == 0:
            for group, p in chosen:
                self._shrink_and_perturb(group, p)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and, for each device, where its noise generator is."""
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
        # Every process draws the whole tensor's noise and keeps its part, as if there were one process.
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(noise, p.device_mesh, p.placements, src_data_rank=None)  # type: ignore[attr-defined]

    def _generator(self, device: str) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]
