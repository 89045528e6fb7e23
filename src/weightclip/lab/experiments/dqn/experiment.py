"""The replay-ratio experiment, as the command line, sweeps, figures and the report see it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weightclip.lab.config import NAMED
from weightclip.lab.experiment import NOBODY, NONE, Event, Watch, ignore, run_each
from weightclip.lab.experiments.dqn.config import (
    AGENTS,
    NAME,
    PAPER_METHODS,
    PAPER_RATIOS,
    Config,
    presets,
)
from weightclip.lab.experiments.dqn.environments import MINATAR_GAMES, PAPER_GAMES, find_game, game_name
from weightclip.lab.experiments.dqn.metrics import ALONG, METRICS
from weightclip.lab.text import settings_text
from weightclip.lab.torch_experiment import TorchExperiment

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.records.record import Record


class ReplayRatio(TorchExperiment[Config]):
    """DQN and Rainbow with many updates for each step (section 4.4 of the paper)."""

    name = NAME
    config = Config
    axes = ("method", "agent", "game", "replay_ratio")
    setting_fields = (*NAMED, "kappa_rule", "settings", "bounds")
    paper_methods = PAPER_METHODS
    not_compared = ("points", "eval_episodes", "covariance", "covariance_at")  # they change nothing that is learned
    measured = METRICS
    length_field = "frames"
    pictured = ("test_return", "training_loss", "q", "weight_l2")
    pictured_along = ALONG
    score = "test_return"
    along = "part"
    unit = "frames"
    examples: ClassVar[Mapping[str, Sequence[str]]] = {
        "run": (
            "replay-ratio --agent rainbow --game SpaceInvaders --method adam+wc --replay-ratio 1 --frames 10M",
            "replay-ratio --suite minatar --agent dqn --game asterix --method adam --replay-ratio 1",
        ),
        "sweep": ("replay-ratio --suite minatar --agents dqn --replay-ratios 1 --methods adam,adam+wc --seeds 3",),
    }

    def title(self, config: Mapping[str, Any]) -> str:
        return f"{config['agent']}, {config['game']}, replay ratio {config['replay_ratio']:g}"

    def paper_options(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        game = row["game"] if row["game"] in PAPER_GAMES else next(iter(PAPER_GAMES))
        ratio = row["replay_ratio"] if row["replay_ratio"] in PAPER_RATIOS else PAPER_RATIOS[0]
        return {"agent": row["agent"], "game": game, "replay_ratio": ratio}

    def values(self, axis: str) -> Sequence[Any]:
        return {"agent": AGENTS, "game": tuple(PAPER_GAMES), "replay_ratio": (1.0,), "method": PAPER_METHODS}[axis]

    def possible(self, settings: Mapping[str, Any]) -> bool:
        # "all" games of MinAtar are those of the paper that it has.
        return settings.get("suite") != "minatar" or game_name(settings["game"]) not in {*PAPER_GAMES} - {
            *MINATAR_GAMES
        }

    def methods_help(self) -> str:
        return (
            f"{super().methods_help()}\n\n"
            f"games:\n  all of Atari; those of the paper: {', '.join(PAPER_GAMES)}\n"
            f"  with --suite minatar: {', '.join(MINATAR_GAMES)}"
        )

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        return presets(options.get("suite", "atari"), options.get("agent", "dqn"))

    def paper_setting(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if row["method"] not in PAPER_METHODS or row.get("suite") != "atari" or row.get("game") not in PAPER_GAMES:
            return None
        found: Mapping[str, Any] = presets("atari", str(row["agent"]))["best"][NAME][row["method"]]
        return found

    def load(self, config: Config, data_dir: Path | None, event: Event = ignore) -> None:
        """No data, but a game that may not be there."""
        find_game(config.suite, config.game)

    def data_key(self, config: Config) -> Hashable:
        return config.suite, config.game

    def run(
        self, configs: Sequence[Config], data: None, out: Path | None, overwrite: bool = False, watch: Watch = NOBODY
    ) -> list[Record]:
        from weightclip.lab.experiments.dqn.runs import run_config

        return run_each(run_config, configs, None, out, overwrite, watch)

    def length(self, config: Config) -> int:
        return config.frames or 0

    def shown(self, score: float) -> str:
        return "no game ended yet" if math.isnan(score) else f"return {score:.4g}"

    def describe(self, config: Config) -> str:
        game = f"{config.agent}, {config.suite}'s {config.game}, replay ratio {config.replay_ratio:g}"
        return f"{config.method}: {settings_text(config.display_settings())}; {game}, {config.frames:,} frames"

    def summarise(self, tables: Sequence[pl.DataFrame]) -> str:
        import polars as pl

        from weightclip.lab.text import metric_text

        names = ("test_return", "return", "weight_l2")
        ends = pl.concat([table.select(pl.col(names).last()) for table in tables]).mean().row(0, named=True)
        test, training, norm = (metric_text(ends[name], METRICS[name]) for name in names)
        return f"return {test} at the end, {training} in training; weight norm {norm}"


EXPERIMENT = ReplayRatio()
