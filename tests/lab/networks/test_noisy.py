import math

import pytest
import torch

from weightclip.bounds import resolve_bounds
from weightclip.clipping import clip_weights
from weightclip.lab.networks.q_networks import NoisyLinear, draw_noise, noise_disabled


def test_a_noisy_layer_equals_the_papers_with_a_noise_matrix() -> None:
    layer = NoisyLinear(5, 3, sigma=0.5)
    layer.draw_noise(torch.Generator().manual_seed(0))
    x = torch.randn(7, 5)
    noise = torch.outer(layer.noise_out, layer.noise_in)
    weight = layer.mu_weight + layer.sigma_weight * noise
    bias = layer.mu_bias + layer.sigma_bias * layer.noise_out
    torch.testing.assert_close(layer(x), x @ weight.T + bias)


def test_noise_is_the_signed_square_root_of_normal_noise() -> None:
    layer = NoisyLinear(20_000, 2)
    layer.draw_noise(torch.Generator().manual_seed(0))
    drawn = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer.noise_in, drawn.sign() * drawn.abs().sqrt())
    assert layer.noise_in.mean().item() == pytest.approx(0, abs=0.02)
    assert layer.noise_in.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)


def test_initial_weights_match_the_paper() -> None:
    layer = NoisyLinear(100, 50, sigma=0.5)
    assert layer.mu_weight.abs().max().item() <= 0.1
    assert layer.mu_weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)
    assert layer.sigma_weight.unique().tolist() == pytest.approx([0.05])
    assert layer.sigma_bias.unique().tolist() == pytest.approx([0.05])


def test_noise_of_all_layers_is_drawn_and_disabled() -> None:
    network = torch.nn.Sequential(NoisyLinear(4, 4), torch.nn.ReLU(), NoisyLinear(4, 2))
    x = torch.ones(1, 4)
    quiet = network(x)
    draw_noise(network, torch.Generator().manual_seed(1))
    loud = network(x)
    assert not torch.equal(quiet, loud)
    assert torch.equal(loud, network(x))
    with noise_disabled(network):
        assert torch.equal(network(x), quiet)
    assert torch.equal(network(x), loud)


def test_means_and_scales_have_the_same_bounds() -> None:
    layer = NoisyLinear(4, 2)
    assert {name: bound.s for name, bound in resolve_bounds(layer).items()} == dict.fromkeys(
        ("mu_weight", "mu_bias", "sigma_weight", "sigma_bias"), 0.5
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=100.0)
    clip_weights(optimizer, layer, kappa=0.5)
    layer.draw_noise(torch.Generator().manual_seed(0))
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert all(p.abs().max() <= 0.25 for p in layer.parameters())
