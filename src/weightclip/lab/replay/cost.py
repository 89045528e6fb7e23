"""What a run of DQN or Rainbow will take, from a few steps and updates of it."""

from __future__ import annotations

import time
from dataclasses import replace

from weightclip.lab.device import find_device
from weightclip.lab.experiment import Cost
from weightclip.lab.replay.config import Config
from weightclip.lab.replay.training import Trainer
from weightclip.lab.threads import threads

STEPS, SECONDS = 40, 0.3
"""Steps that are played, and how long updates are made: a few on Atari, many on MinAtar."""

BYTES, BYTES_OF_A_ROW, BYTES_OF_AN_ENTRY = 20_000, 140, 4


def estimate(config: Config, data: None = None, together: int = 1) -> Cost:
    """The time of a step and of an update; evaluations are left out, which end sooner or later."""
    each = config.environments or 1
    times = -(-STEPS // each)
    # Most of a run is played as in its end: by the network.
    usual = replace(config, epsilon=config.epsilon_final)
    with threads(config.threads):
        trainer = Trainer(usual, find_device(config.device))
        trainer.play(-(-config.least_warm_up // each))
        began = time.perf_counter()
        trainer.play(times)
        played = (time.perf_counter() - began) / (times * each)
        trainer.practise(1)  # the first one is slower
        before, began = trainer.agent.updates, time.perf_counter()
        while (passed := time.perf_counter() - began) < SECONDS:
            trainer.practise(1)
        learned = passed / (trainer.agent.updates - before)
        trainer.close()
    seconds = config.steps * played + config.updates_after(config.steps) * learned
    entries = config.covariance**2 * len(config.covariance_at)
    return Cost(seconds, BYTES + BYTES_OF_A_ROW * config.points + BYTES_OF_AN_ENTRY * entries)
