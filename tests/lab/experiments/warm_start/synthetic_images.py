"""Tiny synthetic images in memory: each class has a color, with noise."""

import numpy as np

from weightclip.lab.data.dataset import Source
from weightclip.lab.data.images import Images
from weightclip.lab.experiments.warm_start.config import Config, resolve
from weightclip.lab.experiments.warm_start.training import Photographs

CLASSES = 4


def images(count: int, seed: int) -> Images:
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count, dtype=np.uint8)
    colors = np.random.default_rng(0).integers(60, 196, (CLASSES, 1, 1, 3))
    pixels = (colors[labels] + random.integers(-60, 60, (count, 32, 32, 3))).astype(np.uint8)
    return Images("cifar10", pixels, labels, CLASSES, Source("directory", "here", f"checksum{seed}", False, "cifar10"))


def image_data() -> Photographs:
    return Photographs(images(48, 1), images(20, 2))


def config(method: str = "sgd", **changes: object) -> Config:
    given: dict[str, object] = {
        "images": 48,
        "test_images": 20,
        "epochs": 2,
        "batch_size": 8,
        "width": 4,
        "lr": 0.05,
        **changes,
    }
    return resolve(Config(method=method, **given))  # type: ignore[arg-type]
