"""The streaming experiment (section 4.2 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.lab.callbacks import Callbacks, Event, ignore
from weightclip.lab.config import commands, methods_help
from weightclip.lab.experiment import NONE, Comparison, Experiment, arguments_of
from weightclip.lab.experiments.streaming.config import NAME, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.experiments.streaming.metrics import compare_with_paper, make_schema
from weightclip.lab.experiments.streaming.problem import all_problems, find_problem
from weightclip.lab.experiments.streaming.rules import PAPER, plugged_rules, rule_components
from weightclip.lab.records.schema import Schema

if TYPE_CHECKING:
    from weightclip.lab.data import Dataset
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.record import Record


class Streaming(Experiment[Config]):
    """Streaming learning: one sample at a time, in a sequence of tasks."""

    name = NAME
    config = Config

    @cached_property
    def schema(self) -> Schema:  # type: ignore[override]
        return make_schema()

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        return resolve(Config(problem, **arguments_of(Config, settings)))

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        about = {name: problem.summary for name, problem in all_problems().items()}
        return {
            **commands(__package__),
            **presets(),
            "axes": {"method": PAPER_METHODS},
            "help": _help(),
            "problems": about,
        }

    def compare_with_paper(self, config: Config) -> Comparison:
        return compare_with_paper(config, self.schema)

    def load(self, config: Config, data_dir: Path | None, on_event: Event = ignore) -> Dataset:
        return find_problem(config.problem).load(data_dir, on_event)

    def identify(self, config: Config, data: Dataset) -> str:
        from weightclip.lab.experiments.streaming.training import complete, identify

        return identify(complete(config, data), data)

    def run(
        self, configs: Sequence[Config], data: Dataset, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list[Record]:
        from weightclip.lab.experiments.streaming.training import run_config

        return [run_config(config, data, out, overwrite, callbacks) for config in configs]

    def length(self, config: Config) -> int:
        return config.steps

    def figures(self) -> Sequence[Figure]:
        from weightclip.lab.experiments.streaming.figures import FIGURES

        return FIGURES


def _help() -> str:
    """The methods in the help, including the rules of other packages."""
    return methods_help(PAPER_METHODS, rule_components(PAPER, plugged_rules()))


EXPERIMENT = Streaming()
