"""Running: a configuration becomes an agent, then part after part a row of the table, then a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl

from weightclip.lab.checkpoint import Arrays, Row
from weightclip.lab.device import describe_device, find_device, threads
from weightclip.lab.experiment import Event, Progress, ignore
from weightclip.lab.experiments.dqn.config import NAME, Config, resolve
from weightclip.lab.experiments.dqn.schema import COVARIANCE, SCHEMA, compare_with_paper
from weightclip.lab.experiments.dqn.training import Trainer
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial, simulator

WHOLE = ("part", "samples", "updates", "ended")
"""Columns with whole numbers."""

MADE_BY = {"atari": "ale-py", "minatar": "MinAtar"}
"""Suite -> the package that has its games."""


def run_config(
    config: Config,
    data: None = None,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    on_progress: Progress = ignore,
    on_event: Event = ignore,
    on_row: Callable[[Row], None] = ignore,
) -> Record:
    """Run one configuration, or go on with it after its last part, or read its record where it is finished.

    A checkpoint holds all but the games, and the replay memory if that is wanted: a run that goes on begins new games.
    """
    config = resolve(config)
    device = find_device(config.device)

    def learn(trainer: Trainer, part: int, rows: Sequence[Row]) -> Row:
        return trainer.learn(part, on_progress)

    with threads(config.threads), ExitStack() as end:

        def make() -> Trainer:
            trainer = Trainer(config, device)
            end.callback(trainer.close)
            return trainer

        trial = Trial(
            schema=SCHEMA,
            identity=identity(NAME, config.facts(), None),
            relative_path=relative_path(SCHEMA, config),
            label=f"{config.game} {config.agent} {config.method} seed {config.seed}",
            config=config.facts(),
            data=simulator(config.game, (MADE_BY[config.suite],)),
            comparison=compare_with_paper(config),
            loss="training_loss",
            rows=config.points,
            make=make,
            learn=learn,
            table=lambda rows: _table(config, rows),
            tables=lambda trainer: _covariances(trainer.covariances()),
            platform=describe_device(device),
            resumes_exactly=False,  # it starts new games
        )
        return run_trial(trial, out, overwrite, on_event, on_row)


def _table(config: Config, rows: Sequence[Row]) -> pl.DataFrame:
    """Null where no game had ended yet, or there was no update."""
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64))
    early, idle = pl.col("ended").cum_sum() == 0, pl.col("updates") == 0
    found = table.with_columns(
        pl.lit(config.seed, pl.Int64).alias("seed"),
        pl.col(WHOLE).cast(pl.Int64),
        pl.when(~early).then(pl.col("return", "length")),
        pl.when(~idle).then(pl.col("training_loss", "q", "gradient_l2")),
    )
    return found.select("seed", pl.exclude("seed"))


def _covariances(found: Arrays) -> dict[str, pl.DataFrame]:
    tables = []
    for percent, matrix in found.items():
        row, column = np.indices(matrix.shape)
        columns = {"row": row.ravel(), "column": column.ravel(), "value": matrix.ravel().astype(np.float32)}
        tables.append(pl.DataFrame(columns).insert_column(0, pl.Series("percent", [int(percent)] * matrix.size)))
    return {COVARIANCE: pl.concat(tables)} if tables else {}
