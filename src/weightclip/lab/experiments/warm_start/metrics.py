"""The columns of the table of a warm-starting run, and its comparison with the paper."""

from __future__ import annotations

from weightclip.lab.experiment import Comparison, config_schema, deviations
from weightclip.lab.experiments.warm_start.config import NAME, PAPER, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.records.schema import FRACTION, Metric, by_name

METRICS = by_name(
    Metric(
        "test_accuracy", "Test accuracy", "fraction of correct test images at the end of the epoch", FRACTION, "higher"
    ),
    Metric("test_loss", "Test loss", "mean over the test images at the end of the epoch", "nats", "lower"),
    Metric(
        "train_accuracy",
        "Train accuracy",
        "fraction of correct training images, before the update on them",
        FRACTION,
        "higher",
    ),
    Metric("train_loss", "Train loss", "mean over the training images, before the update on them", "nats", "lower"),
    Metric("gap", "Generalization gap", "train accuracy minus test accuracy", FRACTION, "lower"),
    Metric("weight_l2", "Weight l2 norm", "all weight tensors, without biases, at the end of the epoch"),
    Metric("clipped", "Entries clipped", "fraction of entries of clipped tensors that were clipped", FRACTION),
)
"""The columns of an epoch, in addition to `seed`, `epoch`, `stage` and `samples`."""

SCHEMA = config_schema(
    Config,
    methods=PAPER_METHODS,
    axes=("method", "stages"),
    x_column="epoch",
    score="test_accuracy",
    unit="images",
    metrics=METRICS,
    panels=("test_accuracy", "train_accuracy", "gap", "weight_l2"),
)


def compare_with_paper(config: Config) -> Comparison:
    """The paper's setting and the deviations from it."""
    method = config.method if config.method in PAPER_METHODS else PAPER_METHODS[0]
    paper = resolve(Config(stages=config.stages, variant=PAPER, method=method))
    differing = deviations(config, paper, SCHEMA)
    if config.method not in PAPER_METHODS or config.variant != PAPER:
        return None, differing
    return presets(PAPER)["best"][NAME][config.method], differing
