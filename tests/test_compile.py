"""Compiled models and compiled steps clip or raise an error; clipping is never silently lost."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

Step = Callable[[], Any]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def train(model: nn.Module, step: Step) -> float:
    model.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    step()
    return max(p.abs().max().item() for p in model.parameters())


def compiled_method(optimizer: torch.optim.Optimizer, **options: Any) -> Step:
    return torch.compile(optimizer.step, backend="eager", **options)


def compiled_function(optimizer: torch.optim.Optimizer, **options: Any) -> Step:
    def step() -> None:
        optimizer.step()

    return torch.compile(step, backend="eager", **options)


class OneGraph(torch.optim.Optimizer):
    """An optimizer whose step compiles into one graph (torch.optim's optimizers have graph breaks)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"])


COMPILE = [compiled_method, compiled_function]
OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, OneGraph]


def test_a_compiled_model() -> None:
    model = torch.compile(network(), backend="inductor")
    optimizer = torch.optim.Adam(model.parameters(), lr=9.0)
    wc.clip_weights(optimizer, model, kappa=0.5)
    for _ in range(3):
        assert train(model, optimizer.step) == 0.25


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("compile_step", COMPILE)
def test_a_compiled_step(make: Any, compile_step: Any) -> None:
    model = network()
    optimizer = make(model.parameters(), lr=9.0)
    wc.shrink_and_perturb(optimizer, 0.1, 0.1)
    wc.clip_weights(optimizer, model, kappa=0.5)
    step = compile_step(optimizer)
    for _ in range(4):
        assert train(model, step) == 0.25


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("compile_step", COMPILE)
def test_a_step_compiled_and_run_before_the_clipper_was_attached(make: Any, compile_step: Any) -> None:
    model = network()
    optimizer = make(model.parameters(), lr=9.0)
    step = compile_step(optimizer)
    for _ in range(3):
        assert train(model, step) > 0.25
    clipper = wc.clip_weights(optimizer, model, kappa=0.5)
    assert train(model, step) == 0.25
    optimizer.param_groups[0]["kappa"] = 0.25
    assert train(model, step) == 0.125
    clipper.remove()
    assert train(model, step) > 0.25


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("compile_step", COMPILE)
def test_a_step_that_must_be_one_graph_raises_an_error(make: Any, compile_step: Any) -> None:
    model = network()
    optimizer = make(model.parameters(), lr=9.0)
    wc.clip_weights(optimizer, model, kappa=0.5)
    step = compile_step(optimizer, fullgraph=True)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        train(model, step)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("compile_step", COMPILE)
def test_other_optimizers_have_no_graph_breaks(compile_step: Any) -> None:
    model = network()
    optimizer = OneGraph(model.parameters(), lr=9.0)
    assert train(model, compile_step(optimizer, fullgraph=True)) > 0.25


def test_the_default_compiler() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=9.0)
    wc.clip_weights(optimizer, model, kappa=0.5)
    step = torch.compile(optimizer.step)
    for _ in range(2):
        assert train(model, step) == 0.25
