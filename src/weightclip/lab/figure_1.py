"""Figure 1 of the paper: the effect of clipping, L2 and L2 Init on a weight, computed with this library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from types import MappingProxyType

import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.clipping import clip_weights
from weightclip.lab.plotting.figure import Drawing
from weightclip.lab.plotting.panels import panels
from weightclip.lab.plotting.style import COLORS
from weightclip.regularizers.l2 import l2
from weightclip.regularizers.l2_init import l2_init

KAPPA, FAN_IN = 1.0, 2
EDGE = KAPPA / sqrt(FAN_IN)
"""kappa s of a layer with two weights."""

W_0 = (0.35 * EDGE, -0.6 * EDGE)
WEIGHTS = {"outside": (1.55 * EDGE, 0.7 * EDGE), "inside": (-0.75 * EDGE, -0.2 * EDGE)}
"""Two values of w_t: one outside the box in one direction, and one inside."""

STEPS, LR, DECAY = 6, 1.0, 0.3

LINES = {"l2": ":", "l2init": "--", "wc": "-"}

REGULARIZERS: Mapping[str, Callable[[Optimizer, nn.Module], object]] = MappingProxyType(
    {
        "l2": lambda optimizer, layer: l2(optimizer, DECAY),
        "l2init": lambda optimizer, layer: l2_init(optimizer, DECAY / 2),  # the penalty has no factor 1/2
        "wc": lambda optimizer, layer: clip_weights(optimizer, layer, KAPPA),
    }
)


def steps_of(regularizer: str, start: tuple[float, float]) -> list[tuple[float, float]]:
    """The weight at the start and after each step of SGD with zero gradient and a regularizer."""
    layer = nn.Linear(FAN_IN, 1, bias=False, dtype=torch.float64)
    _set_weight(layer.weight, W_0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)
    REGULARIZERS[regularizer](optimizer, layer)
    _set_weight(layer.weight, start)
    layer.weight.grad = torch.zeros_like(layer.weight)
    found = [start]
    for _ in range(STEPS):
        optimizer.step()
        w_1, w_2 = layer.weight[0].tolist()
        found.append((w_1, w_2))
    return found


@torch.no_grad()
def _set_weight(weight: Tensor, where: tuple[float, float]) -> None:
    weight.copy_(torch.tensor([where], dtype=weight.dtype))


def figure_1() -> Drawing:
    """Draw two weights under each regularizer with a constant loss. It needs no results."""
    data = pl.DataFrame(
        [
            {"regularizer": regularizer, "weight": weight, "step": step, "w_1": w_1, "w_2": w_2}
            for regularizer in REGULARIZERS
            for weight, start in WEIGHTS.items()
            for step, (w_1, w_2) in enumerate(steps_of(regularizer, start))
        ]
    )
    with panels(1, 1, 3.2, 2.7) as (picture, ((axes,),)):
        _draw_box(axes)
        for (regularizer, _), steps in data.group_by("regularizer", "weight", maintain_order=True):
            _draw_steps(axes, str(regularizer), steps["w_1"].to_list(), steps["w_2"].to_list())
        _draw_points(axes)
    return Drawing(picture, data)


def _draw_box(axes: Axes) -> None:
    axes.add_patch(Rectangle((-EDGE, -EDGE), 2 * EDGE, 2 * EDGE, facecolor="#F0F0F0", edgecolor=COLORS["wc"], zorder=1))
    axes.annotate(r"$[-\kappa s, \kappa s]^2$", (-0.95 * EDGE, 0.95 * EDGE), va="top")
    axes.set(xlim=(-1.25 * EDGE, 1.95 * EDGE), ylim=(-1.25 * EDGE, 1.3 * EDGE), xlabel="$w_1$", ylabel="$w_2$")
    ticks, labels = (-EDGE, 0, EDGE), (r"$-\kappa s$", "0", r"$\kappa s$")
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.set_aspect("equal")


def _draw_steps(axes: Axes, regularizer: str, w_1: list[float], w_2: list[float]) -> None:
    """Draw the weight after each step, and an arrow from the first to the last; all paths are straight."""
    color = COLORS[regularizer]
    axes.plot(w_1[1:-1], w_2[1:-1], "o", color=color, markersize=2.5, zorder=3)
    if (w_1[-1], w_2[-1]) != (w_1[0], w_2[0]):
        arrow = FancyArrowPatch(
            (w_1[0], w_2[0]),
            (w_1[-1], w_2[-1]),
            arrowstyle="-|>",
            mutation_scale=9,
            shrinkA=0,
            shrinkB=0,
            color=color,
            linestyle=LINES[regularizer],
            linewidth=1.4,
            zorder=4,
        )
        axes.add_patch(arrow)


def _draw_points(axes: Axes) -> None:
    for name, (w_1, w_2), marker, shift in (
        ("$0$", (0.0, 0.0), "X", (5, -9)),
        ("$w_0$", W_0, "s", (5, -9)),
        ("$w_t$", WEIGHTS["outside"], "o", (5, -3)),
        ("$w_t$", WEIGHTS["inside"], "o", (-6, -11)),
    ):
        axes.plot(w_1, w_2, marker, color="black", markersize=5, zorder=5)
        axes.annotate(name, (w_1, w_2), xytext=shift, textcoords="offset points")
    for name, w_1, w_2 in (
        ("clipping", 1.05, 0.8),
        ("L2", 0.45, 0.33),
        ("L2 Init", 1.07, -0.1),
        ("unchanged by clipping", -0.95, 0.12),
    ):
        axes.annotate(name, (w_1 * EDGE, w_2 * EDGE))
