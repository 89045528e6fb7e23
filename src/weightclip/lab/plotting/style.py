"""The style of all figures: each method has one color, marker and line style.

Color and marker show the regularizer, the line style shows the optimizer. The colors are the color-blind-safe palette
of Okabe and Ito (2008); in grayscale, the markers distinguish the methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLORS = {
    "": "#000000",
    "wc": "#D55E00",
    "l2init": "#0072B2",
    "sp": "#009E73",
    "l2": "#56B4E9",
    "madam": "#CC79A7",
    "wc@switch": "#E69F00",
}
"""Regularizer -> color. An optimizer without one is black; Madam has its own color."""

MARKERS = {"": "", "wc": "o", "l2init": "s", "sp": "^", "l2": "v", "madam": "D", "wc@switch": "X"}
"""Regularizer -> marker; black lines have none."""

OTHER_COLOR, OTHER_MARKER = "#777777", "P"
"""For combinations and for the user's own regularizers."""

LINES = {"sgd": "--", "adam": "-", "madam": "-"}
OTHER_LINE = "-."

NAMES = {
    "sgd": "SGD",
    "adam": "Adam",
    "madam": "Madam",
    "wc": "WC",
    "wc@switch": "WC@switch",
    "l2init": "L2 Init",
    "sp": "S&P",
    "sp@switch": "S&P@switch",
    "l2": "L2",
}

RC: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.7,
    "axes.edgecolor": "#555555",
    "axes.xmargin": 0.02,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "font.size": 8,
    "pdf.fonttype": 42,  # TrueType fonts: searchable, and accepted by publishers
}
"""matplotlib settings for every figure, sized for print."""


@dataclass(frozen=True)
class Style:
    """The style of a method. Lines with a higher `order` are drawn on top."""

    label: str
    color: str
    line: str
    marker: str
    order: int
    width: float = RC["lines.linewidth"]


def style_of(method: str) -> Style:
    """The style of a method.

    Examples:
        >>> style_of("sgd+wc")
        Style(label='SGD + WC', color='#D55E00', line='--', marker='o', order=4, width=1.1)
    """
    optimizer, *regularizers = method.split("+")
    regularizer = "+".join(regularizers) or ("madam" if optimizer == "madam" else "")
    label = " + ".join(NAMES.get(part, part) for part in (optimizer, *regularizers))
    return Style(
        label,
        color=COLORS.get(regularizer, OTHER_COLOR),
        line=LINES.get(optimizer, OTHER_LINE),
        marker=MARKERS.get(regularizer, OTHER_MARKER),
        order=4 if regularizer.startswith("wc") or "wc" in regularizers else 3,
    )
