"""The configuration of a PPO run, and the columns of its table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from weightclip._validation import check_name
from weightclip.lab.config import (
    BOUNDS,
    METHOD,
    NAMED,
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
from weightclip.lab.experiment import Comparison, config_fields, deviations, text_fields
from weightclip.lab.methods import EQUAL_BETAS as EQUAL_BETAS
from weightclip.lab.methods import TORCH_WITH_EQUAL_BETAS, Components, TorchPart
from weightclip.lab.records.schema import FRACTION, Metric, Schema, by_name

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

    def components(self) -> Components[TorchPart]:
        return TORCH_WITH_EQUAL_BETAS

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
    return replace(
        config,
        steps=steps - steps % config.num_steps,
        bounds=config.clipping_bounds(config.bounds, "paper"),
        settings=_with_equal_betas(config),
    )


def _with_equal_betas(config: Config) -> dict[str, float]:
    settings = dict(config.settings)
    if config.parsed_method().optimizer.name == EQUAL_BETAS:
        betas = {settings[name] for name in ("beta1", "beta2") if name in settings} or {EQUAL_BETA}
        if len(betas) > 1:
            both = f"beta1={settings['beta1']:g} and beta2={settings['beta2']:g}"
            raise ValueError(f"settings: got {both}, but with {config.method} they are equal")
        settings["beta1"] = settings["beta2"] = betas.pop()
    return settings


METRICS = by_name(
    Metric(
        "return",
        "Episodic return",
        "mean over the episodes that ended in the iteration, or the last ones before",
        "",
        "higher",
    ),
    Metric("length", "Episode length", "mean over the same episodes, in steps"),
    Metric(
        "approx_kl", "Approximate KL", "mean of (r - 1) - log r, r = new / old probability; last minibatch", "", "lower"
    ),
    Metric("old_approx_kl", "Approximate KL (-log r)", "mean of -log r, which can be negative; last minibatch"),
    Metric("clip_fraction", "Clipped ratios", "fraction of clipped ratios over all minibatches", FRACTION),
    Metric("policy_loss", "Policy loss", "last minibatch"),
    Metric("value_loss", "Value loss", "last minibatch", "", "lower"),
    Metric("entropy", "Entropy", "entropy of the policy in nats; last minibatch"),
    Metric(
        "explained_variance",
        "Explained variance",
        "variance of the returns explained by the values before the update",
        "",
        "higher",
    ),
    Metric("gradient_l2", "Gradient l2 norm", "all parameters, before gradient clipping; mean over all minibatches"),
    Metric(
        "saturated",
        "Saturated units",
        "tanh outputs of both networks with |h| >= 0.95; last minibatch",
        FRACTION,
        "lower",
    ),
    Metric(
        "saturated_90", "Units beyond 0.90", "tanh outputs of both networks with |h| >= 0.90; last minibatch", FRACTION
    ),
    Metric("weight_l2", "Weight l2 norm", "weight matrices of both networks, at the end of the iteration"),
    Metric("clipped", "Entries at the bound", "fraction of entries of clipped tensors at a bound", FRACTION),
    Metric("lipschitz_policy", "Lipschitz bound, policy", "product of the layers' spectral norms (p = 2)"),
    Metric("lipschitz_value", "Lipschitz bound, values", "product of the layers' spectral norms (p = 2)"),
    Metric("log_std", "Log-std", "log standard deviation of the policy, mean over the actions"),
    Metric("speed", "Steps per second", "all seeds in lockstep together"),
)
"""The columns of an iteration, in addition to `seed`, `iteration`, `samples` and `episodes`, the number that ended."""

SCHEMA = Schema(
    NAME,
    problems=(NAME,),
    methods=PAPER_METHODS,
    fields=config_fields(Config),
    text_fields=text_fields(Config),
    settings=("lr", "kappa", "kappa_rule", "decay", "sigma", "settings", "bounds"),
    axes=("method", "env"),
    x_column="iteration",
    score="return",
    unit="steps",
    metrics=METRICS,
    panels=("return", "approx_kl", "weight_l2", "saturated"),
    plot_column="samples",
    plot_label="Environment steps",
)


def compare_with_paper(config: Config) -> Comparison:
    """The paper's setting and the deviations from it. The paper does not state the length of its runs."""
    env = config.env if config.env in ENVIRONMENTS else ENVIRONMENTS[0]
    paper = resolve(Config(env=env, method=config.method if config.method in PAPER_METHODS else PAPER_METHODS[0]))
    differing = deviations(config, paper, SCHEMA, ("steps",))
    if config.method not in PAPER_METHODS or config.env not in ENVIRONMENTS or config.bounds == "fan_in":
        return None, differing
    best = presets(config.env)["best"][NAME][config.method]
    return {name: value for name, value in best.items() if name in NAMED}, differing
