"""The experiment's interface for sweeps and the command line. Importing it does not import PyTorch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drifting_regression.config import BEST, NAME, SCHEMA, Config, resolve
from weightclip.lab.callbacks import Callbacks
from weightclip.lab.experiment import NONE, Experiment, arguments_of

if TYPE_CHECKING:
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.record import Record


class DriftingRegression(Experiment[Config]):
    """Linear regression on a drifting target."""

    name = NAME
    config = Config
    schema = SCHEMA

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        return resolve(Config(problem=problem, **arguments_of(Config, settings)))

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        grid = {"seeds": 3, "lr": [0.01, 0.05], "kappa": [1.0, 2.0, 5.0]}
        examples = {"run": [f"{NAME} --method sgd+wc --kappa 2 --seeds 3"]}
        return {"axes": {"method": tuple(BEST)}, "grid": grid, "best": {NAME: BEST}, "examples": examples}

    def run(
        self, configs: Sequence[Config], data: None, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list["Record"]:
        from drifting_regression.training import run_config

        return [run_config(config, out, overwrite, callbacks) for config in configs]

    def length(self, config: Config) -> int:
        return config.tasks * config.period

    def figures(self) -> Sequence["Figure"]:
        from drifting_regression.figures import FIGURES

        return FIGURES


EXPERIMENT = DriftingRegression()
