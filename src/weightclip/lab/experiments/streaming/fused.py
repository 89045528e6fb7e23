"""The fused backend: forward pass, backward pass, update and metrics of a sample in compiled code."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from weightclip._box import limit, unit_limits
from weightclip._layer_ranges import find_output_names, with_ranges
from weightclip._ranges import Kappa, Units, read_kappa
from weightclip.bounds import bounds_by_tensor, resolve_bounds
from weightclip.lab.callbacks import Progress, ignore
from weightclip.lab.checkpoint import Arrays
from weightclip.lab.compiled import call, is_compiled, load_kernel
from weightclip.lab.data import Dataset, cache_directory
from weightclip.lab.experiments.streaming.config import Config, check_outputs
from weightclip.lab.experiments.streaming.kernel import kernel_source
from weightclip.lab.experiments.streaming.problem import Task
from weightclip.lab.networks.mlp import mlp

CHUNK = 500
"""Steps between two progress reports. It is constant because each chunk starts with a separate forward pass, which
rounds differently from the one fused with the previous update."""

MEASURES = (
    "accuracy",
    "loss",
    "plasticity",
    "weight_l2",
    "weight_l1",
    "gradient_l2",
    "gradient_l1",
    "clipped",
    "negative",
    "saturated",
)
"""Metrics that the kernel sums, in its order."""


class Fused:
    """Trains a fully connected network one sample at a time.

    Args:
        config: a resolved configuration.
        dataset: data that the tasks are drawn from.
        noise: [updates, P], noise to use instead of generated noise; P is the number of weights and biases.
    """

    def __init__(self, config: Config, dataset: Dataset, noise: NDArray[np.float64] | None = None) -> None:
        method, settings = config.parsed_method(), config.all_settings()
        outputs = check_outputs(config, dataset.classes, dataset.name)
        dtype = torch.float32 if config.dtype == "float32" else torch.float64
        model = mlp(dataset.inputs.shape[1], config.hidden, outputs, config.activation, config.seed, dtype)
        boxes = _boxes(model, config.clipping_range())
        per_unit = any(one.per_unit for one in boxes)
        source = kernel_source(method, config.activation, config.dtype, config.diagnostics, per_unit)
        self._kernel = load_kernel(source, cache_directory("kernels"))
        self._method = config.method
        self._dataset = dataset
        self._table = dataset.decode(config.dtype)
        self._sizes = np.array([dataset.inputs.shape[1], *config.hidden, outputs])
        self._settings = np.array([settings.get(name, 1.0) for name in method.settings])
        self._constants = np.array([[one.s, one.box, one.rms] for one in boxes])
        widest = int(self._sizes.max()) if per_unit else 1
        self._row_box, self._column_box = (np.full((len(boxes), widest), np.inf, config.dtype) for _ in range(2))
        for k, one in enumerate(boxes if per_unit else ()):
            self._row_box[k, : len(one.rows)] = one.rows
            self._column_box[k, : len(one.columns)] = one.columns
        self._shapes = [tuple(p.shape) for p in model.parameters()]
        self._theta = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        self._states = np.zeros((self._kernel.STATES, self._theta.size), config.dtype)
        self._initial = self._theta.copy() if self._kernel.INITIAL else self._theta[:0].copy()
        if noise is not None and (noise.ndim != 2 or noise.shape[1] != self._theta.size):
            raise ValueError(f"noise: got the shape {noise.shape}, expected (updates, {self._theta.size})")
        self._noise = noise
        self._seed = config.seed
        self._step = 0
        clips = any(rule.name == "wc" for rule in method.regularizers)
        self._units = {
            "clipped": sum(one.entries for one in boxes) if clips else math.nan if "kappa" in settings else math.inf,
            "negative": sum(config.hidden) or math.nan,
            "saturated": (sum(config.hidden) or math.nan) if config.activation == "tanh" else math.nan,
        }
        self._measures = MEASURES if config.diagnostics else MEASURES[:2]

    @property
    def kernel(self) -> str:
        """The name of the kernel, which contains the hash of its source."""
        return self._kernel.__name__

    @property
    def compiled(self) -> bool:
        """Whether the kernel is in the cache."""
        return is_compiled(self._kernel)

    def learn(self, task: Task, progress: Progress = ignore) -> dict[str, float]:
        """Train on one task and return the mean of each metric over its steps."""
        self._check(task)
        totals = np.zeros(len(MEASURES))
        for first in range(0, len(task.rows), CHUNK):
            rows = task.rows[first : first + CHUNK]
            try:
                self._learn(rows, task, totals)
            except NumbaError as error:
                raise ValueError(f"method: the rules of {self._method!r} do not compile: {_reason(error)}") from error
            progress(first + len(rows), totals[0] / (first + len(rows)))
        means = dict(zip(MEASURES, (totals / len(task.rows)).tolist(), strict=True))
        return {name: means[name] / self._units.get(name, 1.0) for name in self._measures}

    def _check(self, task: Task) -> None:
        """Reject tasks of other data, because compiled code does not check bounds."""
        n, d = self._dataset.inputs.shape
        outputs = self._sizes[-1]
        limits = ((task.rows, n), (task.columns, d), (task.classes, outputs))
        fits = len(task.columns) == d and len(task.classes) > self._dataset.labels.max()
        if not fits or any(values.min() < 0 or values.max() >= limit for values, limit in limits):
            raise ValueError(f"task: got a task that does not match {n} inputs of size {d} and {outputs} outputs")
        if self._noise is not None and self._step + len(task.rows) > len(self._noise):
            raise ValueError(f"noise: got {len(self._noise)} updates, expected noise for every update")

    def _learn(self, rows: NDArray[np.int64], task: Task, totals: NDArray[np.float64]) -> None:
        call(
            self._kernel,
            self._dataset.codes,
            self._dataset.labels,
            self._table,
            rows,
            task.columns,
            task.classes,
            self._theta,
            self._states,
            self._initial,
            self._sizes,
            self._constants,
            self._settings,
            self._row_box,
            self._column_box,
            self._step,
            self._seed,
            np.zeros((0, 0)) if self._noise is None else self._noise[self._step : self._step + len(rows)],
            totals,
        )
        self._step += len(rows)

    def weights(self) -> list[NDArray[Any]]:
        """The current parameters, in the order of `model.parameters()`."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes])
        parts = np.split(self._theta, ends[:-1])
        return [part.reshape(shape).copy() for part, shape in zip(parts, self._shapes, strict=True)]

    def state(self) -> Arrays:
        """All parameters, the optimizer's states, the initial weights if they are needed, and the number of updates."""
        return {
            "theta": self._theta.copy(),
            "states": self._states.copy(),
            "initial": self._initial.copy(),
            "step": np.array(self._step),
        }

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`."""
        for name, array in (("theta", self._theta), ("states", self._states), ("initial", self._initial)):
            if state[name].shape != array.shape or state[name].dtype != array.dtype:
                raise ValueError(
                    f"{name}: got {state[name].dtype}{state[name].shape}, expected {array.dtype}{array.shape}"
                )
        for name, array in (("theta", self._theta), ("states", self._states), ("initial", self._initial)):
            array[:] = state[name]
        self._step = int(state["step"])


def _reason(error: NumbaError) -> str:
    """The reason in numba's long error message."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    first = next((line for line in lines if line and not line.startswith("Failed in")), "no reason given")
    call = next((line.removeprefix(">>>") for line in lines if line.startswith(">>>")), "")
    return first + call


@dataclass(frozen=True)
class _Box:
    """The box of one tensor.

    Args:
        s: 1/sqrt(fan_in).
        box: kappa s, rounded toward 0 in the tensor's type; infinite if the tensor is not clipped.
        rms: root mean square of the tensor's entries.
        entries: number of entries if the tensor is clipped, else 0.
        rows, columns: per-unit boxes of the rows, and of the columns where those of the rows are infinite. A bias is
            one row.
    """

    s: float
    box: float
    rms: float
    entries: int
    per_unit: bool
    rows: NDArray[Any]
    columns: NDArray[Any]


def _boxes(model: torch.nn.Module, kappa: Kappa | None) -> list[_Box]:
    """The box of each tensor, in the order of `model.parameters()`."""
    number, rule = (math.inf, None) if kappa is None else read_kappa(kappa)
    tensors = {id(p): p for p in model.parameters()}
    resolved = with_ranges(model, bounds_by_tensor(model), rule, find_output_names(model, rule), tensors)
    plain = resolve_bounds(model)
    found = []
    for name, p in model.named_parameters():
        bound = resolved[id(p)].bound
        s, rms = plain[name].s, p.detach().square().mean().sqrt().item()
        assert s is not None
        shape = (1, p.numel()) if p.dim() == 1 else tuple(p.shape)
        rows, columns = (np.full(size, np.inf, np.float64) for size in shape)
        box, per_unit = math.inf, isinstance(bound.range, Units)
        if bound.s is not None and per_unit:
            limits = unit_limits(number, bound, p).flatten().double().numpy()
            along_rows = p.dim() > 1 and bound.range.dim == 0  # type: ignore[union-attr]
            (rows if along_rows else columns)[:] = limits
        elif bound.s is not None:
            box = limit(number, bound, p.dtype)
            rows[:] = box
        found.append(_Box(s, box, rms, p.numel() if bound.s is not None else 0, per_unit, rows, columns))
    return found
