"""Shrink & Perturb (Ash & Adams, 2020), on any optimizer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from weightclip.checks import check_choice, check_count, check_number
from weightclip.remedy import Remedy, attach, check_optimizer
from weightclip.rivals.penalty import Penalty, require_step_size
from weightclip.scratch import Scratch, add_scaled_


def shrink_and_perturb(
    optimizer: Optimizer,
    decay: float,
    sigma: float,
    *,
    every: int = 1,
    seed: int = 0,
    variant: Literal["ash", "paper"] = "ash",
) -> ShrinkAndPerturb:
    """Shrink the weights and add noise e ~ N(0, 1), drawn from a generator of its own.

    `ash`: after every n-th step, w <- (1 - lambda) w + sigma e. `paper` (as run for the weight-clipping paper):
    g <- g + lambda w before each step, and w <- w - lr sigma e after it.

    The same seed gives the same noise, so replicas on several processes stay equal; checkpoints save where it is.

    Args:
        optimizer: any `torch.optim.Optimizer`; all of its parameters are shrunk and perturbed.
        decay: lambda, at least 0 (and at most 1 for `ash`).
        sigma: the noise's standard deviation, at least 0.
        every: n; for `paper` always 1.
        seed: of the noise.
        variant: see above.
    """
    return attach(ShrinkAndPerturb(optimizer, decay, sigma, every, seed, variant))


class ShrinkAndPerturb(Remedy):
    """Shrinks and perturbs the weights. Made by `shrink_and_perturb`."""

    key = "shrink_and_perturb"

    def __init__(self, optimizer: Optimizer, decay: float, sigma: float, every: int, seed: int, variant: str) -> None:
        super().__init__(check_optimizer(optimizer, self.key))
        self.decay = check_number("decay", decay, zero=True)
        self.sigma = check_number("sigma", sigma, zero=True)
        self.every = check_count("every", every)
        self.variant = check_choice("variant", variant, ("ash", "paper"))
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed: got {seed!r}, expected a whole number")
        self.seed = seed
        if variant == "paper":
            self._penalty = Penalty(self.optimizer, self.decay)
            require_step_size(self.optimizer)
        if variant == "paper" and every != 1:
            raise ValueError(f"every: got {every!r}, expected 1, because variant 'paper' acts at every step")
        if variant == "ash" and self.decay > 1:
            raise ValueError(f"decay: got {decay!r}, expected at most 1, because w is multiplied by 1 - decay")
        self._steps = 0
        self._scratch = Scratch()
        self._generators: dict[str, torch.Generator] = {}

    @torch.no_grad()
    def apply(self) -> None:
        """Shrink and perturb once, now: every parameter of the optimizer, by w <- (1 - lambda) w + sigma e."""
        for p in self.tensors():
            self._shrink_and_perturb(p)

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "paper":
            return self._penalty.added(group, p, gradient)
        return gradient

    @torch.no_grad()
    def after_step(self) -> None:
        if self.skipped():
            return
        self._steps += 1
        if self.variant == "paper":
            for group, p in self.updated():
                add_scaled_(p, self._noise(p), -group["lr"] * self.sigma)
        elif self._steps % self.every == 0:
            for _, p in self.updated():
                self._shrink_and_perturb(p)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and, for each device, where its noise generator is."""
        generators = {device: generator.get_state() for device, generator in self._generators.items()}
        return {"steps": self._steps, "generators": generators}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._generators = {}
        for device, saved in state["generators"].items():
            self._generator(device).set_state(saved.cpu())

    def _shrink_and_perturb(self, p: Tensor) -> None:
        p.mul_(1 - self.decay).add_(self._noise(p), alpha=self.sigma)

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
