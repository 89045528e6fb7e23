"""A data set that a small network can learn in a few hundred steps."""

import numpy as np

from weightclip.lab.data import Dataset, Source


def tiny_dataset(n: int = 60, d: int = 12, classes: int = 4) -> Dataset:
    random = np.random.default_rng(0)
    labels = np.arange(n, dtype=np.uint8) % classes
    prototypes = random.integers(0, 2, (classes, d)) * 200
    inputs = (prototypes[labels] + random.integers(0, 55, (n, d))).astype(np.uint8)
    return Dataset("tiny", inputs, labels, classes, Source("directory", "memory", "0" * 32, False, "tiny"), (d,))
