"""The streaming experiment, as the command line, sweeps, figures and the report see it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weightclip.lab.config import setting_columns
from weightclip.lab.experiment import (
    NOBODY,
    NONE,
    Event,
    Experiment,
    Watch,
    arguments_of,
    ignore,
    run_each,
)
from weightclip.lab.experiments.streaming.config import NAME, NAMED, PAPER_METHODS, Config, presets, resolve
from weightclip.lab.experiments.streaming.metrics import METRICS, rank_metric
from weightclip.lab.experiments.streaming.problem import all_problems, find_problem
from weightclip.lab.experiments.streaming.rules import OPTIMIZERS, REGULARIZERS, plugged_rules
from weightclip.lab.text import settings_text

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.data import Dataset
    from weightclip.lab.paper import Reproduction
    from weightclip.lab.plotting.figure import Figure
    from weightclip.lab.records.metrics import Metric
    from weightclip.lab.records.record import Record


class Streaming(Experiment[Config]):
    """One sample at a time, in tasks that change (section 4.2 of the paper)."""

    name = NAME
    config = Config
    examples: ClassVar[Mapping[str, Sequence[str]]] = {
        "run": (
            "input-permuted-mnist",
            "label-permuted-emnist --method sgd+wc --kappa 2 --lr 0.01 --seeds 0-3 --steps 1M --period 2500",
        ),
        "sweep": (
            "input-permuted-mnist --methods all --grid paper --seeds 20 --dry-run",
            "input-permuted-mnist --methods all --best --seeds 20",
            "input-permuted-mnist --methods sgd,sgd+wc --grid my_grid.toml --steps 50k --seeds 2",
        ),
    }
    setting_fields = (*NAMED, "kappa_rule", "settings")

    def problems(self) -> Sequence[str]:
        return tuple(all_problems())

    def configure(self, problem: str, settings: Mapping[str, Any]) -> Config:
        return resolve(Config(problem, **arguments_of(Config, settings)))

    def methods(self) -> Sequence[str]:
        return PAPER_METHODS

    def methods_help(self) -> str:
        optimizers = [name for name, rule in plugged_rules().items() if rule.update is not None]
        remedies = [name for name, rule in plugged_rules().items() if rule.update is None]
        return (
            f"{', '.join((*OPTIMIZERS, *optimizers))}, with +regularizer: {', '.join((*REGULARIZERS, *remedies))}\n"
            f"  those of the paper: {', '.join(PAPER_METHODS)}"
        )

    def settings(self, problem: str, method: str, options: Mapping[str, Any] = NONE) -> Sequence[str]:
        known = {name: options[name] for name in ("variant", "rules") if name in options}
        return setting_columns(Config(problem, method, **known).parsed_method())

    def metrics(self) -> Mapping[str, Metric]:
        return METRICS

    def metric(self, column: str) -> Metric:
        return rank_metric(column) or super().metric(column)

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        return presets()

    def load(self, config: Config, data_dir: Path | None, event: Event = ignore) -> Dataset:
        return find_problem(config.problem).load(data_dir, event)

    def data_key(self, config: Config) -> Hashable:
        return find_problem(config.problem).dataset

    def identify(self, config: Config, data: Dataset) -> str:
        from weightclip.lab.experiments.streaming.runs import complete, identify

        return identify(complete(config, data), data)

    def place(self, config: Config) -> str:
        from weightclip.lab.experiments.streaming.runs import place

        return place(config)

    def run(
        self,
        configs: Sequence[Config],
        data: Dataset,
        out: Path | None,
        overwrite: bool = False,
        watch: Watch = NOBODY,
    ) -> list[Record]:
        from weightclip.lab.experiments.streaming.runs import run_config

        return run_each(run_config, configs, data, out, overwrite, watch)

    def length(self, config: Config) -> int:
        return config.steps

    def shown(self, score: float) -> str:
        return f"online accuracy {score:.1%}"

    def describe(self, config: Config) -> str:
        settings = settings_text(config.display_settings())
        variant = f" ({config.variant} variant)" if {"l2init", "sp"} & set(config.method.split("+")) else ""
        return f"{config.method}{variant}: {settings}; back end {config.backend}"

    def summarise(self, tables: Sequence[pl.DataFrame]) -> str:
        first, last, online = (
            sum(table[column][row] for table in tables) / len(tables)
            for column, row in (("accuracy", 0), ("accuracy", -1), ("online_accuracy", -1))
        )
        tasks = len(tables[0])
        short = ", which was cut short" if "cut_short" in tables[0] and tables[0]["cut_short"].any() else ""
        return f"accuracy {first:.2%} in the first task, {last:.2%} in the last of {tasks}{short}, {online:.2%} online"

    def draw(self, records: Sequence[Record], path: Path) -> None:
        import polars as pl

        from weightclip.lab.experiments.streaming.figures import draw_run

        config = records[0].config
        settings = settings_text(
            {name: config.get(name) for name in (*NAMED, "kappa_rule")} | {"samples": config["steps"]}
        )
        tables = {config["method"]: pl.concat([record.table for record in records], how="diagonal_relaxed")}
        draw_run(tables, path, title=f"{config['problem']}: {settings}")

    def figures(self) -> Sequence[Figure]:
        from weightclip.lab.experiments.streaming.figures import FIGURES

        return FIGURES

    def reproductions(self) -> Sequence[Reproduction]:
        from weightclip.lab.experiments.streaming.reproductions import REPRODUCTIONS

        return REPRODUCTIONS


EXPERIMENT = Streaming()
