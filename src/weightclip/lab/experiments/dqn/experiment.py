"""The replay-ratio experiment: DQN and Rainbow with many updates per step (section 4.4 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightclip.lab.callbacks import Callbacks, Event, ignore
from weightclip.lab.config import TORCH_OPTIMIZERS, commands, methods_help
from weightclip.lab.experiment import NONE, Comparison, Experiment, IncompatibleError, arguments_of
from weightclip.lab.experiments.dqn.config import AGENTS, NAME, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.experiments.dqn.environments import MINATAR_GAMES, PAPER_GAMES, find_game, game_name
from weightclip.lab.experiments.dqn.metrics import SCHEMA, compare_with_paper
from weightclip.lab.methods import TORCH

if TYPE_CHECKING:
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.record import Record

HELP = f"""{methods_help(PAPER_METHODS, TORCH, TORCH_OPTIMIZERS)}

games:
  all of Atari; the paper's: {", ".join(PAPER_GAMES)}
  with --suite minatar: {", ".join(MINATAR_GAMES)}"""


class ReplayRatio(Experiment[Config]):
    """DQN and Rainbow on Atari or MinAtar at high replay ratios."""

    name = NAME
    config = Config
    schema = SCHEMA

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        config = Config(problem=problem, **arguments_of(Config, settings))
        missing = {*PAPER_GAMES} - {*MINATAR_GAMES}
        if config.suite == "minatar" and isinstance(config.game, str) and game_name(config.game) in missing:
            known = ", ".join(MINATAR_GAMES)
            raise IncompatibleError(f"game: got {config.game!r}, but MinAtar has only {known}")
        return resolve(config)

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        axes = {"method": PAPER_METHODS, "agent": AGENTS, "game": tuple(PAPER_GAMES), "replay_ratio": (1.0,)}
        found = presets(options.get("suite", "atari"), options.get("agent", "dqn"))
        return {**commands(__package__), **found, "axes": axes, "help": HELP}

    def compare_with_paper(self, config: Config) -> Comparison:
        return compare_with_paper(config)

    def load(self, config: Config, data_dir: Path | None, on_event: Event = ignore) -> None:
        """Check that the game is installed; there is no data."""
        find_game(config.suite, config.game)

    def run(
        self, configs: Sequence[Config], data: None, out: Path | None, overwrite: bool, callbacks: Callbacks
    ) -> list[Record]:
        from weightclip.lab.experiments.dqn.training import run_config

        return [run_config(config, out, overwrite, callbacks) for config in configs]

    def length(self, config: Config) -> int:
        return config.frames or 0

    def figures(self) -> Sequence[Figure]:
        from weightclip.lab.experiments.dqn.figures import FIGURES

        return FIGURES


EXPERIMENT = ReplayRatio()
