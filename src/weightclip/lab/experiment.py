"""What an experiment is: a name, a typed configuration, `run(configs) -> records`, figures and presets.

The command line, sweeps, figures and the report know experiments through this alone. An experiment is found by its
entry point in the group `weightclip.experiments` (`weightclip.lab.registry`), which other packages have too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from weightclip._validation import check_name

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.paper import Reproduction
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.metrics import Metric
    from weightclip.lab.records.record import Record

C = TypeVar("C")

NONE: Mapping[str, Any] = MappingProxyType({})

Event = Callable[[str], None]
"""Called with a line that a user should read."""

Progress = Callable[[int, float], None]
"""Called now and then with the steps done, of `Experiment.length`, and the score so far."""

Row = Mapping[str, float]
OnRow = Callable[[Any, Row], None]
"""Called with a configuration and each row of its main table as soon as it is known."""


def ignore(*_: Any) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Watch:
    """Whom a run tells what: a line to read, how far it is, and the rows of its table as they come."""

    event: Event = ignore
    progress: Progress = ignore
    row: OnRow = ignore


NOBODY = Watch()

OTHER = "settings."
"""In tables, before the names of settings without a field of their own."""


def arguments_of(config: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a configuration from columns of a table: `settings.beta1` goes into its mapping `settings`."""
    own = {name.removeprefix(OTHER): value for name, value in settings.items() if name.startswith(OTHER)}
    rest = {name: value for name, value in settings.items() if not name.startswith(OTHER)}
    for name in rest:
        check_name("settings", name, [one.name for one in fields(config)])
    return {**rest, "settings": {**rest.get("settings", {}), **own}}


def run_each(
    run_config: Callable[..., Record],
    configs: Sequence[Any],
    data: Any,
    out: Path | None,
    overwrite: bool,
    watch: Watch,
) -> list[Record]:
    """For experiments that run configurations one by one: what `Experiment.run` returns."""
    return [
        run_config(
            config,
            data,
            out=out,
            overwrite=overwrite,
            on_progress=watch.progress,
            on_event=watch.event,
            on_row=partial(watch.row, config),
        )
        for config in configs
    ]


class Experiment(ABC, Generic[C]):
    """A kind of run.

    Some names mean the same in every experiment that has them. Of the configuration: `problem`, `method` and `seed`;
    `settings`, a mapping of the method's settings that have no field of their own; `rules`, the user's own, with which
    a method is another choice of that method; `steps`, a run's length (else its reproductions name another field).
    Of the main table: `samples` since the run's beginning, by which its rows are weighted; it is no metric.

    Class attributes:
        name: of the experiment, in records and figures: "streaming".
        config: a frozen dataclass with a line of help for each field (`metadata={"help": ...}`); the options of the
            command line are made from it. It has a `seed` and a `method`.
        axes: fields, besides the seed, of which a sweep takes several values: "method" gives the option `--methods`.
        setting_fields: the fields that are settings of one method or another; a mapping stands for all that is in it.
        score: the metric that settings are selected by.
        along: the column of the main table that its rows follow: "task".
        unit: what `length` and progress count: "samples".
        examples: a command of the command line -> what can stand after it, for its help.
    """

    name: ClassVar[str]
    config: ClassVar[type[Any]]
    axes: ClassVar[tuple[str, ...]] = ("method",)
    setting_fields: ClassVar[tuple[str, ...]] = ("lr", "kappa", "decay", "sigma")
    score: ClassVar[str] = "accuracy"
    along: ClassVar[str] = "task"
    unit: ClassVar[str] = "samples"
    examples: ClassVar[Mapping[str, Sequence[str]]] = {}

    @abstractmethod
    def problems(self) -> Sequence[str]:
        """What `weightclip run` and `sweep` take as PROBLEM; an experiment with a single one has its own name."""

    @abstractmethod
    def configure(self, problem: str, settings: Mapping[str, Any]) -> C:
        """The checked configuration with nothing left open that the data does not decide; else a ValueError."""

    def methods(self) -> Sequence[str]:
        """The paper's methods: what `--methods all` means."""
        return ()

    def values(self, axis: str) -> Sequence[Any]:
        """What "all" means for one of the axes."""
        return self.methods()

    def methods_help(self) -> str:
        """What methods there are, for the command line's help."""
        return ", ".join(self.methods())

    def metrics(self) -> Mapping[str, Metric]:
        """What the columns of its main table mean; what it does not name is shown in no figure of the report."""
        return {}

    def metric(self, column: str) -> Metric:
        """The definition of a column; of the score, if it is not named, the higher the better."""
        from weightclip.lab.records.metrics import Metric

        unnamed = Metric(column, column, "", direction="higher" if column == self.score else "")
        return self.metrics().get(column, unnamed)

    def possible(self, settings: Mapping[str, Any]) -> bool:
        """Whether values of the axes go together; a sweep leaves out what does not."""
        return True

    def settings(self, problem: str, method: str, options: Mapping[str, Any] = NONE) -> Sequence[str]:
        """The settings of the method, as columns of a table: "lr", "settings.beta1"; a grid varies those it has.

        `options` are other fields of the configuration.
        """
        return ()

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        """The paper's tables: `grid` (searched) and `best` (found), as `weightclip.lab.sweep.grid` reads them.

        `options` are fields of the configuration that a user gave: other variants have other tables.
        """
        return {}

    def paper_setting(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The paper's best setting for a run with that configuration, where it has one."""
        found: Mapping[str, Any] | None = self.presets().get("best", {}).get(row["problem"], {}).get(row["method"])
        return found

    def remark(self, row: Mapping[str, Any]) -> str:
        """What to know of a run with that configuration wherever it is shown: how it departs from the paper's."""
        return ""

    def load(self, config: C, data_dir: Path | None, event: Event = ignore) -> Any:
        """The data that the configuration needs, for `identify` and `run`; picklable. None if there is none."""
        return None

    def data_key(self, config: C) -> Hashable:
        """Equal for configurations that `load` gives the same data."""
        return None

    @abstractmethod
    def identify(self, config: C, data: Any) -> str:
        """What stands for the run's numbers, by content: `weightclip.lab.records.record.identity`."""

    @abstractmethod
    def place(self, config: C) -> str:
        """Where in a store its record lies, without identity and ending: "input-permuted-mnist/sgd/lr0.001_seed0"."""

    @abstractmethod
    def run(
        self, configs: Sequence[C], data: Any, out: Path | None, overwrite: bool = False, watch: Watch = NOBODY
    ) -> list[Record]:
        """Run configurations with equal `batch`, or go on with them, or read the records of finished ones.

        With `out`, records (and, until they are there, checkpoints) are written to the store in that directory at the
        paths of `weightclip.lab.records.store.record_path`.
        """

    def batch(self, config: C) -> Hashable | None:
        """Configurations with equal keys are run by one call of `run`, in lockstep; None: each by itself."""
        return None

    @abstractmethod
    def length(self, config: C) -> int:
        """Steps in all, in the unit of progress."""

    def length_note(self, config: C) -> str:
        """A line on a run that is shorter than its configuration asks for; empty otherwise."""
        return ""

    def shown(self, score: float) -> str:
        """The score that progress tells, for a reader."""
        return f"{self.score} {score:.4g}"

    def describe(self, config: C) -> str:
        """The configuration in a line, without problem and seed."""
        return str(config)

    def summarise(self, tables: Sequence[pl.DataFrame]) -> str:
        """Main tables of runs that differ in their seeds, in a line."""
        from weightclip._text import counted

        return counted(len(tables), "run")

    def draw(self, records: Sequence[Record], path: Path) -> None:
        """A picture of runs that differ in their seeds alone."""

    def figures(self) -> Sequence[Figure]:
        """The paper's figures of this experiment."""
        return ()

    def reproductions(self) -> Sequence[Reproduction]:
        """What makes the paper's figures and tables of this experiment."""
        return ()
