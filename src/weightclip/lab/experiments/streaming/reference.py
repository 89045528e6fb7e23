"""The reference backend: plain PyTorch, one sample at a time. It defines the results of the fused backend."""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from weightclip.clipping import find_clipper
from weightclip.diagnostics import (
    gradient_matrices,
    l1_norm,
    l2_norm,
    negative_fraction,
    sample_plasticity,
    saturated_fraction,
    weight_matrices,
)
from weightclip.lab.callbacks import Progress, ignore
from weightclip.lab.checkpoint import Arrays, load_training_state, training_state
from weightclip.lab.data import Dataset
from weightclip.lab.experiments.streaming.config import Config, check_outputs
from weightclip.lab.experiments.streaming.problem import Task
from weightclip.lab.experiments.streaming.rules import ORIGINAL
from weightclip.lab.networks.mlp import mlp
from weightclip.madam import Madam

STEPS_BETWEEN_REPORTS = 100


class Reference:
    """Trains any network with any optimizer and its hooks, one sample at a time.

    Args:
        model: network, [1, d] -> [1, classes or more].
        optimizer: optimizer of its parameters, with regularizers attached.
        dataset: data that the tasks are drawn from.
        diagnostics: whether to measure more than accuracy and loss.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, dataset: Dataset, *, diagnostics: bool = True) -> None:
        self.model = model
        self.optimizer = optimizer
        self.diagnostics = diagnostics
        self._clipper = find_clipper(optimizer)
        self._codes, self._labels = dataset.codes, dataset.labels
        dtype = next(model.parameters()).dtype
        self._decode = dataset.decode(torch.empty(0, dtype=dtype).numpy().dtype)
        self._hidden: list[Tensor] = []  # pre-activations of the last forward pass
        self._tanh: list[Tensor] = []  # tanh outputs of the last forward pass
        if diagnostics:
            for module in model.modules():
                if isinstance(module, (nn.ReLU, nn.LeakyReLU, nn.Tanh)):
                    module.register_forward_hook(self._record_activations)

    def learn(self, task: Task, progress: Progress = ignore) -> dict[str, float]:
        """Train on one task and return the mean of each metric over its steps."""
        totals: dict[str, float] = {}
        classes = torch.from_numpy(task.classes)
        for step, row in enumerate(task.rows, start=1):
            x = torch.from_numpy(self._decode[self._codes[row][task.columns]])
            y = classes[int(self._labels[row])]
            for name, value in self.step(x[None], y[None]).items():
                totals[name] = totals.get(name, 0.0) + value
            if step % STEPS_BETWEEN_REPORTS == 0:
                progress(step, totals["accuracy"] / step)
        return {name: total / len(task.rows) for name, total in totals.items()}

    def step(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Predict, measure and update: x [1, d], y [1] -> the metrics of this step."""
        self._clear_activations()
        logits = self.model(x)
        loss = cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        measured = {"accuracy": float(logits.argmax(1) == y), "loss": loss.item()}
        if not self.diagnostics:
            self.optimizer.step()
            return measured
        measured |= {"negative": negative_fraction(self._hidden), "saturated": saturated_fraction(self._tanh)}
        self.optimizer.step()
        with torch.no_grad():
            after = cross_entropy(self.model(x), y)
        weights, gradients = weight_matrices(self.model), gradient_matrices(self.model)
        return measured | {
            "plasticity": sample_plasticity(loss, after).item(),
            "weight_l2": l2_norm(weights).item(),
            "weight_l1": l1_norm(weights).item(),
            "gradient_l2": l2_norm(gradients).item(),  # of the loss only: penalties do not change p.grad
            "gradient_l1": l1_norm(gradients).item(),
            "clipped": self._clipped_fraction(),
        }

    def weights(self) -> list[NDArray[Any]]:
        """The current parameters, in the order of `model.parameters()`."""
        return [p.detach().numpy().copy() for p in self.model.parameters()]

    def state(self) -> Arrays:
        """The parameters, and the state of the optimizer and its hooks."""
        return training_state(self.model, self.optimizer)

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`."""
        load_training_state(self.model, self.optimizer, state)

    def _record_activations(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._hidden.append(inputs[0].detach())
        if isinstance(module, nn.Tanh):
            self._tanh.append(output.detach())

    def _clear_activations(self) -> None:
        self._hidden.clear()
        self._tanh.clear()

    def _clipped_fraction(self) -> float:
        """The fraction of entries of clipped tensors that this step clipped; NaN if it is not tracked.

        A clipper tracks it with `track_clipped=True`; Madam does not track its own clipping.
        """
        if self._clipper is None:
            return math.nan if isinstance(self.optimizer, Madam) else 0.0
        return self._clipper.clipped_fraction if self._clipper.track_clipped else math.nan


def make_reference(config: Config, dataset: Dataset) -> Reference:
    """The learner of a resolved configuration: network, optimizer and regularizers."""
    outputs = check_outputs(config, dataset.classes, dataset.name)
    dtype = {"float32": torch.float32, "float64": torch.float64}[config.dtype]
    model = mlp(dataset.inputs.shape[1], config.hidden, outputs, config.activation, config.seed, dtype)
    optimizer = config.make_optimizer(model, original=config.variant == ORIGINAL, track_clipped=config.diagnostics)
    return Reference(model, optimizer, dataset, diagnostics=config.diagnostics)
