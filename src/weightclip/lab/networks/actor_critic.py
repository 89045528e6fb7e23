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

    `weights` [learners, entries] contains all parameters, with their gradients. The parameters of each network are
    views of it, so an optimizer with regularizers can be used for each network as for any module.

    Args:
        members: the networks, which share memory with the stack afterwards.
    """

    def __init__(self, members: Sequence[ActorCritic]) -> None:
        self.members = list(members)
        self._shapes = {name: one.shape for name, one in members[0].named_parameters()}
        rows = [torch.cat([p.detach().flatten() for p in member.parameters()]) for member in members]
        self.weights = torch.stack(rows).requires_grad_()
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

    def _split(self, whole: Tensor) -> dict[str, Tensor]:
        # A single operation, so that its gradient is a single one.
        parts = torch.split(whole, [shape.numel() for shape in self._shapes.values()], dim=1)
        return {name: part.view(-1, *shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


def layers_of(tensors: Mapping[str, Tensor], network: str) -> Layers:
    """The layers of `actor_mean` or `critic` among a stack's tensors."""
    names = [name.removesuffix("weight") for name in tensors if name.startswith(f"{network}.")]
    return [(tensors[f"{name}weight"], tensors[f"{name}bias"]) for name in names if name.endswith(".")]


def batched(layers: Layers, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Apply stacked layers with tanh between them: [s, n, in] -> [s, n, out], and the outputs of the tanh units."""
    units: list[Tensor] = []
    for weight, bias in layers[:-1]:
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2)).tanh()
        units.append(x)
    weight, bias = layers[-1]
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2)), units
