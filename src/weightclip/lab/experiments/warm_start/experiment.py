"""The warm-starting experiment, as the command line, sweeps, figures and the report see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weightclip.checks import check_count
from weightclip.lab.experiment import NOBODY, NONE, Event, Watch, ignore, run_each
from weightclip.lab.experiments.warm_start.config import (
    DEFAULT,
    NAME,
    PAPER,
    PAPER_METHODS,
    REGULARIZERS,
    STAGES,
    SWITCH,
    Config,
    presets,
)
from weightclip.lab.experiments.warm_start.metrics import METRICS
from weightclip.lab.text import settings_text
from weightclip.lab.torch_experiment import TorchExperiment
from weightclip.numerals import counted

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.experiments.warm_start.runs import Photographs
    from weightclip.lab.records.record import Record


class WarmStart(TorchExperiment[Config]):
    """CIFAR-10 in one stage or two, the second half of the data after the first (section 4.1 of the paper)."""

    name = NAME
    config = Config
    axes = ("method", "stages")
    paper_methods = PAPER_METHODS
    remedies = REGULARIZERS
    measured = METRICS
    length_field = "epochs"
    pictured = ("test_accuracy", "train_accuracy", "gap", "weight_l2")
    score = "test_accuracy"
    along = "epoch"
    unit = "images"
    examples: ClassVar[Mapping[str, Sequence[str]]] = {
        "run": (
            "warm-start --variant paper --method sgd+wc --kappa 10",
            "warm-start --scale laptop --method sgd+wc@switch --seeds 0-2",
        ),
        "sweep": (
            "warm-start --variant paper --best --seeds 10 --dry-run",
            "warm-start --scale laptop --methods all --best --seeds 3",
            "warm-start --scale laptop --methods sgd+wc --grid paper --stages 2",
        ),
    }

    def title(self, config: Mapping[str, Any]) -> str:
        return f"{NAME}, {STAGES[config['stages']]}"

    def paper_options(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"stages": row["stages"], "variant": PAPER}

    def values(self, axis: str) -> Sequence[Any]:
        return tuple(STAGES) if axis == "stages" else PAPER_METHODS

    def possible(self, settings: Mapping[str, Any]) -> bool:
        return not (settings.get("stages") == 1 and SWITCH in settings["method"])

    def methods_help(self) -> str:
        return f"{super().methods_help()} ({SWITCH}: once, when the second half of the data arrives)"

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        return presets(options.get("variant", DEFAULT), options.get("scale", "paper"))

    def paper_setting(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = presets(PAPER)["best"][NAME].get(row["method"])
        return found if row.get("variant") == PAPER and row["method"] in PAPER_METHODS else None

    def load(self, config: Config, data_dir: Path | None, event: Event = ignore) -> Photographs:
        from weightclip.lab.experiments.warm_start.runs import load

        return load(data_dir, event)

    def run(
        self,
        configs: Sequence[Config],
        data: Photographs,
        out: Path | None,
        overwrite: bool = False,
        watch: Watch = NOBODY,
    ) -> list[Record]:
        from weightclip.lab.experiments.warm_start.runs import run_config

        return run_each(run_config, configs, data, out, overwrite, watch)

    def length(self, config: Config) -> int:
        return check_count("epochs", config.epochs) * check_count("images", config.images)

    def shown(self, score: float) -> str:
        return f"test accuracy {score:.1%}"

    def describe(self, config: Config) -> str:
        length = f"{STAGES[config.stages]} of {counted(config.epochs or 0, 'epoch')}"
        network = f"ResNet18 of width {config.width} with the stem for {config.stem}"
        method = f"{config.method} ({config.variant} variant): {settings_text(config.display_settings())}"
        return f"{method}; {length}, {config.images:,} images; {network}"

    def summarise(self, tables: Sequence[pl.DataFrame]) -> str:
        def mean(column: str, row: int) -> float:
            return sum(float(table[column][row]) for table in tables) / len(tables)

        first = mean("test_accuracy", len(tables[0]) // 2 - 1)
        middle = f"{first:.2%} after the first half, " if tables[0]["stage"].n_unique() > 1 else ""
        return (
            f"test accuracy {middle}{mean('test_accuracy', -1):.2%} at the end; "
            f"train accuracy {mean('train_accuracy', -1):.2%}"
        )


EXPERIMENT = WarmStart()
