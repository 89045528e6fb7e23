"""Noisy layers (Fortunato et al., 2018): exploration by weights that are drawn anew."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from weightclip.bounds import register_bound


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * e_w) x + mu_b + sigma_b * e_b, with noise e_w = f(e_out) f(e_in)^T and e_b = f(e_out).

    f(x) = sign(x) sqrt(|x|), and e_in, e_out are normal. [n, inputs] -> [n, outputs]. The noise stays until
    `draw_noise`; there is none within `noise_disabled`.

    Args:
        inputs, outputs: their numbers.
        sigma: sigma_w and sigma_b start at sigma / sqrt(inputs).
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.in_features, self.out_features = inputs, outputs
        self.mu_weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.mu_bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.sigma_weight = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.sigma_bias = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))

    def draw_noise(self, generator: torch.Generator) -> None:
        """Other noise from now on."""
        for noise in (self.noise_in, self.noise_out):
            drawn = torch.randn(noise.shape, generator=generator)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs] -> [n, outputs]."""
        # (sigma * e_out e_in^T) x = e_out * (sigma (e_in * x)): without a matrix of noise.
        noisy = linear(x * self.noise_in, self.sigma_weight) * self.noise_out
        return linear(x, self.mu_weight, self.mu_bias) + noisy + self.sigma_bias * self.noise_out


def noisy_layers(network: nn.Module) -> list[NoisyLinear]:
    """All of them, in the network's order."""
    return [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]


def draw_noise(network: nn.Module, generator: torch.Generator) -> None:
    """Other noise in all noisy layers."""
    for layer in noisy_layers(network):
        layer.draw_noise(generator)


@contextmanager
def noise_disabled(*networks: nn.Module) -> Iterator[None]:
    """No noise in any layer meanwhile; afterwards that of before."""
    layers = [layer for network in networks for layer in noisy_layers(network)]
    noises = [noise for layer in layers for noise in (layer.noise_in, layer.noise_out)]
    before = [noise.clone() for noise in noises]
    for noise in noises:
        noise.zero_()
    try:
        yield
    finally:
        for noise, kept in zip(noises, before, strict=True):
            noise.copy_(kept)


# Means and scales of the noise alike start within 1/sqrt(fan_in), and so they are clipped alike.
register_bound(NoisyLinear, lambda layer, name: 1 / math.sqrt(layer.in_features))
