"""The paper's figures and tables, and what makes each of them here. Experiments say their own part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightclip._validation import check_name
from weightclip.lab.registry import experiments

if TYPE_CHECKING:
    import polars as pl

    from weightclip.lab.plotting.figure import Drawing, Figure

ITEMS = {
    "figure 1": "Where clipping, L2 and L2 Init lead a weight",
    "figure 2": "Warm starting: test accuracy on CIFAR-10, in one stage and in two",
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
    "table 1": "The settings that were searched",
    "table 2": "The best setting of each method on each problem",
}
"""Every figure and table of the paper -> what it shows."""

PARTS = dict.fromkeys(("table 1", "table 2"), ("streaming learning", "MuJoCo", "Atari", "warm starting"))
"""Items that several experiments make together -> their parts."""

RESULTS, FIGURES = "results", "figures"


@dataclass(frozen=True)
class Reproduction:
    """What makes a figure or a table of the paper, or its part of it.

    Args:
        item: "figure 3".
        commands: what follows `weightclip`, one command after the other, with {seeds}, {results} and {figures} where
            the user decides.
        seeds: how many the paper has.
        part: which of the item's parts they make, where it has some.
        length: the option of sweeps for the length of a run, and the column of tables.
    """

    item: str
    commands: Sequence[str]
    seeds: int = 20
    part: str = ""
    length: str = "steps"

    def filled(self, seeds: str | None = None, results: str = RESULTS, figures: str = FIGURES) -> list[list[str]]:
        """The words of each command; `seeds` as `weightclip sweep` takes them."""
        values = {"seeds": seeds or self.seeds, "results": results, "figures": figures}
        return [[word.format(**values) for word in command.split()] for command in self.commands]


def reproductions() -> dict[str, dict[str, Reproduction | None]]:
    """Every item of the paper -> its parts ("" where it has none) -> what makes them; None where nothing does yet."""
    found: dict[str, dict[str, Reproduction | None]] = {item: dict.fromkeys(PARTS.get(item, ("",))) for item in ITEMS}
    found["figure 1"][""] = Reproduction("figure 1", ("figure diagram -o {figures}",))
    for experiment in experiments().values():
        for one in (Reproduction(**facts) for facts in experiment.presets().get("reproductions", ())):
            parts = found[check_name(f"{experiment.name}: item", one.item, ITEMS)]
            parts[check_name(f"{experiment.name}: part", one.part, parts)] = one
    return found


def find_item(name: str) -> str:
    """`figure 3`, also as `Figure 3` or `3`; a ValueError that suggests the nearest item."""
    name = name.strip().lower()
    return check_name("item", f"figure {name}" if name.isdigit() else name, ITEMS)


def all_figures() -> list[Figure]:
    """Every figure that can be drawn here: the diagram, which belongs to no experiment, and those of experiments."""
    from weightclip.lab.plotting.figure import Figure

    diagram = Figure("diagram", "1", ITEMS["figure 1"], _draw_diagram)
    return [diagram, *(figure for experiment in experiments().values() for figure in experiment.figures())]


def _draw_diagram(table: pl.DataFrame, criterion: str) -> Drawing:
    """Figure 1, which needs no results; it is the only figure that imports PyTorch."""
    from weightclip.lab.diagram import figure_1

    return figure_1()


def find_figure(name: str) -> Figure:
    """The figure of that name, or with that number in the paper; a ValueError that suggests the nearest one."""
    known = {key: figure for figure in all_figures() for key in (figure.name, figure.number) if key}
    return known[check_name("figure", name, known)]
