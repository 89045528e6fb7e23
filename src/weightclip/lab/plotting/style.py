"""The look of all figures: a method has one colour, one marker and one kind of line everywhere.

Colour and marker tell the remedy, the kind of line the optimizer. The colours are those of Okabe and Ito (2008), which
people with any kind of colour vision tell apart; in grey the markers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLOURS = {
    "": "#000000",
    "wc": "#D55E00",
    "l2init": "#0072B2",
    "sp": "#009E73",
    "l2": "#56B4E9",
    "madam": "#CC79A7",
    "wc@switch": "#E69F00",
}
"""Remedy -> colour; the optimizer alone is black, and Madam is a remedy of its own."""

MARKERS = {"": "", "wc": "o", "l2init": "s", "sp": "^", "l2": "v", "madam": "D", "wc@switch": "X"}
"""Remedy -> marker; black needs none."""

OTHERS, OTHER_MARKERS = "#777777", "P"
"""For combinations, and for remedies of the user's own."""

LINES = {"sgd": "--", "adam": "-", "madam": "-"}
OTHER_LINES = "-."

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
    "pdf.fonttype": 42,  # letters that can be searched for, and that publishers accept
}
"""matplotlib's settings for every figure, for print at its own size."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn; what has the higher order lies on top."""

    label: str
    colour: str
    line: str
    marker: str
    order: int


def style_of(method: str) -> Style:
    """The style of a method by its name.

    Examples:
        >>> style_of("sgd+wc")
        Style(label='SGD + WC', colour='#D55E00', line='--', marker='o', order=4)
    """
    optimizer, *remedies = method.split("+")
    remedy = "+".join(remedies) or ("madam" if optimizer == "madam" else "")
    label = " + ".join(NAMES.get(part, part) for part in (optimizer, *remedies))
    return Style(
        label,
        colour=COLOURS.get(remedy, OTHERS),
        line=LINES.get(optimizer, OTHER_LINES),
        marker=MARKERS.get(remedy, OTHER_MARKERS),
        order=4 if remedy.startswith("wc") or "wc" in remedies else 3,
    )
