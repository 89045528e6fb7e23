"""The columns of a streaming run's table."""

from __future__ import annotations

from weightclip.lab.records.metrics import Metric, by_name

METRICS = by_name(
    Metric("accuracy", "Accuracy", "predictions that were right, of a task's", "share", "higher"),
    Metric("online_accuracy", "Average online accuracy", "the same, of all samples so far", "share", "higher"),
    Metric("loss", "Loss", "cross-entropy of each sample before its update", "nats", "lower"),
    Metric(
        "plasticity",
        "Sample plasticity",
        "max(1 - after / max(before, 1e-8), 0) of a sample's loss before and after the update on it",
        direction="higher",
    ),
    Metric("weight_l2", "Weight l2 norm", "of all weight matrices together, without biases, after each update"),
    Metric("weight_l1", "Weight l1 norm", "of all weight matrices together, without biases, after each update"),
    Metric("gradient_l2", "Gradient l2 norm", "of the loss, over all weight matrices together, without penalties"),
    Metric("gradient_l1", "Gradient l1 norm", "of the loss, over all weight matrices together, without penalties"),
    Metric("clipped", "Entries clipped", "entries that an update's clip changed, of those in clipped tensors", "share"),
    Metric("negative", "Negative pre-activations", "hidden units below 0 before their activation", "share"),
    Metric("saturated", "Saturated units", "tanh outputs with |h| >= 0.95; tanh networks only", "share", "lower"),
    Metric("lipschitz", "Lipschitz bound (p = 2)", "product of the layers' largest singular values, at a task's end"),
)
"""A task's columns besides `seed`, `task`, `samples` and the ranks. Means over its steps unless told otherwise."""


def rank_name(layer: int) -> str:
    """The column with the rank of weight matrix `layer` = 1, 2, ... at a task's end."""
    return f"rank_{layer}"


def rank_metric(column: str) -> Metric | None:
    """The definition of a column with ranks."""
    prefix, _, layer = column.rpartition("_")
    if prefix != "rank" or not layer.isdigit():
        return None
    return Metric(column, f"Rank of W{layer}", "by the tolerance of torch.linalg.matrix_rank, at a task's end")
