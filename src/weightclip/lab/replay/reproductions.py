"""The commands that make the paper's figures and tables on Atari."""

from __future__ import annotations

from weightclip.lab.paper import Reproduction
from weightclip.lab.replay.games import PAPER_GAMES

COVARIANCE = 32
"""Transitions in a matrix; the paper does not say how many it has."""

_SWEEP = (
    "sweep replay-ratio --agents {agents} --games {games} --methods all {settings} --seeds {{seeds}} --out {{results}}"
)
_HEATMAP = "figure gradient-covariance {results} -o {figures}"


def _best(agents: str, games: str) -> str:
    return _SWEEP.format(agents=agents, games=games, settings=f"--best --covariance {COVARIANCE}")


def _search() -> str:
    return _SWEEP.format(agents="all", games="all", settings="--grid paper")


_FIRST, _SECOND = (",".join(tuple(PAPER_GAMES)[half]) for half in (slice(4), slice(4, 8)))

REPRODUCTIONS = (
    Reproduction("figure 8", (_best("all", "all"), "figure replay-return {results} -o {figures}"), 5),
    Reproduction("figure 9", (_best("dqn", "space_invaders"), _HEATMAP), 5),
    Reproduction("figure 12", (_best("dqn", _FIRST), _HEATMAP), 5),
    Reproduction("figure 13", (_best("dqn", _SECOND), _HEATMAP), 5),
    Reproduction("figure 14", (_best("rainbow", _FIRST), _HEATMAP), 5),
    Reproduction("figure 15", (_best("rainbow", _SECOND), _HEATMAP), 5),
    Reproduction("table 1", (_search(),), 5, "Atari"),
    Reproduction("table 2", (_search(), "best {results}"), 5, "Atari"),
)
