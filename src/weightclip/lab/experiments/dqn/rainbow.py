"""Rainbow (Hessel et al., 2018): DQN with six extensions.

Double and dueling networks, n-step returns, prioritized replay with importance weights, a distributional value function
(Bellemare et al., 2017: the return of an action as a distribution on atoms z_1 < ... < z_k), and noisy layers for
exploration.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weightclip.lab.checkpoint import Arrays
from weightclip.lab.experiments.dqn.agent import Agent, Transitions, Update
from weightclip.lab.experiments.dqn.config import Config
from weightclip.lab.experiments.dqn.replay_buffer import Batch
from weightclip.lab.networks.q_networks import RainbowNetwork, draw_noise
from weightclip.lab.optimizers import noise_seed

_LAYERS = 5
"""Separates the noise of layers from the other random streams of the same seed."""


class Rainbow(Agent):
    """Learns the distribution of each action's return."""

    def __init__(self, config: Config, frame: Sequence[int], actions: int, device: torch.device) -> None:
        super().__init__(config, frame, actions, device)
        self.atoms = torch.linspace(config.v_min, config.v_max, config.atoms, device=device)
        self._noise = torch.Generator().manual_seed(noise_seed(config.seed, _LAYERS))

    def network(self, channels: int, size: Sequence[int], actions: int) -> nn.Module:
        c = self.config
        return RainbowNetwork(
            channels, size, actions, c.scale_pixels, c.seed, c.atoms, c.dueling, c.noisy, sigma=c.noisy_sigma
        )

    def q_values(self, outputs: Tensor) -> Tensor:
        """The mean of each action's distribution."""
        return (outputs.exp() * self.atoms).sum(2)

    def learn(self, batch: Batch) -> Update:
        """One update with new noise in both networks; the noise is kept while acting."""
        draw_noise(self.online, self._noise)
        draw_noise(self.target, self._noise)
        return super().learn(batch)

    @torch.no_grad()
    def targets(self, batch: Transitions) -> Tensor:
        """The distribution of R + gamma^m Z'(s', a') on the atoms, [n, atoms]; a' maximizes Q (double) or Q'."""
        following = self.target(batch.next_states)
        chooser = self.online(batch.next_states) if self.config.double else following
        chosen = of_actions(following, self.q_values(chooser).argmax(1)).exp()
        values = batch.returns.unsqueeze(1) + batch.discounts.unsqueeze(1) * self.atoms
        return project(chosen, values, self.atoms)

    def state(self) -> Arrays:
        return {**super().state(), "noise": self._noise.get_state().numpy()}

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self._noise.set_state(torch.tensor(state["noise"]))

    def errors(self, outputs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy: - sum over atoms of target * log-probability."""
        return -(targets * of_actions(outputs, actions)).sum(1)


def of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """[n, actions, atoms], [n] -> [n, atoms]."""
    return outputs.gather(1, actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])).squeeze(1)


def project(probabilities: Tensor, values: Tensor, atoms: Tensor) -> Tensor:
    """Project a distribution on any values onto the atoms (Bellemare et al., 2017).

    The probability of a value is split linearly between the two nearest atoms. Values beyond the first or the last atom
    count as that atom. [n, k], [n, k], [k] -> [n, k].

    Examples:
        >>> project(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 9.0, 9.0]]), torch.tensor([0.0, 1.0, 2.0]))
        tensor([[0.3750, 0.1250, 0.5000]])
    """
    step = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    at = ((values.clamp(atoms[0], atoms[-1]) - atoms[0]) / step).clamp(0, len(atoms) - 1)
    low = at.floor().clamp(max=len(atoms) - 2)
    upper = at - low
    found = torch.zeros_like(probabilities)
    found.scatter_add_(1, low.long(), probabilities * (1 - upper))
    return found.scatter_add_(1, low.long() + 1, probabilities * upper)
