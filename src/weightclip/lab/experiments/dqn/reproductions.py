"""The commands that make the paper's figures and tables on Atari."""

from __future__ import annotations

from weightclip.lab.experiments.dqn.environments import PAPER_GAMES
from weightclip.lab.paper import Reproduction

SEEDS = 5

_SWEEP = (
    "sweep replay-ratio --agents {agents} --games {games} --methods all {settings} --seeds {{seeds}} --out {{results}}"
)
_PAPERS = "--where suite=atari --where replay_ratio=1"
"""Results may have MinAtar's games too, and Tianshou's own replay ratio."""

_SEARCH = _SWEEP.format(agents="all", games="all", settings="--grid paper")


def _made(item: str, *commands: str, part: str = "") -> Reproduction:
    return Reproduction(item, commands, SEEDS, part, length="frames")


_FIRST, _SECOND = tuple(PAPER_GAMES)[:4], tuple(PAPER_GAMES)[4:]

HEATMAPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "9": ("dqn", ("space_invaders",)),
    "12": ("dqn", _FIRST),
    "13": ("dqn", _SECOND),
    "14": ("rainbow", _FIRST),
    "15": ("rainbow", _SECOND),
}
"""Numbers of the paper's figures with gradient covariances -> the agent and the games."""


def _heatmaps(number: str) -> Reproduction:
    agent, games = HEATMAPS[number]
    sweep = _SWEEP.format(agents=agent, games=",".join(games), settings="--best")
    figure = f"figure gradient-covariance-{number} {{results}} -o {{figures}} {_PAPERS}"
    return _made(f"figure {number}", sweep, figure)


REPRODUCTIONS = (
    _made(
        "figure 8",
        _SWEEP.format(agents="all", games="all", settings="--best"),
        f"figure replay-return {{results}} -o {{figures}} {_PAPERS}",
    ),
    *map(_heatmaps, HEATMAPS),
    _made("table 1", _SEARCH, part="Atari"),
    _made("table 2", _SEARCH, "best {results}", part="Atari"),
)
