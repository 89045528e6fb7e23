"""What is measured: a metric is defined once, by its experiment. Figures, docs and the command line read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Direction = Literal["higher", "lower", ""]

SHARE = "share"
"""The unit of a number from 0 to 1, which readers see in percent."""


@dataclass(frozen=True)
class Metric:
    """A measured quantity.

    Args:
        name: of the column.
        label: for axes and tables.
        help: how it is measured, in a line.
        unit: empty for a plain number; `SHARE` for a number from 0 to 1.
        direction: which values are better, where that can be said.
    """

    name: str
    label: str
    help: str
    unit: str = ""
    direction: Direction = ""


def by_name(*metrics: Metric) -> Mapping[str, Metric]:
    """Metrics for `Experiment.metrics`."""
    return MappingProxyType({metric.name: metric for metric in metrics})


Criterion = Literal["auc", "final"]

DEFAULT: Criterion = "auc"
"""The paper's."""

CRITERIA: Mapping[Criterion, str] = MappingProxyType(
    {"auc": "area under its curve", "final": "mean over the last tenth"}
)
"""Name -> what it takes of a metric: "accuracy, area under its curve"."""

LAST = 0.1
"""The share of rows, the last ones, that "final" takes."""
