"""The fully connected network of the streaming problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from weightclip._validation import check_name
from weightclip.lab.networks import ACTIVATIONS


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    activation: str = "leaky_relu",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    """Linear - activation - ... - Linear: [batch, inputs] -> [batch, outputs].

    The weights are PyTorch's default initialization with this seed, W ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in)). The global
    generator is unchanged. They are drawn in float32, so a float64 network has the same weights.

    Examples:
        >>> mlp(784, (300, 150), 10)
        Sequential(
          (0): Linear(in_features=784, out_features=300, bias=True)
          (1): LeakyReLU(negative_slope=0.01)
          (2): Linear(in_features=300, out_features=150, bias=True)
          (3): LeakyReLU(negative_slope=0.01)
          (4): Linear(in_features=150, out_features=10, bias=True)
        )
    """
    check_name("activation", activation, tuple(ACTIVATIONS))
    widths = (inputs, *hidden, outputs)
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        for i, (fan_in, units) in enumerate(pairwise(widths)):
            layers += [getattr(nn, ACTIVATIONS[activation])()] if i else []
            layers.append(nn.Linear(fan_in, units, dtype=torch.float32))
    return nn.Sequential(*layers).to(dtype)
