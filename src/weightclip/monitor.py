"""Monitor for loss of plasticity during training: per-layer diagnostics, a verdict and a suggested range."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip._box import is_sharded
from weightclip._budget import LEAST_EVERY, Schedule
from weightclip._layer_inputs import LayerInputs
from weightclip._step_hooks import StepHooks, stepping_optimizer
from weightclip._text import format_table
from weightclip._validation import check_count
from weightclip._verdict import LossPair, Measurement, Verdict, judge
from weightclip.bounds import bounds_by_tensor, output_tensors, tensor_names, unwrap
from weightclip.diagnostics import sample_plasticity

__all__ = ["LossPair", "Measurement", "Monitor", "Verdict", "effective_rank", "judge"]

KAPPAS = (1.0, 2.0, 5.0)
"""Values of kappa for which the fraction of entries outside the box is measured."""

BUDGET, LOSS_BUDGET = 0.004, 0.006
"""Default fractions of the training time for layers and for losses.

A loss is cheap and noisy, a layer is neither: losses get more time. Without a closure, layers get all of it. The hook
that counts steps takes about 1% of the steps of a very small network, and less in others.
"""

PART = 64
"""Largest number of rows and columns of the weight that is measured to estimate the cost of a measurement."""

LARGEST_SIDE = 512
"""Largest number of rows and columns of a weight matrix used for its effective rank."""

KEPT = 10_000
"""Largest number of stored rows and of stored losses; beyond it, every second step is dropped."""

SMALL_INIT = 0.1
"""Initial norms below this factor of the default initialization's norm are replaced by that norm as the reference."""

_OF_NETWORK = ("plasticity", "loss", "lr_ratio")
_Row = TypeVar("_Row", Measurement, LossPair)


class Monitor:
    """Measure the layers of a network during training and detect loss of plasticity.

    The monitor runs around `optimizer.step()` and does not change training. By default it measures as often as 1% of
    the training time allows, and first when a measurement fits into that time; losses more often than layers.

    Its verdict is meant for supervised learning with a closure. It is not reliable for agents of reinforcement
    learning, whose targets move and whose losses grow in healthy runs: compare the measurements of runs with and
    without clipping.

    Args:
        optimizer: any `torch.optim.Optimizer`; of an optimizer around another one (Lookahead), the steps of the inner
            one are measured.
        model: the module that owns the parameters.
        every: measure every n-th step regardless of the time; None: within the time budget. Sharded parameters (FSDP2)
            need a number, because all processes gather them at the same step.
        closure: returns the loss of a fixed batch or of the current one, without a backward pass and without side
            effects (dropout draws random numbers, batch normalization in training mode updates its statistics); called
            before and after a measured step.

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
        swapped: tuple[object, object] = (model, optimizer)
        if isinstance(swapped[0], Optimizer) and isinstance(swapped[1], nn.Module):
            raise TypeError("optimizer, model: the arguments are swapped; call Monitor(optimizer, model)")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")
        if closure is not None and not callable(closure):
            raise TypeError(f"closure: got {closure!r}, expected a function that returns a loss")
        self.every = None if every is None else check_count("every", every)
        self._closure = closure
        self._optimizer, self._model = stepping_optimizer(optimizer), model
        self._weights = _weights(self._optimizer, model)
        if not self._weights:
            raise ValueError("model: got no weight matrix with a bound rule in the optimizer, expected at least one")
        if every is None and any(is_sharded(w) for w, _ in self._weights.values()):
            raise ValueError(
                "every: got None, expected a number of steps, so that all processes measure at the same ones"
            )
        self._initial = {name: _reference_norm(w, s) for name, (w, s) in self._weights.items()}
        self._rows: list[Measurement] = []
        self._pairs: list[LossPair] = []
        self._step = 0
        cost = _expected_cost(self._weights) if every is None else None
        self._layer_schedule = Schedule(every, BUDGET if closure else BUDGET + LOSS_BUDGET, cost)
        self._loss_schedule = Schedule(every, LOSS_BUDGET, None)
        self._schedules = [self._layer_schedule, *([self._loss_schedule] if closure else [])]
        self._measures_layers = self._measuring = self.armed = False
        self._last_time, self._next_check = 0.0, 0
        self._inputs = LayerInputs(unwrap(model), set(self._weights))
        self._before: dict[str, Tensor] = {}
        self._loss: Tensor | float | None = None
        self._first_lr: dict[int, float] = {}
        self._lr_ratios: list[float] = []
        self._outputs_known: bool | None = None
        self._hooks = StepHooks.of(self._optimizer)
        self._hooks.add(self)
        self._start_interval(time.perf_counter())
        self._arm_if_due()

    def table(self) -> list[dict[str, Any]]:
        """One row per measurement and layer, oldest first; see `Measurement`."""
        return [asdict(row) for row in self._rows]

    def losses(self) -> list[dict[str, Any]]:
        """One row per measured loss, oldest first; empty without a closure.

        A row has `step`, `plasticity`, `loss`, and `lr_ratio`, the mean learning rate relative to the first one.
        """
        return [pair._asdict() for pair in self._pairs]

    def verdict(self) -> Verdict:
        """Whether the network is losing plasticity, from the first and the last third of the steps; see `judge`."""
        if self._outputs_known is None:
            try:
                self._outputs_known = bool(output_tensors(unwrap(self._model)))
            except ValueError:
                self._outputs_known = False
        return judge(self._rows, self._pairs if self._closure else None, self._outputs_known)

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
            if one.name not in ("step", "layer", *_OF_NETWORK)
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
        self._hooks.discard(self)
        self._disarm()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __str__(self) -> str:
        last = self._last()
        if not last:
            return "Monitor: no measurement yet"
        names = [one.name for one in fields(Measurement) if one.name not in ("step", *_OF_NETWORK)]
        rows = [[name.replace("_", " ") for name in names]]
        rows += [[_shown(getattr(row, name)) for name in names] for row in last]
        verdict = self.verdict()
        network = f", loss {last[0].loss:.3g}, plasticity {last[0].plasticity:.2g}" if self._closure else ""
        first = f"step {last[0].step:,}{network}"
        return "\n".join(filter(None, [first, *format_table(rows), verdict.text, verdict.suggestion]))

    def _last(self) -> list[Measurement]:
        return [row for row in self._rows if row.step == self._rows[-1].step] if self._rows else []

    def _arm_if_due(self) -> None:
        """Attach the hooks for the next step if it is measured; permanent forward hooks would slow down all others."""
        due = [schedule.is_due(self._step + 1) for schedule in self._schedules]
        self._measures_layers = all(due)  # with a loss, which must be due as well
        if self._measures_layers:
            self._follow_model()
            self._inputs.arm(self._before_forward, self._after_forward)
        self.armed = due[-1]

    def _disarm(self) -> None:
        self.armed = self._measuring = False
        self._inputs.disarm()
        self._before = {}

    def _follow_model(self) -> None:
        """Measure the new layers if layers of the model and of the optimizer were replaced."""
        model = unwrap(self._model)
        if all(_has(model, name, w) for name, (w, _) in self._weights.items()):
            return
        try:
            found = _weights(self._optimizer, model)
        except ValueError:  # a lazy layer
            return
        for name, (w, s) in found.items():
            if name not in self._weights or self._weights[name][0] is not w:
                self._initial[name] = _reference_norm(w, s)
        self._weights = found or self._weights
        self._inputs = LayerInputs(model, set(self._weights))

    def after_step(self) -> None:
        """Count the step, and finish the measurement if it is measured."""
        self._count()
        if self._measuring:
            self._after_step()

    def _count(self) -> None:
        self._step += 1
        if self._step < self._next_check or self.armed:  # the time of a measured step is not that of the training
            return
        now = time.perf_counter()
        for schedule in self._schedules:
            schedule.earn(now - self._last_time, LEAST_EVERY)
        self._start_interval(now)
        self._arm_if_due()

    def _start_interval(self, now: float) -> None:
        """Check whether a measurement is due in some steps; a check at every step would slow down small networks."""
        self._last_time = now
        self._next_check = self._step + LEAST_EVERY if self.every is None else self._layer_schedule.next - 1

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        began = time.perf_counter()
        self._inputs.before(module, args, kwargs)
        self._layer_schedule.spent += time.perf_counter() - began

    def _after_forward(self, module: nn.Module, output: Any) -> None:
        began = time.perf_counter()
        self._inputs.after(module, output)
        self._layer_schedule.spent += time.perf_counter() - began

    def before_step(self) -> None:
        """Start the measurement of a step."""
        self._before_step()

    @torch.no_grad()
    def _before_step(self) -> None:
        began = time.perf_counter()
        self._lr_ratios = self._learning_rates()
        if self._measures_layers:
            self._before = {name: w.detach().clone() for name, (w, _) in self._weights.items()}
        middle = time.perf_counter()
        self._loss = self._evaluate()
        self._measuring = True
        self._layer_schedule.spent += middle - began
        self._loss_schedule.spent += time.perf_counter() - middle

    def _learning_rates(self) -> list[float]:
        """The learning rate of each group relative to its first measured one that is not 0; 1 without one."""
        ratios = []
        for number, group in enumerate(self._optimizer.param_groups):
            lr = group.get("lr")
            if lr is None:
                ratios.append(1.0)
                continue
            first = self._first_lr.get(number) or float(lr)
            self._first_lr[number] = first
            ratios.append(float(lr) / first if first else 0.0)
        return ratios

    def _evaluate(self) -> Tensor | float | None:
        """The loss of the closure, whose forward passes do not count for dormant units."""
        if self._closure is None:
            return None
        with LayerInputs.paused():
            loss = self._closure()
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(f"closure: returned a tensor of shape {tuple(loss.shape)}, expected one number, the loss")
        if not isinstance(loss, (Tensor, Real)):
            raise TypeError(f"closure: returned {loss!r}, expected a number, the loss")
        return loss

    @torch.no_grad()
    def _after_step(self) -> None:
        began = time.perf_counter()
        ratio = sum(self._lr_ratios) / len(self._lr_ratios)
        pair, before, after = LossPair(self._step, math.nan, math.nan, ratio), self._loss, self._evaluate()
        if before is not None and after is not None:
            losses = torch.as_tensor(before), torch.as_tensor(after)
            pair = LossPair(self._step, float(sample_plasticity(*losses)), float(losses[0]), ratio)
            self._pairs.append(pair)
        middle = time.perf_counter()
        self._loss_schedule.spent += middle - began
        measured = bool(self._before)
        if measured:
            self._measure_layers(pair)
        self._disarm()
        now = time.perf_counter()
        self._layer_schedule.spent += now - middle
        if measured:
            self._layer_schedule.finish(self._step)
        if self._closure is not None:
            self._loss_schedule.finish(self._step)
        self._arm_if_due()
        self._start_interval(time.perf_counter())

    def _measure_layers(self, pair: LossPair) -> None:
        groups = zip(self._optimizer.param_groups, self._lr_ratios, strict=False)
        ratios = {id(p): ratio for group, ratio in groups for p in group["params"]}
        for name, (w, s) in self._weights.items():
            measured = _measure(w, s, self._initial[name], self._before[name])
            if measured["relative_update"] == 0 and w.grad is None:
                measured["relative_update"] = math.nan
            dormant, loss = self._inputs.dormant(name), {"plasticity": pair.plasticity, "loss": pair.loss}
            ratio = ratios.get(id(w), 1.0)
            self._rows.append(Measurement(pair.step, name, **measured, **loss, dormant=dormant, lr_ratio=ratio))
        self._rows, self._pairs = _thin_out(self._rows), _thin_out(self._pairs)


def _thin_out(rows: list[_Row]) -> list[_Row]:
    """Drop every second step if there are too many rows; the first and the last step stay."""
    if len(rows) <= KEPT:
        return rows
    steps = sorted({row.step for row in rows})
    dropped = set(steps[1:-1:2])
    return [row for row in rows if row.step not in dropped]


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


def _has(model: nn.Module, name: str, w: Tensor) -> bool:
    """Whether a tensor is still the parameter of this name."""
    try:
        return model.get_parameter(name) is w
    except AttributeError:
        return False


def _expected_cost(weights: dict[str, tuple[Tensor, float]]) -> float:
    """Seconds that a measurement of all layers takes, estimated from a part of the most expensive one."""
    w, s = max(weights.values(), key=lambda one: _relative_cost(one[0]))
    part = w.detach().flatten(1)[:PART, :PART]
    for _ in range(2):  # the first one loads libraries
        began = time.perf_counter()
        _measure(part, s, 1.0, part)
        seconds = time.perf_counter() - began
    return seconds * sum(_relative_cost(w) for w, _ in weights.values())


def _relative_cost(w: Tensor) -> float:
    """The cost of measuring a weight, relative to one of PART x PART entries.

    It grows as the eigenvalue decomposition, in practice with the power 2.5 of the smaller side, or with the number of
    entries.
    """
    side = min(len(w), w.numel() // max(len(w), 1), LARGEST_SIDE)
    return max(1.0, float((side / PART) ** 2.5), w.numel() / (16 * PART**2))


def _measure(w: Tensor, s: float, initial: float, before: Tensor) -> dict[str, float]:
    """The quantities of one weight; see `Measurement`."""
    w, before = _whole(w), _whole(before)
    size, norm = w.abs(), _norm(w)
    finite = not math.isnan(norm)
    outside = torch.empty_like(size)  # in floating point, comparing and counting are several times faster
    return {
        "norm_ratio": norm / initial,
        **{
            f"beyond_{kappa:g}": float(torch.gt(size, kappa * s, out=outside).sum(dtype=torch.float32)) / size.numel()
            if finite
            else math.nan
            for kappa in KAPPAS
        },
        "relative_update": _norm(w - before) / size_before if (size_before := _norm(before)) else math.nan,
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


def _reference_norm(w: Tensor, s: float) -> float:
    """The norm of the weights now; for weights close to zero, the norm of a uniform distribution in [-s, s]."""
    default = s * math.sqrt(w.numel() / 3)
    initial = _norm(_whole(w))
    return initial if initial >= SMALL_INIT * default else default


def _whole(tensor: Tensor) -> Tensor:
    """All entries of a tensor, gathered from all processes if it is sharded."""
    whole: Tensor = tensor.detach()
    return whole.full_tensor() if is_sharded(whole) else whole  # type: ignore[attr-defined]


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach().float()))


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
