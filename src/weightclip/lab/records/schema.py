"""The meaning of a table's columns. Each record includes it, so reading a table does not need its experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Direction = Literal["higher", "lower", ""]

FRACTION = "fraction"
"""The unit of a number from 0 to 1, which is shown in percent."""


@dataclass(frozen=True)
class Metric:
    """A measured quantity.

    Args:
        name: name of the column.
        label: text for axes and tables.
        help: one-line definition.
        unit: empty for a plain number; `FRACTION` for a number from 0 to 1.
        direction: whether higher or lower values are better, if either.
    """

    name: str
    label: str
    help: str
    unit: str = ""
    direction: Direction = ""


def by_name(*metrics: Metric) -> Mapping[str, Metric]:
    """Metrics for `Schema.metrics`."""
    return {metric.name: metric for metric in metrics}


@dataclass(frozen=True)
class Schema:
    """The columns of an experiment's main table.

    Args:
        experiment: name of the experiment.
        problems: problems of the experiment, in order.
        methods: the paper's methods, in the paper's order.
        fields: configuration field -> help, in order.
        settings: fields that are settings of a method; a mapping includes all of its entries.
        axes: fields that a sweep varies.
        x_column: column that counts the rows of a run, such as "task".
        score: metric that settings are selected by.
        unit: unit of `samples` and of progress, such as "samples" or "steps".
        metrics: definitions of the measured columns.
        panels: metrics in the picture of a run.
        plot_column: column of the horizontal axis of the picture; empty for `x_column`.
        plot_label: label of that axis.
        text_fields: fields whose values are text, such as the hidden layers "300,150".
    """

    experiment: str
    x_column: str
    score: str
    problems: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ("lr", "kappa", "kappa_rule", "decay", "sigma", "settings")
    axes: tuple[str, ...] = ("method",)
    unit: str = "samples"
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    panels: tuple[str, ...] = ()
    plot_column: str = ""
    plot_label: str = ""
    text_fields: tuple[str, ...] = ()

    def metric(self, column: str) -> Metric:
        """The definition of a column. A score without a definition counts as "higher is better"."""
        unnamed = Metric(column, column, "", direction="higher" if column == self.score else "")
        return self.metrics.get(column, unnamed)

    def ordered_methods(self, methods: Iterable[str]) -> list[str]:
        """The methods, each once: the paper's in its order, then the others by name."""
        known = {method: index for index, method in enumerate(self.methods)}
        return sorted(set(methods), key=lambda name: (known.get(name, len(known)), name))

    def as_dict(self) -> dict[str, Any]:
        """The schema as a JSON-compatible dictionary."""
        return {
            **asdict_shallow(self),
            "fields": list(self.fields.items()),  # JSON objects are written with sorted keys
            "metrics": [asdict(metric) for metric in self.metrics.values()],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Schema:
        """Create the schema from `as_dict`. Unknown entries of later versions are ignored."""
        known = {name: value for name, value in found.items() if name in cls.__dataclass_fields__}
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        metrics = by_name(*(Metric(**metric) for metric in known.get("metrics", ())))
        return cls(**{**known, **lists, "fields": dict(known.get("fields", ())), "metrics": metrics})

    def merge(self, other: Schema) -> Schema:
        """This schema with the additional fields and metrics of another version."""
        return Schema(
            **{
                **asdict_shallow(self),
                "fields": {**other.fields, **self.fields},
                "metrics": {**other.metrics, **self.metrics},
                "settings": tuple(dict.fromkeys((*self.settings, *other.settings))),
                "axes": tuple(dict.fromkeys((*self.axes, *other.axes))),
                "text_fields": tuple(dict.fromkeys((*self.text_fields, *other.text_fields))),
            }
        )


def asdict_shallow(schema: Schema) -> dict[str, Any]:
    """The attributes of a schema by name, without copying."""
    return {name: getattr(schema, name) for name in schema.__dataclass_fields__}


Criterion = Literal["auc", "final"]

DEFAULT: Criterion = "auc"
"""The paper's criterion."""

CRITERIA: Mapping[Criterion, str] = MappingProxyType(
    {"auc": "area under the curve", "final": "mean over the last tenth"}
)
"""Criterion -> definition: how the curve of a metric is reduced to one number."""

LAST_FRACTION = 0.1
"""The fraction of rows, at the end of a run, that "final" averages."""
