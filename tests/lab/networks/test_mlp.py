import math

import pytest
import torch
from torch import nn

from weightclip.lab.networks.mlp import mlp


def test_the_seed_determines_the_weights_and_the_global_generator_is_not_used() -> None:
    state = torch.get_rng_state()
    one, same, other = mlp(5, (4,), 3, seed=1), mlp(5, (4,), 3, seed=1), mlp(5, (4,), 3, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters()))
    assert not torch.equal(one[0].weight, other[0].weight)


def test_the_weights_have_pytorchs_default_initialization() -> None:
    torch.manual_seed(7)
    theirs = nn.Sequential(nn.Linear(5, 4), nn.LeakyReLU(), nn.Linear(4, 3))
    assert all(torch.equal(a, b) for a, b in zip(mlp(5, (4,), 3, seed=7).parameters(), theirs.parameters()))
    assert mlp(100, (50,), 3)[0].weight.abs().max() <= 1 / math.sqrt(100)


def test_in_float64_the_weights_are_the_same() -> None:
    single, double = mlp(5, (4,), 3), mlp(5, (4,), 3, dtype=torch.float64)
    assert all(
        q.dtype == torch.float64 and torch.equal(p.double(), q)
        for p, q in zip(single.parameters(), double.parameters())
    )


@pytest.mark.parametrize(("name", "kind"), [("leaky_relu", nn.LeakyReLU), ("relu", nn.ReLU), ("tanh", nn.Tanh)])
def test_any_depth_with_the_activation_between_the_layers(name: str, kind: type[nn.Module]) -> None:
    model = mlp(6, (5, 4, 3), 2, name)
    assert [type(layer) for layer in model] == [nn.Linear, kind] * 3 + [nn.Linear]
    assert [tuple(p.shape) for p in model.parameters() if p.ndim == 2] == [(5, 6), (4, 5), (3, 4), (2, 3)]
    assert mlp(6, (), 2)(torch.zeros(1, 6)).shape == (1, 2)


def test_an_unknown_activation_raises_an_error() -> None:
    with pytest.raises(ValueError, match="activation: got 'gelu'"):
        mlp(6, (5,), 2, "gelu")
