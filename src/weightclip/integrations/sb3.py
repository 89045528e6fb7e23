"""Weight clipping in Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.optim import Optimizer

from weightclip._ranges import ByLayer, Graded, Kappa, read_kappa
from weightclip.clipping import Clipper
from weightclip.integrations._attach import attach_once, check_options

HEADS = re.compile(r"action_net|value_net|q_net|quantile_net|mu|log_std|qf\d+")
"""Names of the networks, or of their last layers, in policies of Stable-Baselines3 and sb3-contrib."""


class ClipCallback(BaseCallback):
    """Clip the weights of every network that the agent trains.

    When training starts, a clipper is attached to each optimizer of the policy (of the actor and of the critic in SAC,
    TD3 and TQC), with bounds from the policy's layers: log-stds, including those of gSDE, are skipped. Calling `learn`
    again keeps the clippers. After `load`, pass the callback to `learn` again: it resumes with the saved kappa, and
    training without it warns.

    Args:
        kappa: the range, as in `weightclip.clip_weights`; a loaded agent keeps the kappa that was saved with it.
            "output", "hidden" and `graded` refer to the last layers of the policy's networks.
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
        kappa = with_output_layers(self.kappa, output_layers(policy))
        self.clippers = attach_once(optimizers_of(policy), policy, kappa, self.options)

    def _on_step(self) -> bool:
        return True


def optimizers_of(policy: nn.Module) -> list[Optimizer]:
    """The distinct optimizers in the attribute `optimizer` of a policy and its submodules."""
    found = [vars(module).get("optimizer") for module in policy.modules()]
    return list({id(one): one for one in found if isinstance(one, Optimizer)}.values())


def output_layers(policy: nn.Module) -> list[str]:
    """The names of the last linear layers of the policy's networks. Their forward passes cannot be traced."""
    found: dict[str, None] = {}
    for name, module in policy.named_modules():
        trained = "_target" not in name and "mlp_extractor" not in name  # whose value_net has hidden layers
        if trained and HEADS.fullmatch(name.rpartition(".")[2]):
            linear = [inner for inner, layer in module.named_modules(prefix=name) if isinstance(layer, nn.Linear)]
            found.update(dict.fromkeys(linear[-1:]))
    return list(found)


def with_output_layers(kappa: Kappa, layers: list[str]) -> Kappa:
    """The same range with the names of the output layers in place of "output" and "hidden"."""
    _, rule = read_kappa(kappa)
    patterns = tuple(f"{layer}.*" for layer in layers)
    if not layers or rule is None:
        return kappa
    if isinstance(rule, Graded):
        return rule if rule.output_layers else replace(rule, output_layers=patterns)
    ranges: dict[str, float] = {}  # the first match applies
    for name, number in rule.ranges:
        if name in ("output", "hidden"):
            output = dict(rule.ranges).get("output", math.inf)
            ranges |= {pattern: output for pattern in patterns if pattern not in ranges}
        if name != "output":
            ranges["*" if name == "hidden" else name] = number
    return ByLayer(tuple(ranges.items()))
