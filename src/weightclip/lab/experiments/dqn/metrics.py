"""The columns of a table of DQN or Rainbow."""

from __future__ import annotations

from weightclip.lab.records.metrics import SHARE, Metric, by_name

ALONG = ("samples", "Frames")
"""The column that figures are drawn along, and what it counts."""

METRICS = by_name(
    Metric("test_return", "Return, evaluated", "of whole games with few random actions, at a part's end", "", "higher"),
    Metric("return", "Return, in training", "mean over the games that ended in a part, or ended last", "", "higher"),
    Metric("length", "Length of games", "mean over the same games, in steps"),
    Metric("ended", "Games", "training games that ended in the part"),
    Metric("updates", "Updates", "so far"),
    Metric("training_loss", "Loss", "mean over the part's updates, or those of the last part with some", "", "lower"),
    Metric("q", "Value of the best action", "mean over the states of the part's updates"),
    Metric("weight_l2", "Weight l2 norm", "of all weight tensors together, without biases, at a part's end"),
    Metric("gradient_l2", "Gradient l2 norm", "of the same tensors, in a part's last update"),
    Metric("clipped", "Entries at the bound", "entries at a side of their box, of those in clipped tensors", SHARE),
    Metric("dormant", "Dormant units", "whose mean output is at most 0.025 of their layer's mean", SHARE, "lower"),
    Metric("exploration", "Random actions", "probability, at a part's end", SHARE),
    Metric("frames_per_second", "Frames per second", "over the part, without the evaluation"),
    Metric("updates_per_second", "Updates per second", "over the part, without the evaluation"),
)
"""A part's columns besides `seed`, `part` and `samples` (frames so far)."""
