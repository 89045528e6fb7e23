"""The digits that come with this library, so that examples and tests run anywhere."""

from __future__ import annotations

from pathlib import Path

from weightclip.lab.data.checks import check_counts, check_labels
from weightclip.lab.data.content import md5
from weightclip.lab.data.dataset import Dataset, Source
from weightclip.lab.data.description import Description, Split
from weightclip.lab.data.npz import read_npz

_PATH = Path(__file__).with_name("mnist-digits.npz")


def bundled_digits(description: Description, split: Split) -> Dataset:
    """The first 10,000 digits of MNIST's training split, or every tenth of its test split (1,000)."""
    images, labels = read_npz(_PATH, (f"{split}_images", f"{split}_labels"))
    checksum = md5([images.data, labels.data])
    inputs = images.data.reshape(len(images.data), -1)
    check_counts(str(_PATH), (inputs, check_labels(labels.origin, labels.data, description.classes)))
    location = f"bundled subset of {len(inputs):,} digits"
    source = Source("bundled", location, checksum, official=False, name=description.name)
    return Dataset(description.name, inputs, labels.data, description.classes, source, description.shape)
