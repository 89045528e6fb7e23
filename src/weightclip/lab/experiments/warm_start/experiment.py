"""The warm-starting experiment: CIFAR-10 in one stage or two (section 4.1 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip._validation import check_count
from weightclip.lab.callbacks import Callbacks, Event, ignore
from weightclip.lab.config import TORCH_OPTIMIZERS, commands, methods_help
from weightclip.lab.experiment import NONE, Comparison, Experiment, IncompatibleError, arguments_of
from weightclip.lab.experiments.warm_start.config import (
    DEFAULT,
    NAME,
    PAPER_METHODS,
    STAGES,
    Config,
    presets,
    resolve,
)
from weightclip.lab.experiments.warm_start.metrics import SCHEMA, compare_with_paper
from weightclip.lab.methods import SWITCH, TORCH_WITH_SWITCH

if TYPE_CHECKING:
    from weightclip.lab.experiments.warm_start.training import Photographs
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.record import Record

HELP = f"""{methods_help(PAPER_METHODS, TORCH_WITH_SWITCH, TORCH_OPTIMIZERS)}
  {SWITCH}: once, when the second half of the data arrives"""


class WarmStart(Experiment[Config]):
    """ResNet18 on CIFAR-10, first on half of the images, then on all."""

    name = NAME
    config = Config
    schema = SCHEMA

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        config = Config(problem=problem, **arguments_of(Config, settings))
        if config.stages == 1 and isinstance(config.method, str) and SWITCH in config.method:
            raise IncompatibleError(f"stages: got 1, but {config.method} acts when the second stage starts; expected 2")
        return resolve(config)

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        found = presets(options.get("variant", DEFAULT), options.get("scale", "paper"))
        axes = {"method": PAPER_METHODS, "stages": tuple(STAGES)}
        return {**commands(__package__), **found, "axes": axes, "help": HELP}

    def compare_with_paper(self, config: Config) -> Comparison:
        return compare_with_paper(config)

    def check_machine(self, config: Config) -> None:
        from weightclip.lab.experiments.warm_start.training import check_device

        check_device(config)

    def load(self, config: Config, data_dir: Path | None, on_event: Event = ignore) -> Photographs:
        from weightclip.lab.experiments.warm_start.training import load

        return load(data_dir, on_event)

    def run(
        self, configs: Sequence[Config], data: Photographs, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list[Record]:
        from weightclip.lab.experiments.warm_start.training import run_config

        return [run_config(config, data, out, overwrite, callbacks) for config in configs]

    def length(self, config: Config) -> int:
        return check_count("epochs", config.epochs) * check_count("images", config.images)

    def figures(self) -> Sequence[Figure]:
        from weightclip.lab.experiments.warm_start.figures import FIGURES

        return FIGURES


EXPERIMENT = WarmStart()
