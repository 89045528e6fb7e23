"""Training: one table row and one checkpoint per task."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from drifting_regression.config import NAME, SCHEMA, Config, resolve
from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks
from weightclip.lab.checkpoint import Arrays, Row, load_training_state, training_state
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial

FEATURES = 10


class Learner:
    """A linear model y = w x + b. Its state contains the model and the optimizer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        self.model = nn.Linear(FEATURES, 1)
        self.optimizer = config.make_optimizer(self.model)

    def learn(self, task: int) -> Row:
        """Train on one task, whose target and samples depend only on the seed and the task."""
        random = np.random.default_rng([self.config.seed, task])
        target = torch.tensor(self.config.drift * random.normal(size=FEATURES), dtype=torch.float32)
        inputs = torch.tensor(random.normal(size=(self.config.period, FEATURES)), dtype=torch.float32)
        total = 0.0
        for x in inputs:
            loss = (self.model(x) - target @ x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        samples = (task + 1) * self.config.period
        norm = self.model.weight.norm().item()
        return {"task": task + 1, "samples": samples, "loss": total / self.config.period, "weight_l2": norm}

    def state(self) -> Arrays:
        return training_state(self.model, self.optimizer)

    def load_state(self, state: Arrays) -> None:
        load_training_state(self.model, self.optimizer, state)


def run_config(
    config: Config, out: Path | None = None, overwrite: bool = False, callbacks: Callbacks = NO_CALLBACKS
) -> Record:
    """Run one configuration, resume it, or read its record."""
    requested, config = config, resolve(config)

    def learn(learner: Learner, task: int, rows: Sequence[Row]) -> Row:
        row = learner.learn(task)
        callbacks.on_progress(int(row["samples"]), row["loss"])
        return row

    trial = Trial(
        schema=SCHEMA,
        identity=identity(NAME, config.facts(), None),
        relative_path=relative_path(SCHEMA, config),
        label=f"{NAME} {config.method} seed {config.seed}",
        config=config.facts(),
        data={"name": NAME},
        comparison=(None, {}),
        rows=config.tasks,
        make=lambda: Learner(config),
        learn=learn,
        columns=("task", "samples", *SCHEMA.metrics),
        table=lambda rows: pl.DataFrame(rows).with_columns(pl.col("task", "samples").cast(pl.Int64)),
    )
    return run_trial(trial, out, overwrite, callbacks.on_event, partial(callbacks.on_row, requested))
