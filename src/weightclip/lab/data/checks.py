"""Checks of what files hold; the message names the file."""

from __future__ import annotations

from weightclip.lab.data.description import Arrays, Bytes
from weightclip.lab.data.errors import DataError


def check_labels(origin: str, labels: Bytes, classes: int) -> Bytes:
    """`labels`; a DataError unless all are below `classes`."""
    if labels.size and int(labels.max()) >= classes:
        raise DataError(f"{origin}: has the label {labels.max()}, expected 0 to {classes - 1}")
    return labels


def check_counts(origins: str, arrays: Arrays) -> Arrays:
    """`arrays`; a DataError unless there is a label for each input, and at least one."""
    inputs, labels = arrays
    if len(inputs) != len(labels) or not len(inputs):
        raise DataError(f"{origins}: {len(inputs):,} inputs and {len(labels):,} labels, expected as many of each")
    return arrays
