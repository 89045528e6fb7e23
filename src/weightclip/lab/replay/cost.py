"""What a run of DQN or Rainbow will take, from a few steps and updates of it."""

from __future__ import annotations

import time
from dataclasses import replace

from weightclip.lab.device import find_device
from weightclip.lab.experiment import Cost
from weightclip.lab.replay.config import Config, resolve
from weightclip.lab.replay.training import Trainer
from weightclip.lab.threads import threads

STEPS, UPDATES = 40, 6
BYTES, BYTES_OF_A_ROW, BYTES_OF_AN_ENTRY = 20_000, 140, 4


def estimate(config: Config) -> Cost:
    """The time of a step and of an update; evaluations are left out, which end sooner or later."""
    config = resolve(config)
    each = config.environments or 1
    steps = STEPS + (config.warm_up or 0)
    few = replace(config, memory=max(2 * steps, 1000), covariance=0, points=1, frames=4 * steps)
    with threads(config.threads):
        trainer = Trainer(few, find_device(config.device))
        began = time.perf_counter()
        trainer.play(-(-steps // each))
        played = (time.perf_counter() - began) / steps
        trainer.practise(1)  # the first one is slower
        began = time.perf_counter()
        trainer.practise(UPDATES)
        learned = (time.perf_counter() - began) / UPDATES
        trainer.close()
    seconds = config.steps * played + config.updates_after(config.steps) * learned
    entries = config.covariance**2 * len(config.covariance_at)
    return Cost(seconds, BYTES + BYTES_OF_A_ROW * config.points + BYTES_OF_AN_ENTRY * entries)
