"""The columns of a tidy table, and the selection of runs by their values.

A *setting* is one combination of values of a method's settings. A *setup* is the rest of the configuration, without the
seed and the method, together with the checksum of the data. Runs of different setups are never averaged or compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weightclip._text import counted, read_count
from weightclip._validation import check_name
from weightclip.lab.callbacks import Event
from weightclip.lab.records.columns import CUT_SHORT, FIRST, LAST, schema_of
from weightclip.lab.records.schema import Metric, Schema

_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}

log: Event = logging.getLogger(__name__).warning


@dataclass(frozen=True)
class Columns:
    """The columns of one experiment's tidy table.

    Args:
        schema: meaning of the columns.
        setup: columns of the setup, `experiment` and `problem` first.
        settings: columns of the methods' settings; null if a method does not have a setting.
        axes: columns of the setup that a sweep varies.
    """

    schema: Schema
    setup: tuple[str, ...]
    settings: tuple[str, ...]
    axes: tuple[str, ...]

    @property
    def x_column(self) -> str:
        """The column that counts the rows of a run."""
        return self.schema.x_column

    def order(self, name: str) -> int:
        """The position of a column's field in the configuration; columns without a field come last."""
        configured = list(self.schema.fields)
        return configured.index(_field(name)) if _field(name) in configured else len(configured)

    @property
    def setting(self) -> tuple[str, ...]:
        """The columns that identify a setting: runs with equal values differ only in their seeds."""
        return (*self.setup, "method", *self.settings)


def columns_of(table: pl.DataFrame) -> Columns:
    """The columns of one experiment's tidy table."""
    schema = schema_of(table)
    # The user's rules are part of the setting of a method.
    chosen = {"rules", *schema.settings}
    configured = [name for name in _run_columns(table) if name not in (*FIRST, *LAST)]
    return Columns(
        schema=schema,
        setup=("experiment", "problem", *(name for name in configured if _field(name) not in chosen), "checksum"),
        settings=tuple(name for name in configured if _field(name) in chosen),
        axes=tuple(name for name in configured if name in schema.axes),
    )


def by_experiment(table: pl.DataFrame, function: Callable[[pl.DataFrame, Columns], pl.DataFrame]) -> pl.DataFrame:
    """Apply `function` to each experiment's part of the table and concatenate the results."""
    if table.is_empty():
        raise ValueError("table: got a table without rows, expected results")
    parts = table.partition_by("experiment", maintain_order=True)
    return pl.concat([function(part, columns_of(part)) for part in parts], how="diagonal_relaxed")


def check_metric(table: pl.DataFrame, metric: str | None, columns: Columns) -> str:
    """The metric (default: the score). An unknown metric raises a ValueError that suggests the nearest one."""
    others = {*_run_columns(table), columns.x_column, "samples", CUT_SHORT}
    measured = [name for name in table.columns if name not in others]
    return check_name("metric", columns.schema.score if metric is None else metric, measured)


def score_of(table: pl.DataFrame, metric: str | None = None) -> Metric:
    """The definition of a metric (default: the score) of the table's single experiment."""
    schema = schema_of(table)
    return schema.metric(metric or schema.score)


def where(table: pl.DataFrame, chosen: Mapping[str, str]) -> pl.DataFrame:
    """The runs with these values in their configuration, given as text: {"steps": "50k", "method": "sgd,adam"}."""
    for name, text in chosen.items():
        check_name("where", name, _run_columns(table))
        column = table[name]
        texts = [text] if text in column.cast(pl.String) else text.split(",")
        if name == "rules":  # by the prefix of a hash that `weightclip best` displays
            texts = [whole for whole in column.drop_nulls().unique() if whole.startswith(tuple(texts))] or texts
        values = [_value(name, one, column.dtype) for one in texts]
        matching = column.is_in([value for value in values if value is not None])
        found = table.filter(matching.fill_null(False) | (column.is_null() if None in values else False))
        if found.is_empty():
            available = ", ".join(_value_text(value) for value in column.unique().sort())
            raise ValueError(f"where: got {name}={text}, expected one of {available}")
        table = found
    return table


def has_several(table: pl.DataFrame, group: Sequence[str], name: str) -> bool:
    """Whether some group of runs has several values in a column."""
    several = table.group_by(group).agg((pl.col(name).drop_nulls().n_unique() > 1).alias("_several"))
    return bool(several["_several"].any())


SINGLE_KAPPA = "results: got one value of kappa for each line, expected several"


def check_several_kappas(table: pl.DataFrame, line: Sequence[str]) -> None:
    """Raise a ValueError if no line of a figure, a group of runs by these columns, has several values of kappa."""
    if not has_several(table, line, "kappa"):
        raise ValueError(SINGLE_KAPPA)


def main_setup(table: pl.DataFrame, on_event: Event = log) -> pl.DataFrame:
    """The runs of one setup for each problem; `on_event` is called with a message about the others.

    The setup with the most methods x runs is selected, then the one with the longest runs. Setups that differ only in
    the axes are selected together.
    """

    def keep(part: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        names = [name for name in columns.setup if name not in columns.axes]
        runs = pl.col("identity").n_unique()
        # Additional tables have no column `samples`; the configuration has the length of a run.
        length = next((name for name in ("samples", columns.schema.unit) if name in part.columns), None)
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
                on_event(_skipped_message(one, others.to_dicts(), sorted(names, key=columns.order)))
        return part.join(chosen, on=names, how="semi", nulls_equal=True, maintain_order="left")

    return by_experiment(table, keep)


def _field(column: str) -> str:
    """The configuration field of a column: "settings" for "settings.beta1"."""
    return column.partition(".")[0]


def _run_columns(table: pl.DataFrame) -> list[str]:
    """The columns that describe a run, not a row of its table."""
    parts = table.partition_by("experiment")
    known = {*FIRST, *LAST, "rules", *(name for part in parts for name in schema_of(part).fields)}
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


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if value is None else str(value)


def _skipped_message(chosen: Mapping[str, Any], others: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """A message about the selected and the skipped setups, and the option that selects another one."""
    differing = [name for name in names if any(other[name] != chosen[name] for other in others)]

    def text(setup: Mapping[str, Any], names: Sequence[str]) -> str:
        return " ".join(f"{name}={_value_text(setup[name])}" for name in names) + f" ({counted(setup['_runs'], 'run')})"

    def changed(setup: Mapping[str, Any]) -> list[str]:
        return [name for name in differing if setup[name] != chosen[name]]

    first = changed(others[0])[0]
    example = f"--where {first}={_value_text(others[0][first])}"
    skipped = "; ".join(text(other, changed(other)) for other in others)
    return f"{chosen['problem']}: using {text(chosen, differing)}, skipping {skipped}; select another with {example}"


NOT_THE_PAPERS = "not the paper's setting"


def remarks(runs: pl.DataFrame) -> list[str]:
    """Remarks on deviations from the paper in a tidy table, without duplicates."""
    return [f"{NOT_THE_PAPERS}: {text}" for text in runs["deviations"].drop_nulls().unique(maintain_order=True)]
