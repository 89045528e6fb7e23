"""The verdict of `Monitor`: is this loss of plasticity, can the measurements tell, and which range is suggested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import NamedTuple

from weightclip._ranges import Kappa

GROWN = 1.5
"""Weights have grown if their norm exceeds the initial norm by this factor."""

FALLEN = 0.8
"""A quantity has fallen if its mean over the last third of the steps is below this factor of that over the first."""

MORE_DORMANT = 0.1
"""Units have become dormant if the fraction of dormant units rose by this much."""

ERRORS = 2.0
"""A change counts if it exceeds this many standard errors."""

LEAST = 3
"""Smallest number of measurements for a verdict."""

LEAST_WITHOUT_LOSS = 10
"""Smallest number of measurements for the verdict that there is no problem, if no loss was measured."""


@dataclass(frozen=True)
class Measurement:
    """Measurement of one layer at one step.

    Args:
        step: step of the optimizer, from 1.
        layer: name of the weight.
        norm_ratio: |w| / |w_0|. For a layer that was initialized to zero or to less than a tenth of PyTorch's default,
            |w| / (s_l sqrt(n / 3)) with n entries, the norm of that default. NaN only if w is not finite.
        beyond_1: fraction of entries outside the box of kappa = 1, |w_ij| > s_l.
        beyond_2: fraction of entries outside the box of kappa = 2.
        beyond_5: fraction of entries outside the box of kappa = 5.
        relative_update: |w_t - w_{t-1}| / |w_{t-1}|; NaN if w_{t-1} is zero.
        dormant: fraction of dormant units among the inputs of the layer; NaN for the first layer, whose inputs are the
            data, and if the step had no forward pass in training mode that runs hooks: a model in eval mode, or one
            compiled by torch.compile.
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
        problem: whether the network is losing plasticity or has diverged.
        text: the verdict in one sentence.
        suggestion: the suggested action; empty if there is none.
        certain: False if the measurements do not decide; `problem` is False then.
        kappa: the suggested argument of `clip_weights`; None if there is none.
    """

    problem: bool
    text: str
    suggestion: str = ""
    certain: bool = True
    kappa: Kappa | None = None


class LossPair(NamedTuple):
    """Plasticity of one step, max(1 - loss after it / loss before it, 0), and the loss before it."""

    step: int
    plasticity: float
    loss: float


class _Change(NamedTuple):
    """Means over the first and the last third of the steps, and the standard error of their difference."""

    early: float
    late: float
    error: float

    def fell(self) -> bool:
        return self.late < FALLEN * self.early and self.early - self.late > ERRORS * self.error

    def did_not_fall(self) -> bool:
        return self.late - FALLEN * self.early > ERRORS * self.error

    def rose(self, by: float) -> bool:
        return self.late > self.early + by and self.late - self.early > ERRORS * self.error

    def did_not_rise(self, by: float) -> bool:
        return self.early + by - self.late > ERRORS * self.error


def _change(steps: Sequence[int], values: Sequence[float]) -> _Change | None:
    """The change of a quantity over the steps; None if it is unknown in the first or the last third of them."""
    first, last = min(steps), max(steps)
    third = (last - first) / 3
    known = [(step, value) for step, value in zip(steps, values, strict=True) if not math.isnan(value)]
    early = [value for step, value in known if step <= first + third]
    late = [value for step, value in known if step >= last - third]
    if not early or not late:
        return None
    parts = [variance(part) / len(part) if len(part) > 1 else math.inf for part in (early, late)]
    return _Change(mean(early), mean(late), math.sqrt(sum(parts)))


def judge(
    rows: Sequence[Measurement], pairs: Sequence[LossPair] | None = None, output_layers_known: bool = True
) -> Verdict:
    """Compare the first and the last third of the steps.

    A weight that is not finite is a problem. If losses were measured, plasticity is lost if it fell by more than 20%
    and two standard errors while the loss did not fall by 20%: a converged network has little left to learn. Without
    losses, or if they do not decide and the loss does not fall, two of these signs are required: units became dormant,
    the effective rank fell, updates became smaller. Each must exceed two standard errors. If neither the signs nor
    their absence are clear, the verdict says so.

    Args:
        rows: the measurements of all layers.
        pairs: the losses around single steps; by default those of the rows.
        output_layers_known: whether the suggestion may refer to "output" and "hidden".
    """
    steps = sorted({row.step for row in rows})
    layers: dict[str, list[Measurement]] = {}
    for row in rows:
        layers.setdefault(row.layer, []).append(row)
    for layer, own in layers.items():
        if not math.isfinite(own[-1].norm_ratio):
            return Verdict(
                True,
                f"verdict: diverged; {layer} has NaN or infinite entries",
                "suggestion: restart from an earlier checkpoint with a smaller step size; clipping bounds the weights, "
                "but does not repair NaN",
            )
    if len(steps) < LEAST:
        return Verdict(False, f"verdict: too few measurements yet ({LEAST} are needed)", certain=False)
    if pairs is None:
        first = next(iter(layers.values()))
        pairs = [LossPair(row.step, row.plasticity, row.loss) for row in first]
    growth = {layer: _late_mean(own) for layer, own in layers.items()}
    most = max(growth, key=lambda layer: growth[layer])
    grown = f"the largest norm ratio is {growth[most]:.2g}, of {most}"
    signs, possible = _signs(layers)

    plasticity, loss = (
        _change([pair.step for pair in pairs], [getattr(pair, name) for pair in pairs]) if pairs else None
        for name in ("plasticity", "loss")
    )
    improves = loss is not None and loss.late < loss.early
    converged = loss is not None and loss.late < FALLEN * loss.early
    if plasticity is not None and plasticity.fell():
        what = f"plasticity fell from {plasticity.early:.3f} to {plasticity.late:.3f}"
    elif len(signs) >= 2 and (plasticity is None or not (plasticity.did_not_fall() or improves)):
        what = ", ".join(signs)
    else:
        unclear = len(signs) + len(possible) >= 2 or len(steps) < LEAST_WITHOUT_LOSS
        return _no_problem(plasticity, unclear, grown, growth[most])
    if converged:
        return Verdict(False, f"verdict: no problem; {what}, but the loss fell as well; {grown}")
    if growth[most] < GROWN:
        text = f"verdict: loss of plasticity ({what}), but the weights have not grown ({grown})"
        return Verdict(True, text, "suggestion: clipping bounds growing weights; look for another cause")
    return _suggest(f"verdict: loss of plasticity ({what}) with growing weights ({grown})", output_layers_known)


def _no_problem(plasticity: _Change | None, signs_unclear: bool, grown: str, growth: float) -> Verdict:
    """The verdict if no loss of plasticity was found: there is none, or the measurements cannot tell."""
    if plasticity is None:
        certain, why = not signs_unclear, "the signs are not clear without a loss"
    else:
        certain = plasticity.did_not_fall()
        change = f"{plasticity.early:.3f} to {plasticity.late:.3f}"
        why = f"plasticity went from {change} with a standard error of {plasticity.error:.2g}"
    if not certain:
        text = f"verdict: cannot tell yet; {why}, and {grown}"
        return Verdict(False, text, "suggestion: continue, or measure more often with every=...", certain=False)
    if growth < GROWN:
        return Verdict(False, f"verdict: no problem; no sign of lost plasticity, and {grown}")
    return Verdict(False, f"verdict: no problem yet; no sign of lost plasticity, but {grown}")


def _suggest(text: str, output_layers_known: bool) -> Verdict:
    """Suggest a range for lost plasticity with growing weights, from the study in docs/reproduction/ranges.md."""
    if not output_layers_known:
        return Verdict(
            True,
            text,
            "suggestion: clip_weights(optimizer, model, kappa=weightclip.graded(output_layers='...')), with names of "
            "the output layers, which cannot be found: new targets rewrite them, and a tight range keeps them plastic",
        )
    return Verdict(
        True,
        text,
        "suggestion: clip_weights(optimizer, model, kappa={'output': 1.0}), because new targets rewrite the output "
        "layers and a tight range keeps them plastic; if the input features change instead, "
        "kappa={'hidden': 1.0, 'output': 5.0}; if both may change, kappa=weightclip.graded()",
        kappa={"output": 1.0},
    )


def _late_mean(rows: Sequence[Measurement]) -> float:
    """Mean ratio of norms over the last third of the steps."""
    last = rows[-1].step
    return mean(row.norm_ratio for row in rows if row.step >= last - (last - rows[0].step) / 3)


def _signs(layers: dict[str, list[Measurement]]) -> tuple[list[str], list[str]]:
    """The signs of lost plasticity in any layer, and those that the measurements neither show nor exclude."""
    signs: list[str] = []
    possible: list[str] = []
    fractions = {"the effective rank fell": "effective_rank", "updates became smaller": "relative_update"}
    for text, name in (*fractions.items(), ("units became dormant", "dormant")):
        shown, excluded = [], []
        for number, own in enumerate(layers.values()):
            change = _change([row.step for row in own], [getattr(row, name) for row in own])
            if name == "dormant" and number == 0 and change is None:  # its inputs are the data
                continue
            if name == "dormant":
                shown.append(change is not None and change.rose(MORE_DORMANT))
                excluded.append(change is not None and change.did_not_rise(MORE_DORMANT))
            else:
                shown.append(change is not None and change.fell())
                excluded.append(change is not None and change.did_not_fall())
        if any(shown):
            signs.append(text)
        elif not all(excluded):
            possible.append(text)
    return signs, possible
