"""What experiments have in common whose one problem has their own name, and whose methods are PyTorch's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from weightclip.lab.config import NAMED, M, setting_columns
from weightclip.lab.experiment import NONE, Experiment, arguments_of
from weightclip.lab.methods import REGULARIZERS
from weightclip.lab.records.store import rule_name

if TYPE_CHECKING:
    from weightclip.lab.paper import Reproduction
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.metrics import Metric
    from weightclip.lab.records.record import Record


class TorchExperiment(Experiment[M], Generic[M]):
    """An experiment with a `MethodConfig`, in a folder with the usual rooms.

    These are `config.py` (`resolve`), `runs.py` (`identify`, `place`), `figures.py`
    (`FIGURES`) and `reproductions.py` (`REPRODUCTIONS`), beside the module of the class.

    Class attributes:
        paper_methods: what `--methods all` means.
        remedies: that its methods can have.
        not_compared: fields of the configuration in which no run is called another than the paper's.
        measured: what the columns of its main table mean.
        pictured: those in the picture of a run.
        pictured_along: the column that they are drawn along, and what it counts; default: `along`.
        length_field: the field with the length of a run.
    """

    setting_fields: ClassVar[tuple[str, ...]] = (*NAMED, "kappa_rule", "settings")
    paper_methods: ClassVar[tuple[str, ...]]
    remedies: ClassVar[tuple[str, ...]] = tuple(REGULARIZERS)
    not_compared: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[Mapping[str, Metric]]
    pictured: ClassVar[tuple[str, ...]]
    pictured_along: ClassVar[tuple[str, str] | None] = None
    length_field: ClassVar[str] = "steps"

    @abstractmethod
    def title(self, config: Mapping[str, Any]) -> str:
        """Above the picture of a run with that configuration."""

    def problems(self) -> Sequence[str]:
        return (self.name,)

    def room(self, name: str) -> Any:
        """A module of the experiment's folder; imported when it is asked for, as most of them are heavy."""
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")

    def resolve(self, config: M) -> M:
        """The same configuration, checked, with nothing left open."""
        found: M = self.room("config").resolve(config)
        return found

    def configure(self, problem: str, settings: Mapping[str, Any]) -> M:
        return self.resolve(self.config(problem=problem, **arguments_of(self.config, settings)))

    def methods(self) -> Sequence[str]:
        return self.paper_methods

    def methods_help(self) -> str:
        return (
            f"an optimizer of torch.optim in lower case, or madam, with +regularizer: {', '.join(self.remedies)}\n"
            f"  those of the paper: {', '.join(self.paper_methods)}"
        )

    def metrics(self) -> Mapping[str, Metric]:
        return self.measured

    def settings(self, problem: str, method: str, options: Mapping[str, Any] = NONE) -> Sequence[str]:
        return setting_columns(self.config(problem=problem, method=method).parsed_method())

    def paper_options(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the paper gives, besides the method, for what a run in a tidy table was for; None: do not compare."""
        return None

    def papers(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The paper's configuration for what a run in a tidy table was for; empty where that is not compared."""
        options = self.paper_options(row)
        if options is None:
            return {}
        same = self.config(problem=self.name, method=row["method"], **options)
        try:
            found = self.resolve(same)
        except ValueError:  # a method without usual settings: the rest can be compared
            usual = self.resolve(replace(same, method=self.paper_methods[0]))
            own: dict[str, Any] = {name: row.get(name) for name in ("method", *self.setting_fields)}
            found = replace(usual, **own | {"settings": {}})
        return {name: value for name, value in found.facts().items() if name not in self.not_compared}

    def remark(self, row: Mapping[str, Any]) -> str:
        from weightclip.lab.analysis.deviations import remark

        papers = self.papers(row)
        return remark(row, papers) if papers else ""

    def identify(self, config: M, data: Any) -> str:
        return str(self.room("runs").identify(self.resolve(config), data))

    def place(self, config: M) -> str:
        return str(self.room("runs").place(config))

    def figures(self) -> Sequence[Figure]:
        found: Sequence[Figure] = self.room("figures").FIGURES
        return found

    def reproductions(self) -> Sequence[Reproduction]:
        found: Sequence[Reproduction] = self.room("reproductions").REPRODUCTIONS
        return found

    def draw(self, records: Sequence[Record], path: Path) -> None:
        import polars as pl

        from weightclip.lab.plotting.panels import draw_runs
        from weightclip.lab.records.tidy import flat_config
        from weightclip.lab.text import settings_text

        config = records[0].config
        tables = {config["method"]: pl.concat([record.table for record in records], how="diagonal_relaxed")}
        along, label = self.pictured_along or (self.along, "")
        metrics = [self.measured[name] for name in self.pictured]
        length = {self.length_field: config.get(self.length_field)}
        if self.length_field == self.unit:  # what was run, which may be less than what was asked for
            length = {self.unit: records[0].table["samples"].to_list()[-1]}
        settings = settings_text({name: config.get(name) for name in (*NAMED, "kappa_rule")} | length)
        first = ": ".join(filter(None, (self.title(config), settings)))
        title = "\n".join(filter(None, (first, self.remark(flat_config(config)))))
        draw_runs(tables, metrics, along, path, title, label)


def place_text(config: M) -> str:
    """The settings with a field of their own, for the name of a file."""
    rule = [] if config.kappa_rule is None else [f"kappa-{rule_name(config.kappa_rule)}"]
    return "_".join([*(f"{name}{value:g}" for name, value in config.named_settings().items()), *rule])
