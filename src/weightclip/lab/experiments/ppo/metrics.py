"""The columns of the table of a PPO run, and its comparison with the paper."""

from __future__ import annotations

from weightclip.lab.experiment import Comparison, config_schema, deviations
from weightclip.lab.experiments.ppo.config import ENVIRONMENTS, NAME, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.methods import NAMED
from weightclip.lab.records.schema import FRACTION, Metric, by_name

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

SCHEMA = config_schema(
    Config,
    methods=PAPER_METHODS,
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
    differing = deviations(config, paper, SCHEMA, ("steps", "backend"))
    if config.method not in PAPER_METHODS or config.env not in ENVIRONMENTS or config.bounds == "fan_in":
        return None, differing
    best = presets(config.env)["best"][NAME][config.method]
    return {name: value for name, value in best.items() if name in NAMED}, differing
