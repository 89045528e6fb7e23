"""The networks of PPO: separate policy and value networks, for one learner or several in lockstep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2), 0.01, 1.0
"""Gains of the orthogonal initialization: hidden layers, and the two heads."""

Layers = Sequence[tuple[Tensor, Tensor]]
"""Stacked weights [s, out, in] and biases [s, out] of each layer, in order."""


class ActorCritic(nn.Module):
    """Tanh networks [n, observations] -> mean action [n, actions] and value [n, 1], and a log-std for each action.

    Args:
        observations, actions: dimensions of observations and actions.
        hidden: units of each hidden layer of both networks.
        seed: seed of the initial weights; the global generator is unchanged.
    """

    def __init__(self, observations: int, actions: int, hidden: Sequence[int] = (64, 64), seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.critic = _tanh_network((observations, *hidden, 1), VALUE_GAIN)
            self.actor_mean = _tanh_network((observations, *hidden, actions), POLICY_GAIN)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Observations [n, d] -> mean actions [n, a] and values [n, 1]."""
        return self.actor_mean(x), self.critic(x)


def _tanh_network(widths: Sequence[int], last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layer = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(layer.weight, last_gain if i == len(widths) - 2 else GAIN)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Stack:
    """Several networks of the same shape in one tensor, so that they share batched products.

    `weights` [learners, entries] contains all parameters, with their gradients; its rows end with some zeros. The
    parameters of each network are views of it, so an optimizer with regularizers can be used for each network as for
    any module.

    Args:
        members: the networks, which share memory with the stack afterward.
    """

    def __init__(self, members: Sequence[ActorCritic]) -> None:
        self.members = list(members)
        self._shapes = {name: one.shape for name, one in members[0].named_parameters()}
        rows = torch.stack([torch.cat([p.detach().flatten() for p in member.parameters()]) for member in members])
        self._entries = rows.shape[1]
        self.weights = torch.zeros(len(rows), aligned(self._entries))
        self.weights[:, : self._entries] = rows
        self.weights.requires_grad_()
        self.gradients = torch.zeros_like(self.weights)
        self.weights.grad = self.gradients
        for s, member in enumerate(members):
            for name, stacked in self._split(self.weights.detach()).items():
                member.get_parameter(name).data = stacked[s]
            for name, stacked in self._split(self.gradients).items():
                member.get_parameter(name).grad = stacked[s]

    def tensors(self) -> dict[str, Tensor]:
        """The parameters of all networks by name, [learners, ...] each: views of the weights."""
        return self._split(self.weights)

    def row(self, s: int) -> Tensor:
        """All parameters of network s, [parameters]: a view without gradient."""
        return self.weights.detach()[s, : self._entries]

    def _split(self, whole: Tensor) -> dict[str, Tensor]:
        # A single operation, so that its gradient is a single one.
        *parts, _ = torch.split(
            whole, [*map(torch.Size.numel, self._shapes.values()), whole.shape[1] - self._entries], 1
        )
        return {name: part.view(-1, *shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


ALIGNMENT = 16
"""Numbers in 64 bytes. Matrix products of small matrices round differently if their memory is aligned differently."""


def aligned(entries: int) -> int:
    """The number of entries of a row, rounded up so that all rows of a matrix have the same alignment."""
    return -(-entries // ALIGNMENT) * ALIGNMENT


def layers_of(tensors: Mapping[str, Tensor], network: str) -> Layers:
    """The layers of `actor_mean` or `critic` among a stack's tensors."""
    names = [name.removesuffix("weight") for name in tensors if name.startswith(f"{network}.")]
    return [(tensors[f"{name}weight"], tensors[f"{name}bias"]) for name in names if name.endswith(".")]


def batched(layers: Layers, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Apply stacked layers with tanh between them: [s, n, in] -> [s, n, out], and the outputs of the tanh units."""
    units: list[Tensor] = []
    for weight, bias in layers[:-1]:
        x = _batched_linear(weight, bias, x).tanh()
        units.append(x)
    return _batched_linear(*layers[-1], x), units


def _batched_linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """[s, out, in], [s, out], [s, n, in] -> [s, n, out]."""
    if weight.shape[:2] == (1, 1):
        # A single product with a vector rounds differently: a learner alone would differ from itself in lockstep.
        return torch.baddbmm(bias.unsqueeze(1), x.expand(2, -1, -1), weight.expand(2, -1, -1).transpose(1, 2))[:1]
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
