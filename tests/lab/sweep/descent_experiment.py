"""A small experiment with checkpoints like the real ones: a network, an optimizer and a generator."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from weightclip import clip_weights
from weightclip.lab.callbacks import Callbacks
from weightclip.lab.checkpoint import Arrays, Row, from_array, load_training_state, to_array, training_state
from weightclip.lab.experiment import Experiment, config_fields
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.schema import Schema
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial
from weightclip.lab.sweep.plan import Plan, make_plan


@dataclass(frozen=True)
class Config:
    problem: str = field(default="descent", metadata={"help": "descent"})
    method: str = field(default="adam", metadata={"help": "adam"})
    lr: float = field(default=0.1, metadata={"help": "step size"})
    rows: int = field(default=4, metadata={"help": "rows of the table"})
    seed: int = field(default=0, metadata={"help": "seed of the network and the samples"})
    pause: float = field(default=0.0, metadata={"help": "seconds between rows"})


class Learner:
    def __init__(self, config: Config) -> None:
        self._generator = np.random.default_rng(config.seed)
        self._model = nn.Linear(3, 1)
        with torch.no_grad():
            for p in self._model.parameters():
                p.copy_(torch.from_numpy(self._generator.normal(size=p.shape)))
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=config.lr)
        clip_weights(self._optimizer, self._model, kappa=2.0)

    def learn(self) -> Row:
        x = torch.from_numpy(self._generator.normal(size=(4, 3))).float()
        loss = (self._model(x) - x.sum(1, keepdim=True)).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"loss": loss.item()}

    def weights(self) -> pl.DataFrame:
        return pl.DataFrame({"weight": self._model.weight.detach().flatten().tolist()})

    def state(self) -> Arrays:
        return {**training_state(self._model, self._optimizer), "generator": to_array(self._generator)}

    def load_state(self, state: Arrays) -> None:
        state = dict(state)
        from_array(self._generator, state.pop("generator"))
        load_training_state(self._model, self._optimizer, state)


class Descent(Experiment[Config]):
    name = "descent"
    config = Config
    schema = Schema(
        "descent",
        "row",
        "loss",
        problems=("descent",),
        methods=("adam",),
        axes=("method",),
        settings=("lr",),
        fields=config_fields(Config),
    )
    lockstep = 2
    executing: Callable[[str], AbstractContextManager[None]] = staticmethod(lambda identity: nullcontext())
    """Context manager that is entered with the identity of a run while it is executed."""

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        return Config(problem, **settings)

    def identify(self, config: Config, data: Any) -> str:
        return identity(self.name, {**asdict(config), "pause": 0.0}, None)

    def length(self, config: Config) -> int:
        return config.rows

    def run(
        self, configs: Sequence[Config], data: Any, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list[Record]:
        return [self._run(config, out, overwrite, callbacks) for config in configs]

    def _run(self, config: Config, out: Path | None, overwrite: bool, callbacks: Callbacks) -> Record:
        def learn(learner: Learner, index: int, rows: Sequence[Row]) -> Row:
            row = {"row": index + 1, **learner.learn()}
            callbacks.on_progress(index + 1, row["loss"])
            time.sleep(config.pause)
            return row

        trial = Trial(
            schema=self.schema,
            identity=self.identify(config, None),
            relative_path=relative_path(self.schema, config),
            label=f"descent seed {config.seed}",
            config=asdict(config),
            data={"name": "none"},
            comparison=(None, {}),
            rows=config.rows,
            make=lambda: Learner(config),
            learn=learn,
            table=lambda rows: pl.DataFrame(rows).with_columns(pl.col("row").cast(pl.Int64)),
            tables=lambda learner: {"weights": learner.weights()},
        )
        with self.executing(trial.identity):
            return run_trial(trial, out, overwrite, callbacks.on_event, partial(callbacks.on_row, config))


def descent_plan(**settings: Any) -> Plan:
    """Create a plan with two seeds of each of two step sizes; the seeds of a step size are one job."""
    experiment = Descent()
    configs = [experiment.configure("descent", {"lr": lr, **settings}) for lr in (0.1, 0.2)]
    return make_plan(experiment, configs, range(2))
