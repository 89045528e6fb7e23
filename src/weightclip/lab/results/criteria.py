"""Criteria: what of a run's curve counts when a method's best setting is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Criterion = Literal["auc", "final"]

DEFAULT: Criterion = "auc"
"""The paper's."""

CRITERIA: Mapping[Criterion, str] = MappingProxyType(
    {"auc": "area under its curve", "final": "mean over the last tenth"}
)
"""Name -> what it takes of a metric: "accuracy, area under its curve"."""

LAST = 0.1
"""The share of rows, the last ones, that "final" takes."""
