"""The configuration of a PPO run: fields, defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from weightclip._validation import check_name
from weightclip.lab.config import (
    BOUNDS,
    METHOD,
    PROBLEM,
    Help,
    MethodConfig,
    check_fields,
    fill,
    paper_tables,
    resolve_method,
    resolver,
)
from weightclip.lab.constraints import AtLeast, Between, OneOf, Positive
from weightclip.lab.methods import EQUAL_BETAS, TORCH_WITH_EQUAL_BETAS, Components, TorchPart

if TYPE_CHECKING:
    from torch import nn

NAME = "policy-collapse"
"""Name of the experiment and of its only problem."""

PAPER_METHODS = ("adam", "adam+wc")
"""Methods of the paper."""

EQUAL_BETA = 0.99
"""beta1 and beta2 of Dohare et al.'s public configurations (shibhansh/loss-of-plasticity, lop/rl/cfg/ant/ns.yml)."""

ENVIRONMENTS = ("Ant-v4", "Walker2d-v4", "Humanoid-v4", "HumanoidStandup-v4")
"""Environments of the paper."""

FIGURE_7 = ENVIRONMENTS[1:3]
"""Environments of the paper's figure 7."""

LOCKSTEP = 8
"""Number of seeds that train together; more give little additional speed."""

SCALES = ("paper", "laptop")

FUSED_OPTIMIZERS, FUSED_SETTINGS = ("adam", EQUAL_BETAS), ("beta1", "beta2", "eps")
"""Optimizers of the fused backend, which has weight clipping as its only regularizer, and their settings."""


@dataclass(frozen=True)
class Config(MethodConfig):
    """The configuration of one run. `resolve` replaces None by the value for the scale, the environment and the method.

    Options of the algorithm have CleanRL's names.
    """

    experiment = NAME
    execution_fields = ("scale",)

    problem: Annotated[str, OneOf(NAME), Help("the problem")] = NAME
    env: Annotated[str, Help("id of a Gymnasium environment with Box actions", PROBLEM)] = "Ant-v4"
    scale: Annotated[
        str, OneOf(*SCALES), Help("paper, or laptop (shorter, not the paper's; tuned on Hopper-v4)", PROBLEM)
    ] = "paper"
    bounds: Annotated[
        str | None,
        OneOf(*BOUNDS),
        Help("clipping bounds: paper (clips the log-std as well) or fan_in (by layer)", METHOD),
    ] = None
    steps: Annotated[
        int | None, AtLeast(1), Help("total environment steps, rounded down to whole rollouts", PROBLEM)
    ] = None
    anneal_lr: Annotated[bool | None, Help("anneal the step size linearly to 0")] = None
    update_epochs: Annotated[int | None, AtLeast(1), Help("epochs over each rollout")] = None
    num_steps: Annotated[int, AtLeast(1), Help("environment steps per rollout")] = 2048
    num_minibatches: Annotated[int, AtLeast(1), Help("minibatches per epoch")] = 32
    gamma: Annotated[float, Between(0, 1), Help("discount factor")] = 0.99
    gae_lambda: Annotated[float, Between(0, 1), Help("lambda of generalized advantage estimation")] = 0.95
    clip_coef: Annotated[float, Positive(infinite=True), Help("clipping coefficient of the probability ratio")] = 0.2
    clip_vloss: Annotated[bool, Help("clip the value loss")] = True
    norm_adv: Annotated[bool, Help("normalize advantages in each minibatch")] = True
    vf_coef: Annotated[float, AtLeast(0), Help("coefficient of the value loss")] = 0.5
    ent_coef: Annotated[float, AtLeast(0), Help("coefficient of the entropy bonus")] = 0.0
    max_grad_norm: Annotated[float, Positive(infinite=True), Help("maximum norm of the gradient")] = 0.5
    hidden: Annotated[tuple[int, ...], AtLeast(1), Help("units of each hidden layer")] = (64, 64)
    bootstrap_truncated: Annotated[bool, Help("bootstrap the value at the end of truncated episodes")] = False
    backend: Annotated[
        str, OneOf("fused", "reference"), Help("fused (compiled; Adam with or without wc) or reference (plain PyTorch)")
    ] = "fused"

    def components(self) -> Components[TorchPart]:
        return TORCH_WITH_EQUAL_BETAS

    def small_network(self) -> tuple[nn.Module, str]:
        from weightclip.lab.networks.actor_critic import ActorCritic

        return ActorCritic(1, 1, [1] * len(self.hidden)), self.bounds or "fan_in"

    @property
    def falls_back(self) -> bool:
        """Whether `resolve` replaced the fused backend, which does not support the method, by the reference."""
        return bool(vars(self).get("_falls_back", False))

    @property
    def iterations(self) -> int:
        """The number of rollouts, each followed by an update, of a resolved configuration."""
        assert self.steps is not None
        return self.steps // self.num_steps

    def step_size(self, iteration: int) -> float:
        """The step size in iteration 0, 1, ... of a resolved configuration."""
        assert self.lr is not None
        return self.lr * (1.0 - iteration / self.iterations if self.anneal_lr else 1.0)


def presets(env: str = "", scale: str = "paper") -> dict[str, Any]:
    """The settings searched (`grid`) and selected (`best`) in an environment at a scale."""
    tables = paper_tables(__package__)
    table = tables[check_name("scale", scale, SCALES)]
    env_settings = table.get("environments", {}).get(env, {})
    common = {**tables["paper"]["best"], **table["best"]}
    best = {method: {**settings, **env_settings.get(method, {})} for method, settings in common.items()}
    return {"grid": table["grid"], "best": {NAME: best}}


@resolver
def resolve(config: Config) -> Config:
    """Check a configuration and fill in every field."""
    config = check_fields(config)
    config = fill(config, paper_tables(__package__)[config.scale]["size"])
    steps = config.steps or 0
    if steps < config.num_steps:
        raise ValueError(f"steps: got {steps}, expected at least the {config.num_steps} of a rollout")
    if config.num_steps % config.num_minibatches or config.num_steps == config.num_minibatches:
        raise ValueError(
            f"num_minibatches: got {config.num_minibatches}, expected a divisor of the rollout's {config.num_steps} "
            "steps, with 2 steps or more in each"
        )
    config = resolve_method(config, presets(config.env, config.scale)["best"][NAME])
    falls_back = config.backend == "fused" and not_fused(config) is not None
    found = replace(
        config,
        steps=steps - steps % config.num_steps,
        bounds=config.clipping_bounds(config.bounds, "paper"),
        settings=_with_equal_betas(config),
        backend="reference" if falls_back else config.backend,
    )
    object.__setattr__(found, "_falls_back", falls_back)  # not a field, like `_resolved`
    return found


def not_fused(config: Config) -> str | None:
    """The part of the method that the fused backend does not have, or None. The reference backend has all methods."""
    method = config.parsed_method()
    name: str = method.optimizer.name
    if name not in FUSED_OPTIMIZERS:
        return name
    others: list[str] = [one.name for one in method.regularizers if one.name != "wc"]
    others += [name for name in config.settings if name not in FUSED_SETTINGS]
    return others[0] if others else None


def _with_equal_betas(config: Config) -> dict[str, float]:
    settings = dict(config.settings)
    if config.parsed_method().optimizer.name == EQUAL_BETAS:
        betas = {settings[name] for name in ("beta1", "beta2") if name in settings} or {EQUAL_BETA}
        if len(betas) > 1:
            both = f"beta1={settings['beta1']:g} and beta2={settings['beta2']:g}"
            raise ValueError(f"settings: got {both}, but with {config.method} they are equal")
        settings["beta1"] = settings["beta2"] = betas.pop()
    return settings
