"""The interface of an experiment: a typed configuration, a schema, and `run(configs) -> records`.

The command line and sweeps use experiments only through this class. An experiment of this or another package is found
by its entry point in the group `weightclip.experiments` (`weightclip.lab.registry`). Figures and reports read records,
which include the schema, and do not depend on experiments.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from weightclip._text import counted
from weightclip._validation import check_name
from weightclip.lab.callbacks import Callbacks, Event, ignore
from weightclip.lab.config import OTHER as OTHER
from weightclip.lab.config import IncompatibleError as IncompatibleError
from weightclip.lab.config import field_types, setting_columns
from weightclip.lab.records.hashing import identity
from weightclip.lab.records.schema import Schema
from weightclip.lab.text import metric_text, settings_text

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.data.dataset import Source
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.record import Record

C = TypeVar("C")

NONE: Mapping[str, Any] = MappingProxyType({})


class Data(Protocol):
    """The interface of an experiment's data, such as `weightclip.lab.data.dataset.Dataset`.

    Attributes:
        checksum: identifies the content. It is part of the identity of runs.
        source: origin of the files. Commands display it; its kind is "bundled" for a stand-in of the data.
    """

    @property
    def checksum(self) -> str: ...

    @property
    def source(self) -> Source: ...


class Experiment(ABC, Generic[C]):
    """A kind of run.

    Configurations have the fields `problem`, `method` and `seed`. Some names have the same meaning in all experiments:
    `settings` is a mapping of the method's settings without their own field, `rules` is a file with the user's update
    rules, and the column `samples` of the main table counts from the start of a run and weights its rows.

    Class attributes:
        name: name of the experiment in records and entry points.
        config: frozen dataclass; the command line generates an option for each field.
        schema: columns of the main table (`weightclip.lab.records.schema.Schema`), stored in each record.
        lockstep: number of seeds that one call of `run` trains together.
    """

    name: ClassVar[str]
    config: ClassVar[type[Any]]
    schema: Schema
    lockstep: ClassVar[int] = 1

    @abstractmethod
    def configure(self, problem: str, settings: Mapping[str, Any]) -> C:
        """The resolved configuration, complete except for fields that depend on the data.

        Args:
            problem: one of `schema.problems`.
            settings: other fields of the configuration, or columns such as `settings.beta1`.

        Raises:
            ValueError: a value is not accepted.
            IncompatibleError: values of the axes are incompatible.
        """

    def settings(self, problem: str, method: str, options: Mapping[str, Any] = NONE) -> Sequence[str]:
        """The settings of a method as columns: "lr", "settings.beta1". A grid varies the settings that it contains.

        `options` are other fields of the configuration. The default requires a `MethodConfig`.
        """
        known = {name: value for name, value in options.items() if name in ("variant", "rules")}
        return setting_columns(self.config(problem=problem, method=method, **known).parsed_method())

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        """The paper's tables, and commands for them.

        - `axes`: axis -> values of "all".
        - `grid` and `best`: Tables 1 and 2, in the format of `weightclip.lab.sweep.grid`.
        - `examples`: command -> example arguments, for its help.
        - `help`: the methods, for the help of commands.
        - `problems`: problem -> what it is, in one line (default: the first line of the class's docstring).
        - `reproductions`: commands for the paper's figures and tables (`weightclip.lab.paper.Reproduction`).

        `options` are fields of the configuration: other variants have other tables.
        """
        return {}

    def compare_with_paper(self, config: C) -> Comparison:
        """The paper's best setting for the problem and method, and the settings that differ from the paper's.

        The first is None if the paper has none.
        """
        return None, {}

    def check_machine(self, config: C) -> None:
        """Raise a ValueError if this machine cannot run a configuration, for example if it has no GPU.

        `weightclip run` calls it before `load`, which may download data. Sweeps do not, because their workers may be
        other machines.
        """
        return

    def load(self, config: C, data_dir: Path | None, on_event: Event = ignore) -> Data | None:
        """The data of a configuration, for `identify` and `run`; picklable. None if there is none.

        It depends only on the problem and the axes.
        """
        return None

    def identify(self, config: C, data: Any) -> str:
        """The hash of everything that determines the run's numbers: `weightclip.lab.records.hashing.identity`.

        The default requires a `MethodConfig`. `data` is the result of `load`.
        """
        facts: Mapping[str, Any] = config.facts()  # type: ignore[attr-defined]
        return identity(self.name, facts, None if data is None else data.checksum)

    @abstractmethod
    def run(
        self, configs: Sequence[C], data: Any, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list[Record]:
        """Run configurations that differ in their seeds, resume them, or read the records of finished ones.

        With `out`, records and checkpoints are written to the store in that directory, at the paths of
        `weightclip.lab.records.store.record_path`. With `overwrite`, finished runs are repeated.
        """

    @abstractmethod
    def length(self, config: C) -> int:
        """The total number of steps, in `schema.unit`."""

    def figures(self) -> Sequence[Figure]:
        """The figures of this experiment."""
        return ()


def arguments_of(config: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a configuration from columns of a table: `settings.beta1` becomes an entry of `settings`."""
    entries = {name.removeprefix(OTHER): value for name, value in settings.items() if name.startswith(OTHER)}
    rest = {name: value for name, value in settings.items() if not name.startswith(OTHER)}
    for name in rest:
        check_name("settings", name, [one.name for one in fields(config)])
    return {**rest, "settings": {**rest.get("settings", {}), **entries}}


def config_fields(config: type[Any]) -> dict[str, str]:
    """Field -> help, in order, for `Schema.fields`."""
    return {name: one.help.text for name, one in field_types(config).items()}


def config_schema(config: type[Any], **columns: Any) -> Schema:
    """The schema of an experiment with this `MethodConfig`; `columns` are the other arguments of `Schema`.

    The experiment has one problem with its own name, unless `columns` contains `problems`.
    """
    types = field_types(config)
    facts = {
        "problems": (config.experiment,),
        "fields": config_fields(config),
        "settings": tuple(name for name in (*Schema.settings, "bounds") if name in types),
        "text_fields": tuple(name for name, one in types.items() if one.kind not in (int, float, bool)),
    }
    return Schema(config.experiment, **{**facts, **columns})


SEARCHED = ("seed", "kappa", "kappa_rule", "decay", "sigma")
"""Fields that do not count as deviations, because searches vary them and every table and figure shows them."""

Comparison = tuple[Mapping[str, Any] | None, Mapping[str, Any]]
"""The paper's best setting of a method, or None, and the settings of a run that differ from the paper's."""


def deviations(config: Any, paper: Any, schema: Schema, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a resolved configuration that differ from the paper's, by name.

    A method that the paper does not have is not compared, nor are its settings.
    """
    from weightclip.lab.records.columns import flat_config

    actual, reference = flat_config(config.facts()), flat_config(paper.facts())
    excluded = {*SEARCHED, *ignored, *(() if config.method == paper.method else ("method", *schema.settings))}
    names = [name for name in dict.fromkeys((*reference, *actual)) if name.partition(".")[0] not in excluded]
    return {name: actual.get(name) for name in names if actual.get(name) != reference.get(name)}


def describe(experiment: Experiment[Any], config: Any) -> str:
    """A resolved configuration in one line: method, settings, axes, and fields that differ from their defaults."""
    schema = experiment.schema
    named = {name: getattr(config, name) for name in schema.settings if not isinstance(getattr(config, name), Mapping)}
    settings = {**named, **dict(getattr(config, "settings", {}))}
    defaults = {one.name: one.default for one in fields(config) if one.default is not MISSING}
    length = experiment.length(config)
    displayed = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in vars(config).items()
        if name in schema.axes or (defaults.get(name) not in (None, value) and value != length)
    }
    others = {name: value for name, value in displayed.items() if name not in ("problem", "method", "seed", *settings)}
    return "; ".join(
        filter(
            None,
            (
                f"{config.method}: {settings_text(settings)}",
                settings_text(others),
                counted(length, schema.unit.removesuffix("s")),
            ),
        )
    )


def score_text(schema: Schema) -> Callable[[float], str]:
    """The score in a progress bar, as text."""
    metric = schema.metric(schema.score)
    return lambda score: f"{metric.label.lower()} {metric_text(score, metric)}"


def summarize(schema: Schema, tables: Sequence[pl.DataFrame]) -> str:
    """The score of runs that differ in their seeds, in one line: means over the seeds."""
    metric = schema.metric(schema.score)
    scores = [score.to_list() for table in tables if len(score := table[schema.score].drop_nulls())]
    if not scores:
        return f"no {metric.label.lower()} yet"
    first, last = (metric_text(_mean(score[end] for score in scores), metric) for end in (0, -1))
    average = metric_text(_mean(map(_mean, scores)), metric)
    short = ", which was cut short" if "cut_short" in tables[0].columns and tables[0]["cut_short"].any() else ""
    diverged = sum(math.isnan(score[-1]) for score in scores)
    return (
        f"{metric.label.lower()} {first} in the first {schema.x_column}, {last} in the last of {len(tables[0])}{short}"
        f", {average} on average" + (f"; {diverged} of {counted(len(tables), 'seed')} diverged" if diverged else "")
    )


def _mean(values: Iterable[float]) -> float:
    """The mean of the values that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
