"""Training: a network and its optimizer with regularizers, one epoch at a time, through the stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from weightclip._validation import check_count
from weightclip.clipping import Clipper, clip_weights, find_clipper
from weightclip.diagnostics import l2_norm, weight_matrices
from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks, Event, Progress, ignore
from weightclip.lab.checkpoint import Arrays, Row, load_training_state, training_state
from weightclip.lab.data.dataset import Source
from weightclip.lab.data.images import Images, load_images
from weightclip.lab.device import check_precision, describe_device, find_device, threads
from weightclip.lab.experiments.warm_start.batches import (
    Pixels,
    augmented,
    epoch_batches,
    halves,
    rows_to_test,
    rows_to_validate,
)
from weightclip.lab.experiments.warm_start.config import NAME, PAPER, Config, resolve
from weightclip.lab.experiments.warm_start.metrics import METRICS, SCHEMA, compare_with_paper
from weightclip.lab.networks.resnet import ResNet, resnet18
from weightclip.lab.optimizers import at_side, noise_seed
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial
from weightclip.regularizers.shrink_and_perturb import shrink_and_perturb

TEST_BATCH_SIZE = 500
"""Larger than in training: without gradients, a batch needs little memory."""

_BOXES = "boxes/"
"""Prefix, in a checkpoint, of the columns of the table of boxes."""


class Trainer:
    """Trains a network one epoch at a time.

    Args:
        config: a resolved configuration.
        train, test: the data.
    """

    def __init__(self, config: Config, train: Images, test: Images) -> None:
        self.config = config
        self.device = check_device(config)
        images, tested, self._epochs, self._batch_size = (
            check_count(name, getattr(config, name)) for name in ("images", "test_images", "epochs", "batch_size")
        )
        self._stages = halves(len(train.labels), images, config.stages, config.seed)
        self._train = Pixels(train, self.device)
        if config.validation:
            self._test_rows, self._test = rows_to_validate(len(train.labels), images, tested, config.seed), self._train
        else:
            self._test_rows, self._test = rows_to_test(len(test.labels), tested), Pixels(test, self.device)
        self.model = make_network(config, train.classes).to(self.device)
        self._memory = memory_format(check_count("width", config.width), self.device)
        self.model = self.model.to(memory_format=self._memory)  # type: ignore[call-overload]
        self._forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if config.compile else self.model
        self._at_switch = config.parsed_method().at_switch
        # A fused optimizer is slower on a CPU.
        self.optimizer = config.make_optimizer(
            self.model, config.bounds, track_clipped=True, fused=self.device.type == "cuda"
        )
        self.clipper = find_clipper(self.optimizer)
        self._boxes_at_switch = pl.DataFrame()
        if config.init_kappa is not None:
            unused = torch.optim.SGD(self.model.parameters())
            clip_weights(unused, self.model, config.init_kappa, bounds=config.bounds).clip()

    def learn(self, epoch: int, last: Row | None = None, progress: Progress = ignore) -> Row:
        """Train for epoch 0, 1, ..., counted over all stages, and return its row; `last` is the previous row."""
        seen, accuracy = (int(last["samples"]), last["test_accuracy"]) if last else (0, 0.0)
        switched = self._switch() if epoch == self._epochs and self.config.stages == 2 else 0.0
        trained = self.train(epoch, lambda images: progress(seen + images, accuracy))
        tested = self.test()
        return {
            "epoch": epoch + 1,
            "stage": 1 + epoch // self._epochs,
            "samples": seen + trained["images"],
            "test_accuracy": tested["accuracy"],
            "test_loss": tested["loss"],
            "train_accuracy": trained["accuracy"],
            "train_loss": trained["loss"],
            "gap": trained["accuracy"] - tested["accuracy"],
            "weight_l2": l2_norm(weight_matrices(self.model)).item(),
            "clipped": switched if self.clipper is None else trained["clipped"],
        }

    def train(self, epoch: int, on_images: Callable[[int], None] = ignore) -> dict[str, float]:
        """Train for one epoch and return the number of images and the means; `on_images` receives the number so far."""
        self.model.train()
        images = 0
        loss_sum = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        fractions = []
        rows = self._stages[epoch // self._epochs]
        for part in epoch_batches(rows, self._batch_size, self.config.seed, epoch):
            x, y = self._train.batch(part.to(self.device))
            x = x.contiguous(memory_format=self._memory)
            if self.config.augment:
                x = augmented(x, self.config.seed, epoch, images)
            loss, logits = self.step(x, y)
            images += len(part)
            loss_sum += loss * len(part)
            right += (logits.argmax(1) == y).sum()
            if self.clipper is not None:
                fractions.append(self.clipper.clipped_fraction)
            on_images(images)
        return {
            "images": images,
            "accuracy": right.item() / images,
            "loss": loss_sum.item() / images,
            "clipped": sum(fractions) / max(1, len(fractions)),
        }

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One update: images [n, 3, h, w] and labels [n] -> their loss [] and logits [n, classes] before it."""
        with self._mixed():
            logits = self._forward(x)
            loss = self._loss(logits, y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach(), logits.detach()

    @torch.inference_mode()
    def test(self) -> dict[str, float]:
        """Accuracy and loss on the test images, or on those held out for validation."""
        self.model.eval()
        right, loss = 0.0, 0.0
        for rows in torch.split(self._test_rows, TEST_BATCH_SIZE):
            x, y = self._test.batch(rows.to(self.device))
            x = x.contiguous(memory_format=self._memory)
            with self._mixed():
                logits = self._forward(x)
                loss += self._loss(logits, y).item() * len(rows)
            right += (logits.argmax(1) == y).sum().item()
        return {"accuracy": right / len(self._test_rows), "loss": loss / len(self._test_rows)}

    def state(self) -> Arrays:
        """The network with its running statistics, and the optimizer with its regularizers."""
        boxes = {f"{_BOXES}{column.name}": np.array(column.to_list()) for column in self._boxes_at_switch}
        return training_state(self.model, self.optimizer) | boxes

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`."""
        boxes = {name for name in state if name.startswith(_BOXES)}
        load_training_state(self.model, self.optimizer, {name: state[name] for name in state if name not in boxes})
        self._boxes_at_switch = pl.DataFrame(
            {name.removeprefix(_BOXES): state[name] for name in state if name in boxes}
        )

    def boxes(self) -> pl.DataFrame:
        """The clipped tensors: box, largest entry, and fraction of entries at the sides of the box.

        The current values; for clipping at the switch, those right after it.
        """
        return self._boxes_at_switch if self.clipper is None else _boxes(self.model, self.clipper)

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy; the paper's variant uses the softmax's outputs as logits."""
        logits = logits.float()
        return cross_entropy(logits.softmax(1) if self.config.variant == PAPER else logits, y)

    def _mixed(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")

    def _switch(self) -> float:
        """Apply the regularizers that act at the switch and return the fraction of entries that were clipped."""
        settings = self.config.all_settings()
        clipped = 0.0
        if "sp" in self._at_switch:
            seed = noise_seed(self.config.seed)
            with shrink_and_perturb(self.optimizer, settings["decay"], settings["sigma"], seed=seed) as perturbation:
                perturbation.apply()
        if "wc" in self._at_switch:
            kappa = self.config.clipping_range()
            assert kappa is not None
            clipper = clip_weights(self.optimizer, self.model, kappa, bounds=self.config.bounds, track_clipped=True)
            clipper.clip()
            clipped = clipper.clipped_fraction
            self._boxes_at_switch = _boxes(self.model, clipper)
            clipper.remove()
        return clipped


def check_device(config: Config) -> torch.device:
    """The device of a configuration. Raise a ValueError if it is missing or slower with this precision."""
    device = find_device(config.device)
    with threads(config.threads):
        check_precision(config.precision, device)
    return device


def memory_format(width: int, device: torch.device) -> torch.memory_format:
    """Channels last, except for narrow networks on a CPU.

    There the multi-threaded backward pass of a 1x1 convolution with stride 2 and fewer than 16 channels writes out of
    bounds (PyTorch 2.13).
    """
    narrow = device.type == "cpu" and width < 16
    return torch.contiguous_format if narrow else torch.channels_last


def make_network(config: Config, classes: int) -> ResNet:
    """The network of a resolved configuration, initialized with its seed."""
    width, stem = check_count("width", config.width), str(config.stem)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        return resnet18(classes, width, stem)


def _boxes(model: nn.Module, clipper: Clipper) -> pl.DataFrame:
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    sides = {names[id(tensor)]: (tensor.detach(), side) for tensor, side in clipper.sides().items()}
    return pl.DataFrame(
        {
            "tensor": list(sides),
            "entries": [tensor.numel() for tensor, _ in sides.values()],
            "box": [float(torch.as_tensor(side).max()) for _, side in sides.values()],
            "largest": [tensor.abs().max().item() for tensor, _ in sides.values()],
            "at_box": [at_side(tensor, side).double().mean().item() for tensor, side in sides.values()],
        }
    )


DATA = "cifar10"
WHOLE = ("epoch", "stage", "samples")
"""Integer columns."""


@dataclass(frozen=True)
class Photographs:
    """CIFAR-10: training and test images."""

    train: Images
    test: Images

    @property
    def source(self) -> Source:
        return self.train.source

    @property
    def checksum(self) -> str:
        """The checksum of both splits."""
        return f"{self.train.source.checksum}+{self.test.source.checksum}"

    def facts(self) -> dict[str, Any]:
        """The description of the data in a record."""
        return {
            "name": self.train.name,
            "samples": len(self.train.labels),
            "kind": self.source.kind,
            "location": self.source.location,
            "checksum": self.checksum,
            "official": self.train.source.official and self.test.source.official,
        }


def load(data_dir: Path | None = None, event: Event = ignore) -> Photographs:
    """Load the data, mapped into memory."""
    return Photographs(load_images(DATA, "train", data_dir, event), load_images(DATA, "test", data_dir, event))


def run_config(
    config: Config,
    data: Photographs,
    out: Path | None = None,
    overwrite: bool = False,
    callbacks: Callbacks = NO_CALLBACKS,
) -> Record:
    """Run one configuration, resume it after its last epoch, or read its record if it is finished."""
    requested, config = config, check_images(resolve(config), data)
    assert config.epochs is not None  # resolved

    def learn(trainer: Trainer, epoch: int, rows: Sequence[Row]) -> Row:
        return trainer.learn(epoch, rows[-1] if rows else None, callbacks.on_progress)

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
            columns=("epoch", "stage", "samples", *METRICS),
            loss="train_loss",
            tables=_tables,
            platform=describe_device(find_device(config.device)),
            device=find_device(config.device).type,
        )
        return run_trial(trial, out, overwrite, callbacks.on_event, partial(callbacks.on_row, requested))


def check_images(config: Config, data: Photographs) -> Config:
    """Raise a ValueError if the configuration needs more images than the data has."""
    trained, tested = config.images or 0, config.test_images or 0
    total, test_total = len(data.train.labels), len(data.test.labels)
    if config.validation:  # both are drawn from the training images
        test_total = total - trained
    for name, number, largest in (("images", trained, total), ("test_images", tested, test_total)):
        if number > largest:
            left = " that are not trained on" if name == "test_images" and config.validation else ""
            raise ValueError(f"{name}: got {number}, expected at most the {largest} of {data.train.name}{left}")
    return config


def _table(config: Config, rows: list[Row]) -> pl.DataFrame:
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64)).with_columns(pl.col(WHOLE).cast(pl.Int64))
    return table.insert_column(0, pl.Series("seed", [config.seed] * len(rows), dtype=pl.Int64))


def _tables(trainer: Trainer) -> dict[str, pl.DataFrame]:
    boxes = trainer.boxes()
    return {} if boxes.is_empty() else {"boxes": boxes}
