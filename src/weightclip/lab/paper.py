"""The paper's figures and tables, and the commands of the experiments that reproduce them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightclip._validation import check_name
from weightclip.lab.registry import experiments

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.plotting.figure import Drawing, Figure

ITEMS = {
    "figure 1": "Effect of clipping, L2 and L2 Init on a weight",
    "figure 2": "Warm starting: test accuracy on CIFAR-10 in one and two stages",
    "figure 3": "Streaming learning: accuracy by task on three problems",
    "figure 4": "Streaming learning: loss, plasticity and norms on input-permuted MNIST",
    "figure 5": "PPO: returns in four MuJoCo environments, where policies collapse",
    "figure 6": "PPO: approximate KL between the current and the old policy",
    "figure 7": "PPO: weight norm and saturated units, Walker2d and Humanoid",
    "figure 8": "DQN and Rainbow: returns in eight Atari games with a replay ratio of 1",
    "figure 9": "DQN: gradient covariance in Space Invaders",
    "figure 10": "Streaming learning: loss, plasticity and norms on label-permuted EMNIST and mini-ImageNet",
    "figure 11": "PPO: weight norm and saturated units, all four environments",
    "figure 12": "DQN: gradient covariance in Asterix, Beam Rider, Demon Attack and Ice Hockey",
    "figure 13": "DQN: gradient covariance in James Bond, Seaquest, Space Invaders and Yars' Revenge",
    "figure 14": "Rainbow: gradient covariance in Asterix, Beam Rider, Demon Attack and Ice Hockey",
    "figure 15": "Rainbow: gradient covariance in James Bond, Seaquest, Space Invaders and Yars' Revenge",
    "table 1": "Searched settings",
    "table 2": "Best setting of each method on each problem",
}
"""Figure or table of the paper -> description."""

_EXPERIMENTS = ("streaming learning", "MuJoCo", "Atari", "warm starting")

PARTS = {"figure 3": ("(a)", "(b)", "(c)"), "table 1": _EXPERIMENTS, "table 2": _EXPERIMENTS}
"""Items whose parts can be reproduced separately -> their parts."""

RESULTS, FIGURES = "results", "figures"


@dataclass(frozen=True)
class Reproduction:
    """The commands that reproduce a figure or table of the paper, or a part of it.

    Args:
        item: name of the item, such as "figure 3".
        commands: arguments of `weightclip` for each command, with the placeholders {seeds}, {results} and {figures}.
        seeds: number of seeds in the paper.
        part: part of the item, if it has parts.
        length: name of the sweep option and table column for the length of a run.
    """

    item: str
    commands: Sequence[str]
    seeds: int = 20
    part: str = ""
    length: str = "steps"

    def filled(self, seeds: str | None = None, results: str = RESULTS, figures: str = FIGURES) -> list[list[str]]:
        """The arguments of each command; `seeds` is in the format of `weightclip sweep`."""
        values = {"seeds": seeds or self.seeds, "results": results, "figures": figures}
        return [[word.format(**values) for word in command.split()] for command in self.commands]


def reproductions() -> dict[str, dict[str, Reproduction | None]]:
    """Item of the paper -> part ("" if it has none) -> reproduction, or None if it is not supported yet."""
    found: dict[str, dict[str, Reproduction | None]] = {item: dict.fromkeys(PARTS.get(item, ("",))) for item in ITEMS}
    found["figure 1"][""] = Reproduction("figure 1", ("figure diagram -o {figures}",))
    for experiment in experiments().values():
        for one in (Reproduction(**facts) for facts in experiment.presets().get("reproductions", ())):
            parts = found[check_name(f"{experiment.name}: item", one.item, ITEMS)]
            parts[check_name(f"{experiment.name}: part", one.part, parts)] = one
    return found


def find_item(name: str) -> tuple[str, str]:
    """The item and part with a name: `figure 4`, `Figure 4` or `4`, `figure 3(a)` or `3a`, `table 2 Atari`.

    The part is "" for the whole item. An unknown name raises a ValueError with a suggestion.
    """
    known = {_shortened(f"{item} {part}"): (item, part) for item in ITEMS for part in ("", *PARTS.get(item, ()))}
    short = _shortened(name)
    short = f"figure{short}" if short[:1].isdigit() else short
    return known[short] if short in known else (check_name("item", " ".join(name.lower().split()), ITEMS), "")


def _shortened(name: str) -> str:
    return re.sub(r"[\s()]", "", name.lower())


def all_figures() -> Iterator[Figure]:
    """All figures: the diagram, which needs no experiment, and those of each experiment, which are imported in turn."""
    from weightclip.lab.plotting.figure import Figure

    yield Figure("diagram", "1", ITEMS["figure 1"], _draw_diagram)
    for experiment in experiments().values():
        yield from experiment.figures()


def _draw_diagram(table: pl.DataFrame, criterion: str) -> Drawing:
    """Draw figure 1, which needs no results. It is the only figure that imports PyTorch."""
    from weightclip.lab.figure_1 import figure_1

    return figure_1()


def find_figure(name: str) -> Figure:
    """The figure with a name or number. An unknown name raises a ValueError that suggests the nearest one."""
    names = []
    for figure in all_figures():
        if name in (figure.name, figure.number):
            return figure
        names += [key for key in (figure.name, figure.number) if key]
    check_name("figure", name, names)
    raise AssertionError
