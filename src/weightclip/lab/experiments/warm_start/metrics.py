"""The columns of a warm-starting run's table."""

from __future__ import annotations

from weightclip.lab.records.metrics import Metric, by_name

METRICS = by_name(
    Metric("test_accuracy", "Test accuracy", "test images classified right, at an epoch's end", "share", "higher"),
    Metric("test_loss", "Test loss", "mean over the test images, at an epoch's end", "nats", "lower"),
    Metric("train_accuracy", "Train accuracy", "training images right before the update on them", "share", "higher"),
    Metric("train_loss", "Train loss", "mean over the training images, before the update on them", "nats", "lower"),
    Metric("gap", "Generalisation gap", "train accuracy less test accuracy", "share", "lower"),
    Metric("weight_l2", "Weight l2 norm", "of all weight tensors together, without biases, at an epoch's end"),
    Metric("clipped", "Entries clipped", "entries that a clip changed, of those in clipped tensors", "share"),
)
"""An epoch's columns besides `seed`, `epoch`, `stage` and `samples`."""
