"""Accelerate wraps the optimizer and only calls the inner step."""

import pytest
import torch
from torch import nn

import weightclip as wc

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.host


@pytest.mark.parametrize("when", ["before", "after"])
def test_clipping_is_attached_before_or_after_prepare(when: str) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    if when == "before":
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    if when == "after":
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
    assert wc.find_clipper(optimizer) is clipper
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward((model(torch.randn(8, 16)) - 9).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        assert model[0].weight.abs().max() <= 0.25
    assert model[0].weight.abs().max() == 0.25
    assert "weightclip" in optimizer.state_dict()
    assert "step" not in optimizer.__dict__  # nothing is patched
