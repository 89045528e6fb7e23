"""What a warm-starting run will take, from a few steps of it."""

from __future__ import annotations

import time
from dataclasses import replace

from weightclip.checks import check_count
from weightclip.lab.experiment import Cost
from weightclip.lab.threads import threads
from weightclip.lab.warm_start.config import Config, resolve
from weightclip.lab.warm_start.experiment import Photographs, check_images
from weightclip.lab.warm_start.training import Trainer

STEPS = 3
BYTES = 20_000
BYTES_OF_A_ROW = 80


def estimate(config: Config, data: Photographs, together: int = 1) -> Cost:
    """The time of a step and of a test image, from short epochs; the size of a record that long."""
    config = check_images(resolve(config), data)
    epochs, batch, images, tested = (
        check_count(name, getattr(config, name)) for name in ("epochs", "batch", "images", "test_images")
    )
    few = min(tested, batch)
    short = replace(config, images=2 * min(STEPS * batch, images // 2), stages=2, epochs=1, test_images=few)
    with threads(config.threads or 1):  # as the workers of a sweep
        trainer = Trainer(short, data.train, data.test)
        trainer.learn(0)  # the first steps are slower
        began = time.perf_counter()
        row = trainer.learn(1)
        learned = time.perf_counter()
        trainer.test()
        testing = (time.perf_counter() - learned) / few
    each = (learned - began - few * testing) / (row["samples"])
    rows = epochs * config.stages
    return Cost(epochs * images * each + rows * tested * testing, BYTES + BYTES_OF_A_ROW * rows)
