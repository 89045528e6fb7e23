"""DQN (Mnih et al., 2015): the target of Q(s, a) is R + gamma^m max_a' Q'(s', a'), R the return of the m steps to s'.

Q' is the target network, a copy of Q that is updated periodically. Double DQN (van Hasselt et al., 2016): a' maximizes
Q instead of Q'.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from weightclip.lab.experiments.dqn.agent import Agent, Transitions
from weightclip.lab.networks.q_networks import QNetwork


class DQN(Agent):
    """Learns the value of each action; explores with random actions."""

    def network(self, channels: int, size: Sequence[int], actions: int) -> nn.Module:
        return QNetwork(channels, size, actions, self.config.scale_pixels, self.config.seed)

    def q_values(self, outputs: Tensor) -> Tensor:
        return outputs

    @torch.no_grad()
    def targets(self, batch: Transitions) -> Tensor:
        """R + gamma^m Q'(s', a'), [n]; R where the episode ended."""
        following = self.target(batch.next_states)
        best = (self.online(batch.next_states) if self.config.double else following).argmax(1, keepdim=True)
        targets: Tensor = batch.returns + batch.discounts * following.gather(1, best).squeeze(1)
        return targets

    def errors(self, outputs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
        """e^2 with e = Q(s, a) - target, or the Huber loss: e^2 / 2 if |e| <= 1, else |e| - 1/2."""
        chosen = outputs.gather(1, actions.unsqueeze(1)).squeeze(1)
        if self.config.loss == "huber":
            return smooth_l1_loss(chosen, targets, reduction="none")
        return (chosen - targets).square()
