"""Running: a configuration becomes a network in training, then epoch after epoch a row of the table, then a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from weightclip.lab.checkpoint import Row
from weightclip.lab.data.dataset import Source
from weightclip.lab.data.images import Images, load_images
from weightclip.lab.device import describe_device, find_device, threads
from weightclip.lab.experiment import Event, Progress, ignore
from weightclip.lab.experiments.warm_start.config import NAME, Config, resolve
from weightclip.lab.experiments.warm_start.schema import SCHEMA, compare_with_paper
from weightclip.lab.experiments.warm_start.training import Trainer
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial

DATA = "cifar10"
WHOLE = ("epoch", "stage", "samples")
"""Columns with whole numbers."""


@dataclass(frozen=True)
class Photographs:
    """CIFAR-10: what to train on and what to test on."""

    train: Images
    test: Images

    @property
    def source(self) -> Source:
        return self.train.source

    @property
    def checksum(self) -> str:
        """Of both."""
        return f"{self.train.source.checksum}+{self.test.source.checksum}"

    def facts(self) -> dict[str, Any]:
        """What a record says of its data."""
        return {
            "name": self.train.name,
            "samples": len(self.train.labels),
            "kind": self.source.kind,
            "location": self.source.location,
            "checksum": self.checksum,
            "official": self.train.source.official and self.test.source.official,
        }


def load(data_dir: Path | None = None, event: Event = ignore) -> Photographs:
    """The data, mapped into memory."""
    return Photographs(load_images(DATA, "train", data_dir, event), load_images(DATA, "test", data_dir, event))


def run_config(
    config: Config,
    data: Photographs,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    on_progress: Progress = ignore,
    on_event: Event = ignore,
    on_row: Callable[[Row], None] = ignore,
) -> Record:
    """Run one configuration, or go on with it after its last epoch, or read its record where it is finished."""
    config = check_images(resolve(config), data)
    assert config.epochs is not None  # resolved

    def learn(trainer: Trainer, epoch: int, rows: Sequence[Row]) -> Row:
        return trainer.learn(epoch, rows[-1] if rows else None, on_progress)

    with threads(config.threads):
        trial = Trial(
            schema=SCHEMA,
            identity=identity(NAME, config.facts(), data.checksum),
            relative_path=relative_path(SCHEMA, config),
            label=f"{NAME} {config.method} seed {config.seed}",
            config=config.facts(),
            data=data.facts(),
            comparison=compare_with_paper(config),
            rows=config.epochs * config.stages,
            make=lambda: Trainer(config, data.train, data.test),
            learn=learn,
            table=lambda rows: _table(config, rows),
            loss="train_loss",
            tables=_tables,
            platform=describe_device(find_device(config.device)),
        )
        return run_trial(trial, out, overwrite, on_event, on_row)


def check_images(config: Config, data: Photographs) -> Config:
    """A ValueError if the configuration wants more images than there are."""
    for name, wanted, images in (("images", config.images, data.train), ("test_images", config.test_images, data.test)):
        if wanted is not None and wanted > len(images.labels):
            raise ValueError(f"{name}: got {wanted}, expected at most the {len(images.labels)} of {images.name}")
    return config


def _table(config: Config, rows: list[Row]) -> pl.DataFrame:
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64)).with_columns(pl.col(WHOLE).cast(pl.Int64))
    return table.insert_column(0, pl.Series("seed", [config.seed] * len(rows), dtype=pl.Int64))


def _tables(trainer: Trainer) -> dict[str, pl.DataFrame]:
    boxes = trainer.boxes()
    return {} if boxes.is_empty() else {"boxes": boxes}
