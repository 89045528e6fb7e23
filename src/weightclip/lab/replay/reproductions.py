"""The commands that make the paper's figures and tables on Atari."""

from __future__ import annotations

from weightclip.lab.paper import Reproduction
from weightclip.lab.replay.games import PAPER_GAMES

SEEDS = 5

_SWEEP = (
    "sweep replay-ratio --agents {agents} --games {games} --methods all {settings} --seeds {{seeds}} --out {{results}}"
)
_SEARCH = _SWEEP.format(agents="all", games="all", settings="--grid paper")


def _made(item: str, *commands: str, part: str = "") -> Reproduction:
    return Reproduction(item, commands, SEEDS, part, length="frames")


def _heatmaps(item: str, agent: str, games: str) -> Reproduction:
    """Each of these figures has a folder of its own, as all are drawn by one command."""
    chosen = f"--where suite=atari --where agent={agent} --where game={games}"
    folder = item.replace(" ", "-")
    sweep = _SWEEP.format(agents=agent, games=games, settings="--best")
    return _made(item, sweep, f"figure gradient-covariance {{results}} -o {{figures}}/{folder} {chosen}")


_FIRST, _SECOND = (",".join(tuple(PAPER_GAMES)[half]) for half in (slice(4), slice(4, 8)))

REPRODUCTIONS = (
    _made(
        "figure 8",
        _SWEEP.format(agents="all", games="all", settings="--best"),
        "figure replay-return {results} -o {figures}",
    ),
    _heatmaps("figure 9", "dqn", "space_invaders"),
    _heatmaps("figure 12", "dqn", _FIRST),
    _heatmaps("figure 13", "dqn", _SECOND),
    _heatmaps("figure 14", "rainbow", _FIRST),
    _heatmaps("figure 15", "rainbow", _SECOND),
    _made("table 1", _SEARCH, part="Atari"),
    _made("table 2", _SEARCH, "best {results}", part="Atari"),
)
