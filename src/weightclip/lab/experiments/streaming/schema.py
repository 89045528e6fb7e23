"""The columns of a streaming run's table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from weightclip.lab.experiment import Comparison, config_fields, deviations, text_fields
from weightclip.lab.experiments.streaming.config import NAME, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.experiments.streaming.problem import all_problems
from weightclip.lab.records.schema import FRACTION, Metric, Schema, by_name

METRICS = by_name(
    Metric("accuracy", "Accuracy", "predictions that were right, of a task's", FRACTION, "higher"),
    Metric("online_accuracy", "Average online accuracy", "the same, of all samples so far", FRACTION, "higher"),
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
    Metric("clipped", "Entries clipped", "entries that the clip of a step changed, of clipped tensors", FRACTION),
    Metric("negative", "Negative pre-activations", "hidden units below 0 before their activation", FRACTION),
    Metric("saturated", "Saturated units", "tanh outputs with |h| >= 0.95; tanh networks only", FRACTION, "lower"),
    Metric("lipschitz", "Lipschitz bound (p = 2)", "product of the layers' largest singular values, at a task's end"),
)
"""The columns of a task, in addition to `seed`, `task`, `samples` and the ranks: means over its steps."""


@cache
def make_schema() -> Schema:
    """The schema with the problems that are installed."""
    return Schema(
        NAME,
        problems=tuple(all_problems()),
        methods=PAPER_METHODS,
        fields=config_fields(Config),
        text_fields=text_fields(Config),
        x_column="task",
        score="accuracy",
        metrics=METRICS,
        panels=("accuracy", "loss", "plasticity", "weight_l2"),
    )


def rank_name(layer: int) -> str:
    """The column with the rank of weight matrix `layer` = 1, 2, ... at a task's end."""
    return f"rank_{layer}"


def with_ranks(schema: Schema, layers: int) -> Schema:
    """The schema with a column of ranks for each of so many layers."""
    help_text = "by the tolerance of torch.linalg.matrix_rank, at the end of a task"
    ranks = by_name(*(Metric(rank_name(k), f"Rank of W{k}", help_text) for k in range(1, layers + 1)))
    return replace(schema, metrics={**schema.metrics, **ranks})


NOT_LEARNED = ("lr", "backend", "dtype", "diagnostics", "outputs", "rules")
"""Fields that do not count as deviations: the paper searches the step size, and has none of the others."""


def compare_with_paper(config: Config, schema: Schema) -> Comparison:
    """The paper's setting and the deviations from it, on the paper's three problems."""
    best = presets()["best"].get(config.problem)
    if best is None:
        return None, {}
    method = config.method if config.method in PAPER_METHODS else PAPER_METHODS[0]
    paper = resolve(Config(config.problem, method))
    return best.get(config.method), deviations(config, paper, schema, NOT_LEARNED)
