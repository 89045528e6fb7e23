"""The policy-collapse experiment: PPO on MuJoCo (section 4.3 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.lab.callbacks import Callbacks, Event, ignore
from weightclip.lab.config import TORCH_OPTIMIZERS, commands, methods_help
from weightclip.lab.experiment import NONE, Comparison, Experiment, arguments_of
from weightclip.lab.experiments.ppo.config import (
    ENVIRONMENTS,
    LOCKSTEP,
    NAME,
    PAPER_METHODS,
    Config,
    presets,
    resolve,
)
from weightclip.lab.experiments.ppo.metrics import SCHEMA, compare_with_paper
from weightclip.lab.methods import EQUAL_BETAS, TORCH

if TYPE_CHECKING:
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.record import Record

HELP = f"""{methods_help(PAPER_METHODS, TORCH, TORCH_OPTIMIZERS)}
  also: {EQUAL_BETAS}, Adam with beta2 = beta1

environments:
  any Gymnasium environment with Box actions; the paper's: {", ".join(ENVIRONMENTS)}"""


class PolicyCollapse(Experiment[Config]):
    """PPO on MuJoCo in long runs, where policies collapse."""

    name = NAME
    config = Config
    schema = SCHEMA
    lockstep = LOCKSTEP

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        return resolve(Config(problem=problem, **arguments_of(Config, settings)))

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        found = presets(options.get("env", ""), options.get("scale", "paper"))
        return {**commands(__package__), **found, "axes": {"method": PAPER_METHODS, "env": ENVIRONMENTS}, "help": HELP}

    def compare_with_paper(self, config: Config) -> Comparison:
        return compare_with_paper(config)

    def load(self, config: Config, data_dir: Path | None, on_event: Event = ignore) -> None:
        """Check that the environment is installed; there is no data."""
        from weightclip.lab.experiments.ppo.environments import make_environment

        make_environment(config.env).close()

    def run(
        self, configs: Sequence[Config], data: None, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list[Record]:
        from weightclip.lab.experiments.ppo.training import run_configs

        return run_configs(configs, out, overwrite, callbacks)

    def length(self, config: Config) -> int:
        return config.iterations * config.num_steps

    def figures(self) -> Sequence[Figure]:
        from weightclip.lab.experiments.ppo.figures import FIGURES

        return FIGURES


EXPERIMENT = PolicyCollapse()
