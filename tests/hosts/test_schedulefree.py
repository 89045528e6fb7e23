"""Schedule-Free optimizers: the weights are in the box in training, in evaluation and in checkpoints."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

schedulefree = pytest.importorskip("schedulefree")
pytestmark = pytest.mark.host

KAPPA, BOX = 1.0, 0.25  # of a layer with 16 inputs


def train(model: nn.Module, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 3 * x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        if "Closure" in type(optimizer).__name__:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def largest(tensor: torch.Tensor) -> float:
    return tensor.abs().max().item()


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", ["SGDScheduleFree", "AdamWScheduleFree", "RAdamScheduleFree"])
def test_training_and_evaluation_weights_are_in_the_box(name: str, foreach: bool) -> None:
    model = nn.Linear(16, 1)
    optimizer = getattr(schedulefree, name)(model.parameters(), lr=0.05, foreach=foreach, weight_decay=0.01)
    wc.clip_weights(optimizer, model, KAPPA)
    optimizer.train()
    train(model, optimizer, 300)
    assert 0.99 * BOX < largest(model.weight) <= BOX
    optimizer.eval()
    assert 0.99 * BOX < largest(model.weight) <= BOX
    assert largest(optimizer.state[model.weight]["z"]) <= BOX
    optimizer.train()
    assert largest(model.weight) <= BOX


def test_without_clipping_the_weights_leave_the_box() -> None:
    """A check that the other tests can fail."""
    model = nn.Linear(16, 1)
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)
    optimizer.train()
    train(model, optimizer, 300)
    optimizer.eval()
    assert largest(model.weight) > 2.0


@pytest.mark.parametrize("name", ["SGDScheduleFreeClosure", "AdamWScheduleFreeClosure", "RAdamScheduleFreeClosure"])
def test_variants_with_a_closure(name: str) -> None:
    model = nn.Linear(16, 1)
    optimizer = getattr(schedulefree, name)(model.parameters(), lr=0.05)
    wc.clip_weights(optimizer, model, KAPPA)
    train(model, optimizer, 100)
    assert largest(model.weight) == largest(optimizer.state[model.weight]["z"]) == BOX


@pytest.mark.parametrize("name", ["SGDScheduleFreeReference", "AdamWScheduleFreeReference"])
def test_reference_variants(name: str) -> None:
    model = nn.Linear(16, 1)
    optimizer = getattr(schedulefree, name)(model.parameters(), lr=0.05)
    wc.clip_weights(optimizer, model, KAPPA)
    optimizer.train()
    train(model, optimizer, 100)
    assert largest(model.weight) <= BOX
    optimizer.eval()
    assert largest(model.weight) == BOX


def test_a_resumed_run_has_the_same_weights() -> None:
    def make() -> tuple[nn.Linear, Any]:
        torch.manual_seed(0)
        model = nn.Linear(16, 1)
        optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)
        wc.clip_weights(optimizer, model, KAPPA, bounds="init", every=3)
        optimizer.train()
        return model, optimizer

    model, optimizer = make()
    train(model, optimizer, 100)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 50)
    resumed, other = make()
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(resumed, other, 50)
    assert torch.equal(model.weight, resumed.weight)


def test_the_wrapper_that_is_not_an_optimizer_raises_an_error() -> None:
    model = nn.Linear(16, 1)
    optimizer = schedulefree.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.01))
    with pytest.raises(TypeError, match=r"got ScheduleFreeWrapper, expected a torch\.optim\.Optimizer"):
        wc.clip_weights(optimizer, model, KAPPA)
