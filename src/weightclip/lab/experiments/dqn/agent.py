"""The base class of DQN and Rainbow: two networks, an optimizer with its regularizers, and an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weightclip.lab.checkpoint import Arrays, flatten, load_training_state, training_state, unflatten
from weightclip.lab.device import to_device
from weightclip.lab.experiments.dqn.config import Config
from weightclip.lab.experiments.dqn.replay_buffer import Batch

_TARGET = "target/"


@dataclass(frozen=True)
class Transitions:
    """A batch on the device.

    Args:
        states, next_states: [n, channels, height, width].
        actions: [n].
        returns, discounts, weights: [n]; see `Batch`.
    """

    states: Tensor
    next_states: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Update:
    """The result of an update: the loss [], the errors [n], and the outputs of the online network [n, ...]."""

    loss: Tensor
    errors: Tensor
    outputs: Tensor


class Agent(ABC):
    """Base class of agents that learn action values.

    Args:
        config: a resolved configuration.
        frame: the shape of a frame, [channels, height, width].
        actions: the number of actions.
        device: device of the networks.
    """

    def __init__(self, config: Config, frame: Sequence[int], actions: int, device: torch.device) -> None:
        self.config, self.actions, self.device = config, actions, device
        channels, *size = frame
        network = self.network(channels * config.stack, size, actions)
        self.online = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.target = deepcopy(self.online).requires_grad_(False)
        self.optimizer = config.make_optimizer(self.online, config.bounds, fused=True)
        self.updates = 0

    @abstractmethod
    def network(self, channels: int, size: Sequence[int], actions: int) -> nn.Module:
        """The network, initialized with the seed."""

    @abstractmethod
    def q_values(self, outputs: Tensor) -> Tensor:
        """The value of each action from the outputs of a network: [n, ...] -> [n, actions]."""

    def values(self, states: Tensor) -> Tensor:
        """The value of each action under the online network: [n, channels, height, width] -> [n, actions]."""
        return self.q_values(self.online(states))

    @abstractmethod
    def targets(self, batch: Transitions) -> Tensor:
        """The targets of the online network, [n, ...]."""

    @abstractmethod
    def errors(self, outputs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
        """The loss of each transition, [n], from the outputs of the online network."""

    def learn(self, batch: Batch) -> Update:
        """One update on a batch."""
        transitions = self.to_device(batch)
        targets = self.targets(transitions)
        outputs = self.online(transitions.states)
        errors = self.errors(outputs, transitions.actions, targets)
        loss = (transitions.weights * errors).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.config.target_update_interval == 0:
            self.target.load_state_dict(self.online.state_dict())
        return Update(loss.detach(), errors.detach(), outputs.detach())

    def act(self, states: NDArray[np.uint8], epsilon: float, generator: np.random.Generator) -> NDArray[np.int64]:
        """Epsilon-greedy actions, [e]: random with probability epsilon, else the best ones."""
        number = len(states)
        random = generator.random(number) < epsilon
        actions = generator.integers(self.actions, size=number)
        if not random.all():
            with torch.no_grad():
                best = self.values(torch.from_numpy(states).to(self.device)).argmax(1).cpu().numpy()
            actions = np.where(random, actions, best)
        return actions

    def to_device(self, batch: Batch) -> Transitions:
        """The batch on the device, in one transfer; frames as floats."""
        frames = batch.states.transpose(0, 1, 3, 4, 2)  # the order in memory
        columns = (frames, batch.actions, batch.returns, batch.discounts, batch.weights)
        states, *numbers = to_device(columns, self.device)
        return Transitions(*states.permute(0, 1, 4, 2, 3).float(), *numbers)

    def state(self) -> Arrays:
        """Both networks, and the optimizer with its regularizers."""
        return {
            **training_state(self.online, self.optimizer),
            **flatten(self.target.state_dict(), _TARGET),
            "updates": np.array(self.updates),
        }

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`."""
        training = {name: array for name, array in state.items() if name.startswith(("model/", "optimizer/"))}
        load_training_state(self.online, self.optimizer, training)
        target = {name.removeprefix(_TARGET): array for name, array in state.items() if name.startswith(_TARGET)}
        self.target.load_state_dict(unflatten(target))
        self.updates = int(state["updates"])
