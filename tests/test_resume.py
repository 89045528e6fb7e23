"""Resuming in libraries that load the optimizer before clipping can be attached."""

import copy
import io
from typing import Any

import torch
from torch import nn

import weightclip as wc


def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    return model, torch.optim.Adam(groups, lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        (model(x) - 3).square().sum().backward()
        optimizer.step()


def clip(model: nn.Module, optimizer: torch.optim.Optimizer, kappa: float = 0.5) -> wc.Clipper:
    return wc.clip_weights(optimizer, model, kappa, bounds="init", every=3)


def checkpoint() -> tuple[nn.Sequential, wc.Clipper, Any]:
    """Return a model after 20 steps and its checkpoint after 7."""
    model, optimizer = make()
    clipper = clip(model, optimizer)
    train(model, optimizer, range(7))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    train(model, optimizer, range(7, 20))
    file.seek(0)
    return model, clipper, torch.load(file, weights_only=True)


def test_attaching_after_loading_resumes_like_attaching_before_loading() -> None:
    whole, clipper, saved = checkpoint()
    for attach_first in (True, False):
        model, optimizer = make()
        if attach_first:
            resumed = clip(model, optimizer, kappa=9.0)
        weights, state = copy.deepcopy(saved)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        if not attach_first:
            resumed = clip(model, optimizer, kappa=9.0)
        train(model, optimizer, range(7, 20))
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
        assert resumed.bounds == clipper.bounds
        assert all("weightclip" not in group for group in optimizer.param_groups)


def test_loaded_bounds_are_used_once() -> None:
    """A newly attached clipper measures new bounds."""
    _, clipper, (weights, state) = checkpoint()
    model, optimizer = make()
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    clip(model, optimizer).remove()
    assert clip(model, optimizer).bounds != clipper.bounds


def test_the_parameter_groups_are_sufficient() -> None:
    """`torch.distributed.checkpoint` keeps only the parameter groups."""
    _, clipper, (_, state) = checkpoint()
    del state["weightclip"]
    model, optimizer = make()
    resumed = clip(model, optimizer, kappa=9.0)
    optimizer.load_state_dict(state)
    assert resumed.bounds == clipper.bounds
    assert resumed.state_dict()["steps"] == 7


def test_plain_clipping_adds_only_kappa_to_the_groups() -> None:
    model, optimizer = make()
    wc.clip_weights(optimizer, model, kappa=1.0)
    assert "weightclip" not in optimizer.state_dict()["param_groups"][0]
