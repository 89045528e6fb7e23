"""What the columns of a tidy table mean, and choosing among runs by them.

A *setting* is one choice of a method's settings. A *setup* is all else that was configured, besides the seed and the
method, with the data's checksum. Runs of different setups are never averaged or compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from weightclip._text import counted, read_count
from weightclip._validation import check_name
from weightclip.lab.experiment import Event, Experiment
from weightclip.lab.records.metrics import Metric
from weightclip.lab.records.tidy import CUT_SHORT, FIRST, LAST
from weightclip.lab.registry import find_experiment

_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}

log: Event = logging.getLogger(__name__).warning


@dataclass(frozen=True)
class Columns:
    """The columns of an experiment's tidy table.

    Args:
        experiment: whose table it is.
        setup: of the setup, `experiment` and `problem` first.
        settings: of the methods' settings; null where a method does not have one.
        axes: of the setup, those of which a sweep takes several values, to be shown beside each other.
        along: what a run's rows follow.
        score: the metric that settings are selected by.
    """

    experiment: Experiment[Any]
    setup: tuple[str, ...]
    settings: tuple[str, ...]
    axes: tuple[str, ...]
    along: str
    score: str

    def order(self, name: str) -> int:
        """Of a column, as the configuration has its fields; what is not configured comes last."""
        configured = [one.name for one in fields(self.experiment.config)]
        return configured.index(_field(name)) if _field(name) in configured else len(configured)

    @property
    def setting(self) -> tuple[str, ...]:
        """Of what runs that are averaged have in common: they differ in their seeds alone."""
        return (*self.setup, "method", *self.settings)


def columns_of(table: pl.DataFrame) -> Columns:
    """What the columns of one experiment's tidy table are."""
    experiment = find_experiment(table["experiment"][0])
    # Rules of one's own belong to the method: with other ones, it is another choice of that method.
    chosen = {"rules", *experiment.setting_fields}
    configured = [name for name in _of_runs(table) if name not in (*FIRST, *LAST)]
    return Columns(
        experiment=experiment,
        setup=("experiment", "problem", *(name for name in configured if _field(name) not in chosen), "checksum"),
        settings=tuple(name for name in configured if _field(name) in chosen),
        axes=tuple(name for name in configured if name in experiment.axes),
        along=experiment.along,
        score=experiment.score,
    )


def by_experiment(table: pl.DataFrame, function: Callable[[pl.DataFrame, Columns], pl.DataFrame]) -> pl.DataFrame:
    """`function` of each experiment's part of the table, below each other."""
    if table.is_empty():
        raise ValueError("table: got one without rows, expected results")
    parts = table.partition_by("experiment", maintain_order=True)
    return pl.concat([function(part, columns_of(part)) for part in parts], how="diagonal_relaxed")


def check_metric(table: pl.DataFrame, metric: str | None, columns: Columns) -> str:
    """The metric, or the experiment's own; a ValueError that suggests the nearest one that the table has."""
    others = {*_of_runs(table), columns.along, "samples", CUT_SHORT}
    measured = [name for name in table.columns if name not in others]
    return check_name("metric", columns.score if metric is None else metric, measured)


def score_of(table: pl.DataFrame, metric: str | None = None) -> Metric:
    """What is measured: the metric, or the score of the one experiment in the table."""
    experiment = find_experiment(table["experiment"][0])
    return experiment.metric(metric or experiment.score)


def where(table: pl.DataFrame, chosen: Mapping[str, str]) -> pl.DataFrame:
    """The runs with these values in their configuration, given as text: {"steps": "50k", "method": "sgd,adam"}."""
    for name, text in chosen.items():
        check_name("where", name, _of_runs(table))
        column = table[name]
        texts = [text] if text in column.cast(pl.String) else text.split(",")
        if name == "rules":  # by the beginning of a hash, as `weightclip best` shows it
            texts = [whole for whole in column.drop_nulls().unique() if whole.startswith(tuple(texts))] or texts
        values = [_value(name, one, column.dtype) for one in texts]
        matching = column.is_in([value for value in values if value is not None])
        found = table.filter(matching.fill_null(False) | (column.is_null() if None in values else False))
        if found.is_empty():
            there = ", ".join(_shown(value) for value in column.unique().sort())
            raise ValueError(f"where: got {name}={text}, expected one of {there}")
        table = found
    return table


def ordered_methods(methods: Iterable[str], experiment: Experiment[Any]) -> list[str]:
    """Each once: the experiment's own in its order, then the others by name."""
    known = list(experiment.methods())
    return sorted(set(methods), key=lambda name: (known.index(name) if name in known else len(known), name))


def main_setup(table: pl.DataFrame, on_event: Event = log) -> pl.DataFrame:
    """Of each problem the runs of one setup; a line tells of others.

    It is the one with the most methods x runs, then that with the longest runs: a stray run takes nothing over. Setups
    that differ along the experiment's axes alone belong together: all of them are kept.
    """

    def keep(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        names = [name for name in columns.setup if name not in columns.axes]
        runs = pl.col("identity").n_unique()
        # What a run's rows count; where they do not, as in further tables, what its configuration says of the same.
        length = next((name for name in ("samples", columns.experiment.unit) if name in part.columns), None)
        setups = part.group_by(names, maintain_order=True).agg(
            runs.alias("_runs"),
            (pl.col("method").n_unique() * runs).alias("_size"),
            (pl.col(length).max() if length else pl.len() / runs).alias("_length"),
        )
        setups = setups.sort("_size", "_length", descending=True, maintain_order=True)
        chosen = setups.unique("problem", keep="first", maintain_order=True)
        for one in chosen.iter_rows(named=True):
            others = setups.filter(pl.col("problem") == one["problem"])[1:]
            if len(others):
                on_event(_left_out(one, others.to_dicts(), sorted(names, key=columns.order)))
        return part.join(chosen, on=names, how="semi", nulls_equal=True, maintain_order="left")

    return by_experiment(table, keep)


def _field(column: str) -> str:
    """Of the configuration: "settings" for "settings.beta1"."""
    return column.partition(".")[0]


def _of_runs(table: pl.DataFrame) -> list[str]:
    """The columns that tell of a run, not of a row of its table."""
    configs = [find_experiment(name).config for name in table["experiment"].unique()]
    known = {*FIRST, *LAST, "rules", *(one.name for config in configs for one in fields(config))}
    return [name for name in table.columns if _field(name) in known]


def _value(name: str, text: str, kind: pl.DataType) -> Any:
    if text.lower() == "none":
        return None
    read: Callable[[str], Any]
    if kind == pl.Boolean:
        read, expected = _TRUTHS.__getitem__, "true or false"
    elif kind.is_integer():
        read, expected = read_count, "a whole number such as 2500, 50k or 1M"
    elif kind.is_float():
        read, expected = float, "a number"
    else:
        return text
    try:
        return read(text.lower())
    except (ValueError, ArithmeticError, KeyError):
        raise ValueError(f"where: {name}: got {text!r}, expected {expected}") from None


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if value is None else str(value)


def _left_out(chosen: Mapping[str, Any], others: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """What was chosen, what not, and by what it can be chosen."""
    differing = [name for name in names if any(other[name] != chosen[name] for other in others)]

    def shown(setup: Mapping[str, Any], names: Sequence[str]) -> str:
        return " ".join(f"{name}={_shown(setup[name])}" for name in names) + f" ({counted(setup['_runs'], 'run')})"

    def own(setup: Mapping[str, Any]) -> list[str]:
        return [name for name in differing if setup[name] != chosen[name]]

    first = own(others[0])[0]
    example = f"--where {first}={_shown(others[0][first])}"
    left_out = "; ".join(shown(other, own(other)) for other in others)
    return f"{chosen['problem']}: taking {shown(chosen, differing)}, leaving out {left_out}; choose with {example}"
