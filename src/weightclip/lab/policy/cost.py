"""What a PPO run will take, from a short one."""

from __future__ import annotations

import time
from dataclasses import replace

from weightclip.lab.experiment import Cost
from weightclip.lab.policy.config import Config
from weightclip.lab.policy.ppo import Learners
from weightclip.lab.threads import threads

STEPS = 128
BYTES, BYTES_OF_A_ROW, BYTES_OF_A_STEP = 300_000, 120, 0.05
"""Of a record: its networks and what describes it; the main table; the episodes."""


def estimate(config: Config, data: None, together: int) -> Cost:
    """The time of a step of one seed, among so many in lockstep."""
    minibatches = max(1, STEPS * config.minibatches // config.rollout)
    short = replace(config, rollout=STEPS, minibatches=minibatches, steps=4 * STEPS)
    with threads(1):
        learners = Learners([replace(short, seed=seed) for seed in range(together)])
        learners.iterate(0)  # the first steps are slower
        began = time.perf_counter()
        learners.iterate(1)
        each = (time.perf_counter() - began) / (STEPS * together)
        learners.close()
    steps = config.iterations * config.rollout
    return Cost(steps * each, round(BYTES + BYTES_OF_A_ROW * config.iterations + BYTES_OF_A_STEP * steps))
