"""The columns of a warm-starting run's table."""

from __future__ import annotations

from weightclip.lab.experiment import Comparison, config_fields, deviations, text_fields
from weightclip.lab.experiments.warm_start.config import NAME, PAPER, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.records.schema import FRACTION, Metric, Schema, by_name

METRICS = by_name(
    Metric("test_accuracy", "Test accuracy", "test images classified right, at an epoch's end", FRACTION, "higher"),
    Metric("test_loss", "Test loss", "mean over the test images, at an epoch's end", "nats", "lower"),
    Metric("train_accuracy", "Train accuracy", "training images right before the update on them", FRACTION, "higher"),
    Metric("train_loss", "Train loss", "mean over the training images, before the update on them", "nats", "lower"),
    Metric("gap", "Generalisation gap", "train accuracy less test accuracy", FRACTION, "lower"),
    Metric("weight_l2", "Weight l2 norm", "of all weight tensors together, without biases, at an epoch's end"),
    Metric("clipped", "Entries clipped", "entries that a clip changed, of those in clipped tensors", FRACTION),
)
"""The columns of an epoch, in addition to `seed`, `epoch`, `stage` and `samples`."""

SCHEMA = Schema(
    NAME,
    problems=(NAME,),
    methods=PAPER_METHODS,
    fields=config_fields(Config),
    text_fields=text_fields(Config),
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
