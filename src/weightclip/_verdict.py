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

NEARLY_ALL = 0.95
"""A layer is dead if at least this fraction of its inputs is dormant in its last `LEAST` measurements."""


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
        relative_update: |w_t - w_{t-1}| / |w_{t-1}|; NaN if w_{t-1} is zero, or did not change for want of a gradient.
        dormant: fraction of dormant units among the inputs of the layer; NaN for a layer whose inputs are the data or
            unknown (recurrent weights), and if the step had no forward pass in training mode that runs hooks: a model
            in eval mode, or one compiled by torch.compile.
        effective_rank: exp(H(p)) with p the singular values of the weight over their sum (Roy & Vetterli, 2007).
        plasticity: max(1 - loss after the step / loss before it, 0) of the network; NaN without a closure.
        loss: loss before the step; NaN without a closure.
        lr_ratio: learning rate of the layer's parameter group relative to the first measured one that is not 0.
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
    lr_ratio: float = 1.0


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
    """Plasticity of one step, max(1 - loss after it / loss before it, 0), the loss before it, and the learning rate.

    The learning rate is relative to the first measured one, averaged over the parameter groups.
    """

    step: int
    plasticity: float
    loss: float
    lr_ratio: float = 1.0


class _Change(NamedTuple):
    """Means over the first and the last third of the steps, and the standard error of their difference."""

    early: float
    late: float
    error: float

    def fell(self, to: float = FALLEN) -> bool:
        return self.late < to * self.early and self.early - self.late > ERRORS * self.error

    def did_not_fall(self) -> bool:
        return self.late - FALLEN * self.early > ERRORS * self.error

    def rose(self, by: float) -> bool:
        return self.late > self.early + by and self.late - self.early > ERRORS * self.error


class _ScaledChange(NamedTuple):
    """The change of a quantity that depends on the learning rate, as measured and divided by the learning rate.

    A quantity fell only if both fell: a decaying learning rate lowers the first, a warmup the second.
    """

    measured: _Change
    divided: _Change

    def fell(self) -> bool:
        return self.measured.fell() and self.divided.fell()

    def did_not_fall(self) -> bool:
        return self.measured.did_not_fall() or self.divided.did_not_fall()

    def text(self) -> str:
        """The change after the division, which is the one that a schedule does not explain."""
        note = "" if self.measured == self.divided else " relative to the learning rate"
        return f"from {self.divided.early:.2g} to {self.divided.late:.2g}{note}"


def _change(steps: Sequence[int], values: Sequence[float]) -> _Change | None:
    """The change of a quantity over the steps; None if it is unknown in the first or the last third of them."""
    first, last = min(steps), max(steps)
    third = (last - first) / 3
    known = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    early = [value for step, value in known if step <= first + third]
    late = [value for step, value in known if step >= last - third]
    if not early or not late:
        return None
    parts = [variance(part) / len(part) if len(part) > 1 else math.inf for part in (early, late)]
    return _Change(mean(early), mean(late), math.sqrt(sum(parts)))


def _scaled_change(steps: Sequence[int], values: Sequence[float], ratios: Sequence[float]) -> _ScaledChange | None:
    """The change of a quantity over the steps, and that of the quantity divided by the relative learning rate."""
    measured = _change(steps, values)
    divided = _change(steps, [v / r if r > 0 else math.nan for v, r in zip(values, ratios, strict=True)])
    return None if measured is None or divided is None else _ScaledChange(measured, divided)


def judge(
    rows: Sequence[Measurement], pairs: Sequence[LossPair] | None = None, output_layers_known: bool = True
) -> Verdict:
    """Compare the first and the last third of the steps.

    Weights or a last loss that are not finite are a problem. If losses were measured, plasticity is lost if it fell by
    more than 20% and two standard errors and the loss rose by two standard errors. If the loss fell, there is no
    problem: a network that improves has less left to learn. If it did neither, the verdict is uncertain: a converged
    network looks the same. Plasticity and updates count as fallen only if they also fell relative to the learning rate,
    so a schedule alone is no sign. Without losses, the verdict names the signs (units became dormant, the effective
    rank fell, updates became smaller) and never decides. A dead layer rules out a certain verdict that there is no
    problem.

    Args:
        rows: the measurements of all layers.
        pairs: the losses around single steps; by default those of the rows.
        output_layers_known: whether the suggestion may refer to "output" and "hidden".
    """
    steps = {row.step for row in rows}
    layers: dict[str, list[Measurement]] = {}
    for row in rows:
        layers.setdefault(row.layer, []).append(row)
    if pairs is None:
        own = next(iter(layers.values()), [])
        found = [LossPair(row.step, row.plasticity, row.loss, row.lr_ratio) for row in own]
        pairs = [pair for pair in found if not math.isnan(pair.loss)]
    if reason := _divergence(layers, pairs):
        return Verdict(
            True,
            f"verdict: diverged; {reason}",
            "suggestion: restart from an earlier checkpoint with a smaller step size; clipping bounds the weights, "
            "but does not repair NaN",
        )
    if len(steps) < LEAST:
        return Verdict(False, f"verdict: too few measurements yet ({LEAST} are needed)", certain=False)
    growth = {layer: _late_mean(own) for layer, own in layers.items()}
    most = max(growth, key=lambda layer: growth[layer])
    grown = f"the largest norm ratio is {growth[most]:.2g}, of {most}"
    dead = _dead_layers(layers)
    if not pairs:
        return _without_loss(_signs(layers), dead, grown)

    at = [pair.step for pair in pairs]
    loss = _change(at, [pair.loss for pair in pairs])
    plasticity = _scaled_change(at, [pair.plasticity for pair in pairs], [pair.lr_ratio for pair in pairs])
    if plasticity is None or loss is None or not plasticity.fell():
        return _no_fall(plasticity, dead, grown, growth[most])
    what = f"plasticity fell {plasticity.text()}"
    if loss.fell(to=1.0):
        if dead:
            return _dead(dead, f"{what}, but the loss fell as well; {grown}")
        return Verdict(False, f"verdict: no problem; {what}, but the loss fell as well; {grown}")
    if not loss.rose(by=0.0):
        if dead:
            return _dead(dead, f"{what}, but the loss did not rise; {grown}")
        text = f"verdict: cannot tell yet; {what}, but the loss neither fell nor rose; {grown}"
        return Verdict(False, text, "suggestion: continue; a converged network looks the same", certain=False)
    what = "; ".join([what, *dead])
    if growth[most] < GROWN:
        text = f"verdict: loss of plasticity ({what}), but the weights have not grown ({grown})"
        return Verdict(True, text, "suggestion: clipping bounds growing weights; look for another cause")
    return _suggest(f"verdict: loss of plasticity ({what}) with growing weights ({grown})", output_layers_known)


def _divergence(layers: dict[str, list[Measurement]], pairs: Sequence[LossPair]) -> str:
    """The weight or the loss that is not finite in its last measurement, or ""."""
    for layer, own in layers.items():
        if not math.isfinite(own[-1].norm_ratio):
            return f"{layer} has NaN or infinite entries"
    return f"the loss is {pairs[-1].loss}" if pairs and not math.isfinite(pairs[-1].loss) else ""


def _no_fall(plasticity: _ScaledChange | None, dead: list[str], grown: str, growth: float) -> Verdict:
    """The verdict if losses were measured and plasticity has not fallen for certain."""
    if dead:
        return _dead(dead, grown)
    if plasticity is None or not plasticity.did_not_fall():
        why = "too few finite losses"
        if plasticity is not None:
            why = f"plasticity went {plasticity.text()} with a standard error of {plasticity.divided.error:.2g}"
        text = f"verdict: cannot tell yet; {why}, and {grown}"
        return Verdict(False, text, "suggestion: continue, or measure more often with every=...", certain=False)
    if growth < GROWN:
        return Verdict(False, f"verdict: no problem; no sign of lost plasticity, and {grown}")
    return Verdict(False, f"verdict: no problem yet; no sign of lost plasticity, but {grown}")


def _without_loss(signs: list[str], dead: list[str], grown: str) -> Verdict:
    """The verdict without a closure: healthy networks show the same signs, for example with weight decay."""
    shown = f"signs of lost plasticity: {', '.join(signs)}" if signs else "no signs of lost plasticity"
    text = "; ".join(["verdict: cannot tell without a loss", *dead, shown, grown])
    return Verdict(False, text, "suggestion: in supervised learning, pass the loss as closure=...", certain=False)


def _dead(dead: list[str], rest: str) -> Verdict:
    """The verdict on a dead layer without a loss of plasticity: the network may have been so from the start."""
    return Verdict(
        False,
        "; ".join(["verdict: cannot tell", *dead, rest]),
        "suggestion: reinitialize the layer, or restart with a smaller step size; clipping does not revive units",
        certain=False,
    )


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
    late = [row.norm_ratio for row in rows if row.step >= last - (last - rows[0].step) / 3]
    return mean(ratio for ratio in late if math.isfinite(ratio))


def _dead_layers(layers: dict[str, list[Measurement]]) -> list[str]:
    """The layers whose inputs are nearly all dormant or that no longer change, with the reason."""
    dead = []
    for layer, own in layers.items():
        dormant = [row.dormant for row in own if not math.isnan(row.dormant)][-LEAST:]
        updates = [row.relative_update for row in own[-LEAST:] if row.lr_ratio > 0]
        if len(dormant) == LEAST and min(dormant) >= NEARLY_ALL:
            dead.append(f"dead layer {layer}: {min(dormant):.0%} of its inputs are dormant")
        elif len(updates) == LEAST and not any(updates):
            dead.append(f"dead layer {layer}: its updates are 0")
    return dead


def _signs(layers: dict[str, list[Measurement]]) -> list[str]:
    """The signs of lost plasticity in any layer."""
    signs: dict[str, None] = {}
    for own in layers.values():
        steps = [row.step for row in own]
        rank = _change(steps, [row.effective_rank for row in own])
        updates = _scaled_change(steps, [row.relative_update for row in own], [row.lr_ratio for row in own])
        dormant = _change(steps, [row.dormant for row in own])
        if dormant is not None and dormant.rose(MORE_DORMANT):
            signs["units became dormant"] = None
        if rank is not None and rank.fell():
            signs["the effective rank fell"] = None
        if updates is not None and updates.fell():
            signs["updates became smaller"] = None
    return list(signs)
