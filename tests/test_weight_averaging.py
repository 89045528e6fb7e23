"""Optimizers with a second set of weights; tests for other libraries are in tests/hosts."""

from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc


class Averaging(torch.optim.SGD):
    """An optimizer with different weights for training and evaluation."""

    def train(self) -> None:
        pass

    def eval(self) -> None:
        pass


class AdamWScheduleFree(torch.optim.SGD):
    """Schedule-Free SGD with the conventions of `schedulefree`: y = (1 - beta) z + beta x, z in the state."""

    def __init__(self, params: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            group.update(betas=(beta, 0.999), train_mode=False, k=0)

    @torch.no_grad()
    def _move(self, weight: Any, train_mode: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != train_mode:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], weight(group["betas"][0]))
                group["train_mode"] = train_mode

    def eval(self) -> None:
        self._move(lambda beta: 1 - 1 / beta, False)

    def train(self) -> None:
        self._move(lambda beta: 1 - beta, True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            average, beta = 1 / group["k"], group["betas"][0]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, average)
                p.add_(p.grad, alpha=group["lr"] * (beta * (1 - average) - 1))
                z.sub_(p.grad, alpha=group["lr"])


AdamWScheduleFree.__module__ = "schedulefree"


def train(model: nn.Module, optimizer: Any, steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer.train()
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 16, generator=generator)
        (model(x) - 3 * x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def largest(tensor: torch.Tensor) -> float:
    return tensor.abs().max().item()


def test_both_schedule_free_sequences_are_in_the_box() -> None:
    model = nn.Linear(16, 1)
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.05)
    wc.clip_weights(optimizer, model, kappa=1.0)
    train(model, optimizer, 200)
    z = optimizer.state[model.weight]["z"]
    for switch in (optimizer.eval, optimizer.train, optimizer.eval):
        assert largest(model.weight) == 0.25
        assert largest(z) == 0.25
        switch()
    assert largest(model.weight) == 0.25


def test_steps_inside_the_box_are_bit_identical() -> None:
    """y is not recomputed from x and z if nothing is clipped."""
    torch.manual_seed(1)
    models = [nn.Linear(16, 1), nn.Linear(16, 1)]
    models[1].load_state_dict(models[0].state_dict())
    plain, clipped = (AdamWScheduleFree(model.parameters(), lr=1e-4) for model in models)
    wc.clip_weights(clipped, models[1], kappa=9.0)
    for model, optimizer in zip(models, (plain, clipped), strict=True):
        train(model, optimizer, 20)
        optimizer.eval()
    assert torch.equal(models[0].weight, models[1].weight)
    assert torch.equal(plain.state[models[0].weight]["z"], clipped.state[models[1].weight]["z"])


def test_clipping_during_evaluation_clips_x_and_z() -> None:
    model = nn.Linear(16, 1)
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.05)
    train(model, optimizer, 50)
    optimizer.eval()
    assert largest(model.weight) > 0.25
    wc.clip_weights(optimizer, model, kappa=1.0).clip()
    assert largest(model.weight) == largest(optimizer.state[model.weight]["z"]) == 0.25


def test_removing_the_clipper_restores_the_optimizer() -> None:
    model = nn.Linear(16, 1)
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.05)
    before = set(optimizer.__dict__)
    wc.clip_weights(optimizer, model, kappa=1.0).remove()
    assert set(optimizer.__dict__) == before


def test_the_averaged_weights_of_asgd_are_in_the_box() -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.ASGD(model.parameters(), lr=10.0, t0=0)
    wc.clip_weights(optimizer, model, kappa=1.0)
    for _ in range(3):
        model.weight.grad, model.bias.grad = torch.ones(1, 16), torch.ones(1)
        optimizer.step()
    assert largest(optimizer.state[model.weight]["ax"]) == 0.25


def test_other_averaging_optimizers_raise_an_error() -> None:
    model = nn.Linear(16, 1)
    optimizer = Averaging(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"Averaging swaps the model's weights.*in eval\(\).*Schedule-Free"):
        wc.clip_weights(optimizer, model, kappa=1.0)
    assert "kappa" not in optimizer.param_groups[0]
    assert not optimizer._optimizer_step_post_hooks
