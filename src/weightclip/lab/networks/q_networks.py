"""The Q-networks of DQN and Rainbow, for frames of Atari and MinAtar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from weightclip.bounds import register_bound

LARGEST = 255.0
"""Maximum value of a pixel."""


class FlattenPixels(nn.Flatten):
    """[n, channels, height, width] -> [n, height * width * channels]; a view if channels are last in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1))


def nature_torso(channels: int) -> tuple[nn.Sequential, int]:
    """The torso of Mnih et al. (2015), [n, channels, 84, 84] -> [n, 3136], and its output size."""
    return (
        nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(inplace=True),
            FlattenPixels(),
        ),
        3136,
    )


def minatar_torso(channels: int) -> tuple[nn.Sequential, int]:
    """The torso of Young and Tian (2019), [n, channels, 10, 10] -> [n, 1024], and its output size."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU(inplace=True), FlattenPixels()), 1024


TORSOS: dict[tuple[int, ...], tuple[Callable[[int], tuple[nn.Sequential, int]], int]] = {
    (84, 84): (nature_torso, 512),
    (10, 10): (minatar_torso, 128),
}
"""Height and width of a frame -> torso, and units of the following hidden layer."""


class QNetwork(nn.Module):
    """Integer frames [n, channels, height, width] -> value of each action [n, actions].

    Args:
        channels, size: channels and size of the frames; `size` is a key of `TORSOS`.
        actions: number of actions.
        scaled: whether to divide pixels by 255; the paper's networks do not.
        seed: seed of the initial weights; the global generator is unchanged.
    """

    def __init__(self, channels: int, size: Sequence[int], actions: int, scaled: bool = False, seed: int = 0) -> None:
        super().__init__()
        make, hidden = TORSOS[tuple(size)]
        self.scale = 1 / LARGEST if scaled else 1.0
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.torso, features = make(channels)
            self.head = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, actions))

    def forward(self, frames: Tensor) -> Tensor:
        """[n, channels, height, width] -> [n, actions]."""
        values: Tensor = self.head(self.torso(as_input(frames, self.scale)))
        return values


class RainbowNetwork(nn.Module):
    """Frames [n, channels, height, width] -> log-probabilities of the returns of each action [n, actions, atoms].

    Dueling: with advantages A [actions, atoms] and values V [atoms], the logits are V + A - mean over actions of A.

    Args:
        channels, size, actions, scaled, seed: see `QNetwork`.
        atoms: number of atoms of the distribution.
        dueling: whether to use V + A instead of A alone.
        noisy: whether to use noisy layers, with the initial standard deviation `sigma`, instead of linear ones.
    """

    def __init__(
        self,
        channels: int,
        size: Sequence[int],
        actions: int,
        scaled: bool = False,
        seed: int = 0,
        atoms: int = 51,
        dueling: bool = True,
        noisy: bool = True,
        sigma: float = 0.1,
    ) -> None:
        super().__init__()
        make, hidden = TORSOS[tuple(size)]
        self.scale = 1 / LARGEST if scaled else 1.0
        self.shape = (actions, atoms)

        def layer(inputs: int, outputs: int) -> nn.Module:
            return NoisyLinear(inputs, outputs, sigma) if noisy else nn.Linear(inputs, outputs)

        def head(outputs: int) -> nn.Sequential:
            return nn.Sequential(layer(features, hidden), nn.ReLU(inplace=True), layer(hidden, outputs))

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.torso, features = make(channels)
            self.advantage = head(actions * atoms)
            self.value = head(atoms) if dueling else None

    def forward(self, frames: Tensor) -> Tensor:
        """[n, channels, height, width] -> [n, actions, atoms]."""
        features = self.torso(as_input(frames, self.scale))
        logits: Tensor = self.advantage(features).view(-1, *self.shape)
        if self.value is not None:
            logits = self.value(features).unsqueeze(1) + logits - logits.mean(1, keepdim=True)
        return logits.log_softmax(2)


def as_input(frames: Tensor, scale: float) -> Tensor:
    """Convert integer frames to scaled floats for convolutions."""
    return frames.float() if scale == 1.0 else frames.float() * scale


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * e_w) x + mu_b + sigma_b * e_b, with noise e_w = f(e_out) f(e_in)^T and e_b = f(e_out).

    f(x) = sign(x) sqrt(|x|), and e_in, e_out are normal. [n, inputs] -> [n, outputs]. The noise is constant until
    `draw_noise`; `noise_disabled` turns it off.

    Args:
        inputs, outputs: numbers of inputs and outputs.
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
        """Draw new noise."""
        for noise in (self.noise_in, self.noise_out):
            drawn = torch.randn(noise.shape, generator=generator)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs] -> [n, outputs]."""
        # (sigma * e_out e_in^T) x = e_out * (sigma (e_in * x)) needs no noise matrix.
        noisy = linear(x * self.noise_in, self.sigma_weight) * self.noise_out
        return linear(x, self.mu_weight, self.mu_bias) + noisy + self.sigma_bias * self.noise_out


def noisy_layers(network: nn.Module) -> list[NoisyLinear]:
    """All noisy layers of a network, in order."""
    return [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]


def draw_noise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw new noise in all noisy layers of a network."""
    for layer in noisy_layers(network):
        layer.draw_noise(generator)


@contextmanager
def noise_disabled(*networks: nn.Module) -> Iterator[None]:
    """Disable the noise of all noisy layers within a block; it is restored afterward."""
    layers = [layer for network in networks for layer in noisy_layers(network)]
    noises = [noise for layer in layers for noise in (layer.noise_in, layer.noise_out)]
    before = [noise.clone() for noise in noises]
    for noise in noises:
        noise.zero_()
    try:
        yield
    finally:
        for noise, saved in zip(noises, before, strict=True):
            noise.copy_(saved)


# The means and scales of the noise are both initialized within 1/sqrt(fan_in), and have the same bounds.
register_bound(NoisyLinear, lambda layer, name: 1 / math.sqrt(layer.in_features))
