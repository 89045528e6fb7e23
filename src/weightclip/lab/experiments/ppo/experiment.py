"""The policy-collapse experiment, as the command line, sweeps, figures and the report see it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weightclip.lab.config import NAMED
from weightclip.lab.experiment import NOBODY, NONE, Event, Watch, ignore
from weightclip.lab.experiments.ppo.config import (
    ENVIRONMENTS,
    EQUAL_BETAS,
    LOCKSTEP,
    NAME,
    PAPER_METHODS,
    Config,
    presets,
)
from weightclip.lab.experiments.ppo.metrics import ALONG, METRICS
from weightclip.lab.text import settings_text
from weightclip.lab.torch_experiment import TorchExperiment
from weightclip.numerals import counted

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.records.record import Record


class PolicyCollapse(TorchExperiment[Config]):
    """PPO on MuJoCo for long, where policies collapse (section 4.3 of the paper)."""

    name = NAME
    config = Config
    axes = ("method", "env")
    setting_fields = (*NAMED, "kappa_rule", "settings", "bounds")
    paper_methods = PAPER_METHODS
    not_compared = ("steps",)  # the paper does not say how long its runs are
    measured = METRICS
    pictured = ("return", "approx_kl", "weight_l2", "saturated")
    pictured_along = ALONG
    score = "return"
    along = "iteration"
    unit = "steps"
    examples: ClassVar[Mapping[str, Sequence[str]]] = {
        "run": (
            "policy-collapse --env Ant-v4 --method adam+wc --seeds 0-9 --steps 10M",
            "policy-collapse --scale laptop --env Hopper-v4 --method adam --seeds 0-3",
        ),
        "sweep": (
            "policy-collapse --envs all --methods adam,adam+wc --seeds 30 --dry-run",
            "policy-collapse --envs Walker2d-v4 --methods adam,adam-equal-betas,adam+wc --seeds 8 --steps 5M",
        ),
    }

    def title(self, config: Mapping[str, Any]) -> str:
        return f"{NAME}, {config['env']}"

    def paper_options(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"env": row["env"] if row["env"] in ENVIRONMENTS else ENVIRONMENTS[0]}

    def values(self, axis: str) -> Sequence[Any]:
        return ENVIRONMENTS if axis == "env" else PAPER_METHODS

    def methods_help(self) -> str:
        return (
            f"{super().methods_help()}\n  also: {EQUAL_BETAS}, Adam with beta2 = beta1\n\n"
            "environments:\n  any Gymnasium environment with Box actions; those of the paper: "
            f"{', '.join(ENVIRONMENTS)}"
        )

    def presets(self, options: Mapping[str, Any] = NONE) -> Mapping[str, Any]:
        return presets(options.get("env", ""), options.get("scale", "paper"))

    def paper_setting(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if row["method"] not in PAPER_METHODS or row.get("env") not in ENVIRONMENTS or row.get("bounds") == "fan_in":
            return None
        found = presets(str(row["env"]))["best"][NAME][row["method"]]
        return {name: value for name, value in found.items() if name in NAMED}

    def load(self, config: Config, data_dir: Path | None, event: Event = ignore) -> None:
        """No data, but an environment that may not be there."""
        from weightclip.lab.experiments.ppo.environments import make_environment

        make_environment(config.env).close()

    def data_key(self, config: Config) -> Hashable:
        return config.env

    def run(
        self, configs: Sequence[Config], data: None, out: Path | None, overwrite: bool = False, watch: Watch = NOBODY
    ) -> list[Record]:
        from weightclip.lab.experiments.ppo.runs import run_configs

        return run_configs(configs, out, overwrite, watch)

    def batch(self, config: Config) -> Hashable:
        same = replace(config, seed=0)
        return tuple((name, str(value)) for name, value in same.facts().items()), config.seed // LOCKSTEP

    def length(self, config: Config) -> int:
        return config.iterations * config.num_steps

    def length_note(self, config: Config) -> str:
        if self.length(config) == config.steps:
            return ""
        return f"steps: {config.steps:,} is rounded down to {self.length(config):,}, a multiple of {config.num_steps:,}"

    def shown(self, score: float) -> str:
        return "no episode ended yet" if math.isnan(score) else f"return {score:,.0f}"

    def describe(self, config: Config) -> str:
        method = f"{config.method} ({config.bounds} bounds)" if config.bounds else config.method
        length = f"{self.length(config):,} steps in {counted(config.iterations, 'iteration')}"
        scale = "" if config.scale == "paper" else f"; {config.scale} scale, not the paper's setting"
        return f"{method}: {settings_text(config.display_settings())}; {config.env}, {length}{scale}"

    def summarise(self, tables: Sequence[pl.DataFrame]) -> str:
        import polars as pl

        value = pl.col("return", "weight_l2").fill_nan(None)
        last, best = value.last(), pl.col("return").fill_nan(None).max().alias("best")
        ends = pl.concat([table.select(last, best) for table in tables])
        means = ends.mean().row(0, named=True)
        forms = {"return": "return {:,.0f} at the end", "best": "{:,.0f} at best"}
        returns = [form.format(means[name]) for name, form in forms.items() if means[name] is not None]
        told = [", ".join(returns) or "no episode ended"]
        if means["weight_l2"] is not None:
            told.append(f"weight norm {means['weight_l2']:.3g}")
        if stopped := ends["weight_l2"].null_count():
            told.append("stopped" if len(tables) == 1 else f"{stopped} of {counted(len(tables), 'seed')} stopped")
        return "; ".join(told)


EXPERIMENT = PolicyCollapse()
