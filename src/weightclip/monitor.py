"""Monitor for loss of plasticity during training: per-layer diagnostics, a verdict and a suggested range."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import variance
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._text import format_table
from weightclip._torch_private import own_parameters
from weightclip._validation import check_count
from weightclip.bounds import bounds_by_tensor, tensor_names, unwrap
from weightclip.diagnostics import sample_plasticity

KAPPAS = (1.0, 2.0, 5.0)
"""Values of kappa for which the fraction of entries outside the box is measured."""

BUDGET = 0.015
"""Default fraction of the training time for measurements, without the small cost of hooks."""

LEAST_EVERY = 10
"""Default minimum number of steps between two measurements."""

DORMANT = 0.025
"""A unit is dormant if its mean absolute activation is at most this fraction of the mean over its layer."""

LARGEST_SIDE = 512
"""Largest number of rows and columns of a weight matrix used for its effective rank."""

KEPT = 10_000
"""Largest number of stored rows; beyond it, every second measurement of the older half is dropped."""

GROWN = 1.5
"""Weights have grown if their norm exceeds the initial norm by this factor."""

FALLEN = 0.8
"""A quantity has fallen if its mean over the last third of the measurements is below this factor of the first."""

MORE_DORMANT = 0.1
"""Units have become dormant if the fraction of dormant units rose by this much."""


@dataclass(frozen=True)
class Measurement:
    """Measurement of one layer at one step.

    Args:
        step: step of the optimizer, from 1.
        layer: name of the weight.
        norm_ratio: |w| / |w_0|.
        beyond_1: fraction of entries outside the box of kappa = 1, |w_ij| > s_l.
        beyond_2: fraction of entries outside the box of kappa = 2.
        beyond_5: fraction of entries outside the box of kappa = 5.
        relative_update: |w_t - w_{t-1}| / |w_{t-1}|.
        dormant: fraction of dormant units among the inputs of the layer; NaN for the first layer, whose inputs are the
            data.
        effective_rank: exp(H(p)) with p the singular values of the weight over their sum (Roy & Vetterli, 2007).
        plasticity: max(1 - loss after the step / loss before it, 0) of the network; NaN without a closure.
        loss: loss before the step; NaN without a closure.
    """

    step: int
    layer: str
    norm_ratio: float
    beyond_1: float
    beyond_2: float
    beyond_5: float
    relative_update: float
    dormant: float
    effective_rank: float
    plasticity: float = math.nan
    loss: float = math.nan


@dataclass(frozen=True)
class Verdict:
    """Verdict on the measurements.

    Args:
        problem: whether the network is losing plasticity.
        text: the verdict in one sentence.
        suggestion: the suggested action; empty if there is none.
    """

    problem: bool
    text: str
    suggestion: str = ""


class Monitor:
    """Measure the layers of a network during training and detect loss of plasticity.

    The monitor runs around `optimizer.step()` and does not change training. By default it measures as often as 2% of
    the training time allows.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        model: the module that owns the parameters.
        every: measure every n-th step regardless of the time; None: within the time budget.
        closure: returns the loss of a fixed batch or of the current one, without a backward pass; called before and
            after a measured step.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> monitor = Monitor(optimizer, model, every=1)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 4)).square().mean().backward()
        ...     optimizer.step()
        >>> [row["layer"] for row in monitor.table()[-2:]], monitor.verdict().problem
        (['0.weight', '2.weight'], False)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        every: int | None = None,
        closure: Callable[[], Tensor | float] | None = None,
    ) -> None:
        self.every = None if every is None else check_count("every", every)
        self._closure = closure
        self._weights = _weights(optimizer, model)
        if not self._weights:
            raise ValueError("model: got no weight matrix with a bound rule in the optimizer, expected at least one")
        self._initial = {name: _norm(w) for name, (w, _) in self._weights.items()}
        self._rows: list[Measurement] = []
        self._step, self._next = 0, every or LEAST_EVERY
        self._spent, self._began = 0.0, time.perf_counter()
        self._inputs: dict[str, tuple[Tensor, int]] = {}
        self._before: dict[str, Tensor] = {}
        self._loss: Tensor | float | None = None
        self._optimizer = optimizer
        self._layers = [
            (self._input_hook(f"{path}.{own}" if path else own), module)
            for path, module in unwrap(model).named_modules()
            for own in own_parameters(module)
            if (f"{path}.{own}" if path else own) in self._weights
        ]
        self._armed: list[Any] = []
        self._counting: Any = optimizer.register_step_post_hook(self._count)
        if self._next == 1:
            self._arm()

    def table(self) -> list[dict[str, Any]]:
        """One row per measurement and layer, oldest first; see `Measurement`."""
        return [asdict(row) for row in self._rows]

    def verdict(self) -> Verdict:
        """Whether the network is losing plasticity, from the first and the last third of the measurements."""
        return judge(self._rows)

    def log(self, writer: Any, step: int | None = None) -> None:
        """Log the last measurement to a TensorBoard `SummaryWriter` or a Weights & Biases run.

        Args:
            writer: has `add_scalar(name, value, step)`, or `log(values, step=step)`.
            step: defaults to the step of the measurement.
        """
        last = self._last()
        if not last:
            return
        values = {
            f"weightclip/{row.layer}/{one.name}": getattr(row, one.name)
            for row in last
            for one in fields(row)
            if one.name not in ("step", "layer", "plasticity", "loss")
        }
        values |= {f"weightclip/{name}": getattr(last[0], name) for name in ("plasticity", "loss")}
        values = {name: value for name, value in values.items() if not math.isnan(value)}
        at = last[0].step if step is None else step
        if hasattr(writer, "add_scalar"):
            for name, value in values.items():
                writer.add_scalar(name, value, at)
        elif hasattr(writer, "log"):
            writer.log(values, step=at)
        else:
            raise TypeError(f"writer: got {type(writer).__name__}, expected add_scalar (TensorBoard) or log (W&B)")

    def remove(self) -> None:
        """Stop measuring; the measurements remain available."""
        self._counting.remove()
        self._disarm()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __str__(self) -> str:
        last = self._last()
        if not last:
            return "Monitor: no measurement yet"
        hidden = ("step", "plasticity", "loss")
        names = [one.name for one in fields(Measurement) if one.name not in hidden]
        rows = [[name.replace("_", " ") for name in names]]
        rows += [[_shown(getattr(row, name)) for name in names] for row in last]
        verdict = self.verdict()
        network = "" if math.isnan(last[0].loss) else f", loss {last[0].loss:.3g}, plasticity {last[0].plasticity:.3f}"
        first = f"step {last[0].step:,}{network}"
        return "\n".join(filter(None, [first, *format_table(rows), verdict.text, verdict.suggestion]))

    def _last(self) -> list[Measurement]:
        return [row for row in self._rows if row.step == self._rows[-1].step] if self._rows else []

    def _arm(self) -> None:
        """Attach the hooks for the next step; permanent hooks would slow down all other steps."""
        self._armed = [layer.register_forward_pre_hook(hook) for hook, layer in self._layers]
        self._armed.append(self._optimizer.register_step_pre_hook(self._before_step))

    def _disarm(self) -> None:
        while self._armed:
            self._armed.pop().remove()
        self._before, self._inputs = {}, {}

    def _count(self, optimizer: Optimizer, *_: object) -> None:
        self._step += 1
        if self._step == self._next - 1:
            self._arm()

    def _input_hook(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], Tensor) and module.training:
                self._add_input(name, module, inputs[0].detach())

        return hook

    def _add_input(self, name: str, module: nn.Module, x: Tensor) -> None:
        """Sum |x| per input unit: the channels of a convolution, otherwise the last dimension."""
        channels = 1 if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and x.dim() > 2 else x.dim() - 1
        size = x.abs().movedim(channels, -1).reshape(-1, x.shape[channels])
        total, count = self._inputs.get(name, (torch.zeros_like(size[0]), 0))
        if total.shape == size[0].shape:
            self._inputs[name] = total + size.sum(0), count + len(size)

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        began = time.perf_counter()
        # Registered now, the hook runs after all others, such as clipping.
        self._armed.append(optimizer.register_step_post_hook(self._after_step))
        self._before = {name: w.detach().clone() for name, (w, _) in self._weights.items()}
        inputs = dict(self._inputs)  # without the forward passes of the closure
        self._loss = None if self._closure is None else self._closure()
        self._inputs = inputs
        self._spent += time.perf_counter() - began

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        began = time.perf_counter()
        plasticity = loss = math.nan
        inputs = dict(self._inputs)
        if self._closure is not None and self._loss is not None:
            before, after = (torch.as_tensor(loss) for loss in (self._loss, self._closure()))
            plasticity, loss = float(sample_plasticity(before, after)), float(before)
        first = next(iter(self._weights))
        for name, (w, s) in self._weights.items():
            dormant = math.nan if name == first else _dormant(inputs.get(name))
            measured = _measure(w, s, self._initial[name], self._before[name])
            self._rows.append(
                Measurement(self._step, name, **measured, dormant=dormant, plasticity=plasticity, loss=loss)
            )
        self._disarm()
        if len(self._rows) > KEPT:
            self._thin_out()
        now = time.perf_counter()
        self._spent += now - began
        self._next = self._step + (self._interval(now) if self.every is None else self.every)
        if self._next == self._step + 1:
            self._arm()

    def _interval(self, now: float) -> int:
        """Number of steps after which measurements are within their time budget again."""
        a_step = max((now - self._began - self._spent) / self._step, 1e-9)
        a_measurement = self._spent / (len({row.step for row in self._rows}) or 1)
        # By then, the time of all measurements including the next one is within the budget.
        steps = (self._spent + a_measurement) / BUDGET / a_step - self._step
        return max(LEAST_EVERY, math.ceil(steps))

    def _thin_out(self) -> None:
        """Drop every second measurement of the older half."""
        steps = sorted({row.step for row in self._rows})
        dropped = set(steps[1 : len(steps) // 2 : 2])
        self._rows = [row for row in self._rows if row.step not in dropped]


def judge(rows: Sequence[Measurement]) -> Verdict:
    """Compare the first and the last third of the measurements.

    If plasticity was measured, it is lost if it fell by more than 20% and two standard errors while the loss did not
    fall: a converged network has little left to learn. Otherwise, two of these signs are required: units became
    dormant, the effective rank fell, updates became smaller.
    """
    steps = sorted({row.step for row in rows})
    if len(steps) < 3:
        return Verdict(False, "verdict: too few measurements yet (3 are needed)")
    third = len(steps) // 3
    early, late = set(steps[:third]), set(steps[-third:])
    names = list(dict.fromkeys(row.layer for row in rows))
    at: dict[tuple[str, bool], list[Measurement]] = {}
    for row in rows:
        if row.step in early or row.step in late:
            at.setdefault((row.layer, row.step in late), []).append(row)

    def mean(name: str, layer: str, is_late: bool) -> float:
        found = [getattr(row, name) for row in at[layer, is_late]]
        known = [value for value in found if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan

    def error(name: str) -> float:
        """Standard error of the difference between both thirds, for a quantity of the whole network."""
        parts = [[getattr(row, name) for row in at[names[0], is_late]] for is_late in (False, True)]
        return math.sqrt(sum(variance(part) / len(part) if len(part) > 1 else math.inf for part in parts))

    growth = {layer: mean("norm_ratio", layer, True) for layer in names}
    most = max(growth, key=lambda layer: growth[layer])
    signs = []
    for text, name in (("the effective rank fell", "effective_rank"), ("updates became smaller", "relative_update")):
        if any(mean(name, layer, True) < FALLEN * mean(name, layer, False) for layer in names):
            signs.append(text)
    if any(mean("dormant", layer, True) > mean("dormant", layer, False) + MORE_DORMANT for layer in names):
        signs.append("units became dormant")
    plasticity = [mean("plasticity", names[0], is_late) for is_late in (False, True)]
    if math.isnan(plasticity[0]):
        lost = len(signs) >= 2
        what = ", ".join(signs)
    else:
        loss = [mean("loss", names[0], is_late) for is_late in (False, True)]
        fell = plasticity[1] < FALLEN * plasticity[0] and plasticity[0] - plasticity[1] > 2 * error("plasticity")
        lost = fell and not loss[1] < FALLEN * loss[0]
        what = f"plasticity fell from {plasticity[0]:.3f} to {plasticity[1]:.3f}"
    grown = f"{most} has {growth[most]:.2g} times its initial norm"
    if not lost:
        if growth[most] < GROWN:
            return Verdict(False, f"verdict: no problem; no sign of lost plasticity, and {grown} at most")
        return Verdict(False, f"verdict: no problem yet; no sign of lost plasticity, but {grown}")
    if growth[most] < GROWN:
        text = f"verdict: loss of plasticity ({what}), but the weights have not grown ({grown})"
        return Verdict(True, text, "suggestion: clipping bounds growing weights; look for another cause")
    beyond = {kappa: max(mean(f"beyond_{kappa:g}", layer, True) for layer in names) for kappa in KAPPAS}
    kappa = next((kappa for kappa in KAPPAS if beyond[kappa] < 0.5), KAPPAS[-1])
    return Verdict(
        True,
        f"verdict: loss of plasticity ({what}) with growing weights ({grown})",
        f"suggestion: clip_weights(optimizer, model, kappa={kappa:g}), or kappa=weightclip.graded()",
    )


def _weights(optimizer: Optimizer, model: nn.Module) -> dict[str, tuple[Tensor, float]]:
    """Name -> weight and bound of each tensor of two or more dimensions in the optimizer."""
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    names = tensor_names(unwrap(model))
    resolved = bounds_by_tensor(model, wanted=held.keys())
    return {
        names[key][0]: (held[key], one.bound.s)
        for key, one in resolved.items()
        if key in held and one.bound.s is not None and held[key].dim() >= 2
    }


def _dormant(inputs: tuple[Tensor, int] | None) -> float:
    if inputs is None:
        return math.nan
    total, count = inputs
    mean = total / max(count, 1)
    return float((mean <= DORMANT * mean.mean()).double().mean())


def _measure(w: Tensor, s: float, initial: float, before: Tensor) -> dict[str, float]:
    """The quantities of one weight; see `Measurement`."""
    w = w.detach()
    size = w.abs()
    return {
        "norm_ratio": _norm(w) / max(initial, 1e-30),
        **{f"beyond_{kappa:g}": float((size > kappa * s).double().mean()) for kappa in KAPPAS},
        "relative_update": _norm(w - before) / max(_norm(before), 1e-30),
        "effective_rank": effective_rank(w),
    }


def effective_rank(weight: Tensor) -> float:
    """exp(-sum_i p_i log p_i) with p_i = sigma_i / sum_j sigma_j, for the first 512 rows and columns of the weight.

    Examples:
        >>> round(effective_rank(torch.eye(4)), 6)
        4.0
    """
    matrix = weight.detach().flatten(1)[:LARGEST_SIDE, :LARGEST_SIDE].double()
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    if not torch.isfinite(gram).all():
        return math.nan
    sigma = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    p = sigma / sigma.sum().clamp_min(1e-300)
    return math.exp(float(-(p * p.clamp_min(1e-300).log()).sum()))


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach().float()))


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
