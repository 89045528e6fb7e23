"""The columns of the table of a streaming run, and its comparison with the paper."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from weightclip.lab.experiment import Comparison, config_schema, deviations
from weightclip.lab.experiments.streaming.config import PAPER_METHODS, Config, presets, resolve
from weightclip.lab.experiments.streaming.problem import all_problems
from weightclip.lab.records.schema import FRACTION, Metric, Schema, by_name

METRICS = by_name(
    Metric("accuracy", "Accuracy", "fraction of correct predictions in the task", FRACTION, "higher"),
    Metric(
        "online_accuracy",
        "Average online accuracy",
        "fraction of correct predictions since the start of the run",
        FRACTION,
        "higher",
    ),
    Metric("loss", "Loss", "cross-entropy of each sample before its update", "nats", "lower"),
    Metric(
        "plasticity",
        "Sample plasticity",
        "max(1 - after / max(before, 1e-8), 0), with a sample's loss before and after the update on it",
        direction="higher",
    ),
    Metric("weight_l2", "Weight l2 norm", "all weight matrices, without biases, after each update"),
    Metric("weight_l1", "Weight l1 norm", "all weight matrices, without biases, after each update"),
    Metric("gradient_l2", "Gradient l2 norm", "gradient of the loss over all weight matrices, without penalties"),
    Metric("gradient_l1", "Gradient l1 norm", "gradient of the loss over all weight matrices, without penalties"),
    Metric("clipped", "Entries clipped", "fraction of entries of clipped tensors that a step clipped", FRACTION),
    Metric("negative", "Negative pre-activations", "fraction of hidden units with a negative pre-activation", FRACTION),
    Metric(
        "saturated",
        "Saturated units",
        "fraction of tanh outputs with |h| >= 0.95; tanh networks only",
        FRACTION,
        "lower",
    ),
    Metric(
        "lipschitz", "Lipschitz bound (p = 2)", "product of the layers' largest singular values, at the end of the task"
    ),
)
"""The columns of a task, in addition to `seed`, `task`, `samples` and the ranks: means over its steps."""

BASIC_METRICS = ("accuracy", "online_accuracy", "loss")
"""The metrics of runs without diagnostics."""


@cache
def make_schema() -> Schema:
    """The schema with all installed problems."""
    return config_schema(
        Config,
        problems=tuple(all_problems()),
        methods=PAPER_METHODS,
        x_column="task",
        score="accuracy",
        metrics=METRICS,
        panels=("accuracy", "loss", "plasticity", "weight_l2"),
    )


def rank_name(layer: int) -> str:
    """The column with the rank of weight matrix `layer` = 1, 2, ... at the end of a task."""
    return f"rank_{layer}"


def with_ranks(schema: Schema, layers: int) -> Schema:
    """The schema with a rank column for each of `layers` layers."""
    help_text = "numerical rank with the tolerance of torch.linalg.matrix_rank, at the end of the task"
    ranks = by_name(*(Metric(rank_name(k), f"Rank of W{k}", help_text) for k in range(1, layers + 1)))
    return replace(schema, metrics={**schema.metrics, **ranks})


NOT_LEARNED = ("lr", "backend", "dtype", "diagnostics", "outputs", "rules")
"""Fields that do not count as deviations: the paper searches the step size and does not have the others."""


def compare_with_paper(config: Config, schema: Schema) -> Comparison:
    """The paper's setting and the deviations from it, on the paper's three problems."""
    best = presets()["best"].get(config.problem)
    if best is None:
        return None, {}
    method = config.method if config.method in PAPER_METHODS else PAPER_METHODS[0]
    paper = resolve(Config(config.problem, method))
    return best.get(config.method), deviations(config, paper, schema, NOT_LEARNED)
