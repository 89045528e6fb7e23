"""Weight clipping in Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.optim import Optimizer

from weightclip._ranges import Kappa
from weightclip.clipping import Clipper
from weightclip.integrations._attach import attach_once, check_options


class ClipCallback(BaseCallback):
    """Clip the weights of every network that the agent trains.

    When training starts, a clipper is attached to each optimizer of the policy (of the actor and of the critic in SAC,
    TD3 and TQC), with bounds from the policy's layers: log-stds, including those of gSDE, are skipped. Calling `learn`
    again keeps the clippers. After `load`, pass the callback to `learn` again: it resumes with the saved kappa, and
    training without it warns.

    Args:
        kappa: the range, as in `weightclip.clip_weights`; a loaded agent keeps the kappa that was saved with it.
        options: `bounds`, `include`, `exclude`, `clip_output_layers`, `every` and `track_clipped` of
            `weightclip.clip_weights`.

    Attributes:
        clippers: the attached clippers, once training has started.

    Examples:
        agent = PPO("MlpPolicy", "Hopper-v4")
        agent.learn(1_000_000, callback=ClipCallback(kappa=3.0))
    """

    def __init__(self, kappa: Kappa, **options: Any) -> None:
        super().__init__()
        self.kappa, self.options = kappa, check_options(kappa, options)
        self.clippers: list[Clipper] = []

    def _on_training_start(self) -> None:
        policy: nn.Module = self.model.policy
        self.clippers = attach_once(optimizers_of(policy), policy, self.kappa, self.options)

    def _on_step(self) -> bool:
        return True


def optimizers_of(policy: nn.Module) -> list[Optimizer]:
    """The distinct optimizers in the attribute `optimizer` of a policy and its submodules."""
    found = [vars(module).get("optimizer") for module in policy.modules()]
    return list({id(one): one for one in found if isinstance(one, Optimizer)}.values())
