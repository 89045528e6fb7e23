"""The columns of a PPO run's table."""

from __future__ import annotations

from weightclip.lab.records.metrics import SHARE, Metric, by_name

ALONG = ("samples", "Environment steps")
"""The column that figures are drawn along, and what it counts."""

METRICS = by_name(
    Metric(
        "return", "Episodic return", "mean over the episodes that ended in an iteration, or ended last", "", "higher"
    ),
    Metric("length", "Episode length", "mean over the same episodes, in steps"),
    Metric(
        "approx_kl", "Approximate KL", "mean of (r - 1) - log r, r = new / old probability; last minibatch", "", "lower"
    ),
    Metric("old_approx_kl", "Approximate KL (-log r)", "mean of -log r, which can be negative; last minibatch"),
    Metric("clip_fraction", "Clipped ratios", "ratios that were clipped, over all minibatches", SHARE),
    Metric("policy_loss", "Policy loss", "of the last minibatch"),
    Metric("value_loss", "Value loss", "of the last minibatch", "", "lower"),
    Metric("entropy", "Entropy", "of the policy, in nats; last minibatch"),
    Metric("explained_variance", "Explained variance", "of the returns, by the values before the update", "", "higher"),
    Metric("gradient_l2", "Gradient l2 norm", "of all parameters, before it is shortened; mean over all minibatches"),
    Metric(
        "saturated", "Saturated units", "tanh outputs of both networks with |h| >= 0.95; last minibatch", SHARE, "lower"
    ),
    Metric(
        "saturated_90", "Units beyond 0.90", "tanh outputs of both networks with |h| >= 0.90; last minibatch", SHARE
    ),
    Metric("weight_l2", "Weight l2 norm", "of both networks' weight matrices together, at an iteration's end"),
    Metric("clipped", "Entries at the bound", "entries at a side of their box, of those in clipped tensors", SHARE),
    Metric("lipschitz_policy", "Lipschitz bound, policy", "for p = 2: the product of the layers' spectral norms"),
    Metric("lipschitz_value", "Lipschitz bound, values", "for p = 2: the product of the layers' spectral norms"),
    Metric("log_std", "Log-std", "of the policy, mean over the actions"),
    Metric("speed", "Steps per second", "of all seeds in lockstep together"),
)
"""An iteration's columns besides `seed`, `iteration`, `samples` and `episodes`, the number that ended in it."""
