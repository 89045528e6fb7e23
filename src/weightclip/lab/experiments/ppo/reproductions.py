"""The commands that make the paper's figures and tables on PPO."""

from __future__ import annotations

from weightclip.lab.experiments.ppo.config import FIGURE_7
from weightclip.lab.paper import Reproduction

_SWEEP = "sweep policy-collapse --envs {envs} --methods all {settings} --seeds {{seeds}} --out {{results}}"
_BEST = _SWEEP.format(envs="all", settings="--best")
_SEARCH = _SWEEP.format(envs="all", settings="--grid paper")
_TWO = _SWEEP.format(envs=",".join(FIGURE_7), settings="--best")
_FIGURE = "figure {name} {{results}} -o {{figures}}"

SEEDS = 30

REPRODUCTIONS = (
    Reproduction("figure 5", (_BEST, _FIGURE.format(name="policy-return")), SEEDS),
    Reproduction("figure 6", (_BEST, _FIGURE.format(name="policy-kl")), SEEDS),
    Reproduction("figure 7", (_TWO, _FIGURE.format(name="policy-diagnostics-two")), SEEDS),
    Reproduction("figure 11", (_BEST, _FIGURE.format(name="policy-diagnostics")), SEEDS),
    Reproduction("table 1", (_SEARCH,), SEEDS, "MuJoCo"),
    Reproduction("table 2", (_SEARCH, "best {results}"), SEEDS, "MuJoCo"),
)
