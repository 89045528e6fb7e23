"""Every PyTorch implementation reproduces the reference values."""

import pytest
import torch
from torch import nn

import weightclip as wc
from vectors import GRADIENTS, NOISE, VECTORS, WEIGHTS
from weightclip.regularizers.shrink_and_perturb import ShrinkAndPerturb


def attach(name: str, optimizer: torch.optim.Optimizer, model: nn.Module, settings: dict[str, float]) -> None:
    settings = dict(settings)
    kappa = settings.pop("kappa", None)
    if kappa is not None:
        wc.clip_weights(optimizer, model, kappa=kappa)
    if "l2_init" in name:
        wc.l2_init(optimizer, **settings, variant="paper" if "paper" in name else "kumar")
    elif "shrink" in name:
        wc.shrink_and_perturb(optimizer, **settings, variant="paper" if "paper" in name else "ash")
    elif "l2" in name:
        wc.l2(optimizer, **settings)


@pytest.mark.parametrize("name", VECTORS)
def test_reference_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = VECTORS[name]
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([WEIGHTS], dtype=torch.float64))
    if name == "madam":
        optimizer: torch.optim.Optimizer = wc.Madam(model.parameters(), lr=vector.lr, **vector.settings)
    else:
        make = torch.optim.SGD if name.startswith("sgd") else torch.optim.Adam
        optimizer = make(model.parameters(), lr=vector.lr)
        attach(name, optimizer, model, vector.settings)
    for step, (gradient, expected) in enumerate(zip(GRADIENTS, vector.after, strict=True)):
        noise = torch.tensor([NOISE[step]], dtype=torch.float64)
        monkeypatch.setattr(ShrinkAndPerturb, "_noise", lambda self, p, noise=noise: noise)
        model.weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        torch.testing.assert_close(
            model.weight.detach(), torch.tensor([expected], dtype=torch.float64), rtol=1e-12, atol=1e-15
        )


def test_the_vectors_have_weights_at_and_inside_their_bounds() -> None:
    last = VECTORS["sgd+clip"].after[-1]
    assert any(abs(w) == 1.1 * 0.5 for w in last)
    assert any(abs(w) < 1.1 * 0.5 for w in last)
