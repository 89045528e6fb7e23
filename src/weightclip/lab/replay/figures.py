"""Figures of DQN and Rainbow: the paper's 8 (returns) and 9, 12 to 15 (gradient covariance). They read tables only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from weightclip.lab.plugins import find_experiment
from weightclip.lab.replay.config import AGENTS, NAME
from weightclip.lab.replay.experiment import COVARIANCE
from weightclip.lab.replay.games import PAPER_GAMES
from weightclip.lab.replay.metrics import METRICS
from weightclip.lab.results.chosen import chosen_runs, own_runs
from weightclip.lab.results.criteria import DEFAULT, Criterion
from weightclip.lab.results.curves import curves
from weightclip.lab.results.figure import Drawing, Figure
from weightclip.lab.results.panels import WIDTH, add_legend, count_steps, draw_curve, panels, show_unit
from weightclip.lab.results.setups import main_setup, ordered_methods
from weightclip.lab.results.style import Style, style_of

LEVEL = 0.9
"""Of the intervals in the paper's figure."""

COLUMNS = ("agent", "game", "replay_ratio", "method", "metric", "part", "samples", "mean", "low", "high", "seeds")
AGENT_NAMES = {"dqn": "DQN", "rainbow": "Rainbow"}


def draw_metric(table: pl.DataFrame, criterion: Criterion = DEFAULT, *, metric: str) -> Drawing:
    """A metric against frames, a panel for each agent and game; dotted with smaller replay ratios."""
    runs, notes = chosen_runs(table, NAME, criterion)
    data = curves(runs, metric, level=LEVEL).with_columns(pl.lit(metric).alias("metric")).select(COLUMNS)
    agents = [agent for agent in AGENTS if agent in data["agent"]]
    games = _games(data)
    largest = float(data.select(pl.col("replay_ratio").max()).item())
    lines = _lines(data)
    columns = min(4, len(games))
    rows = [(agent, games[first : first + columns]) for agent in agents for first in range(0, len(games), columns)]
    with panels(len(rows), columns, WIDTH * max(2, columns) / 4, 0.8 + 1.6 * len(rows)) as (picture, found):
        for (agent, some), row in zip(rows, found, strict=True):
            for axes, game in zip(row, some, strict=False):
                for method, ratio in lines:
                    curve = data.filter(agent=agent, game=game, method=method, replay_ratio=ratio)
                    if len(curve):
                        draw_curve(axes, curve, "samples", _style(method, ratio, largest))
                axes.set_title(_title(game) if len(agents) == 1 else f"{_title(game)}, {AGENT_NAMES[agent]}")
                show_unit(axes, METRICS[metric])
                count_steps(axes)
            for axes in row[len(some) :]:
                axes.set_axis_off()
            row[0].set_ylabel(METRICS[metric].label)
        for axes in found[-1]:
            axes.set_xlabel("Frames")
        seeds = sorted(set(data["seeds"]))
        about = f"mean of {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds, 90% interval shaded"
        title = f"RR: replay ratio; {'one seed' if seeds == [1] else about}"
        add_legend(picture, [_style(*line, largest) for line in lines], title)
    return Drawing(picture, data, tuple(notes))


def draw_covariance(table: pl.DataFrame, criterion: Criterion = DEFAULT, *, clustered: bool = False) -> Drawing:
    """Heatmaps of the gradient covariance at the end of runs, the first seed's: a row for each game, a column a method.

    Above each stands the mean of |C[i, j]| over i != j, over all seeds.
    """
    notes: list[str] = []
    runs = main_setup(own_runs(table, NAME), notes.append)
    runs = runs.filter(pl.col("percent") == pl.col("percent").max())
    key = ("agent", "game", "replay_ratio", "method", "kappa")
    matrices = [
        {**dict(zip(key, names, strict=True)), "matrices": [_matrix(one) for one in _seeds(part)]}
        for names, part in runs.group_by(key, maintain_order=True)
    ]
    rows = sorted({(one["agent"], one["game"]) for one in matrices}, key=lambda row: (AGENTS.index(row[0]), row[1]))
    columns = sorted(
        {(one["replay_ratio"], one["method"], one["kappa"]) for one in matrices},
        key=lambda one: (*one[:2], one[2] or 0),
    )
    numbers = []
    with panels(len(rows), len(columns), 1.75 * len(columns) + 0.9, 1.95 * len(rows) + 0.3) as (picture, found):
        image = None
        for (agent, game), line in zip(rows, found, strict=True):
            for axes, (ratio, method, kappa) in zip(line, columns, strict=True):
                wanted = {"agent": agent, "game": game, "replay_ratio": ratio, "method": method, "kappa": kappa}
                own = [one["matrices"] for one in matrices if wanted.items() <= one.items()]
                axes.set_xticks([])
                axes.set_yticks([])
                axes.grid(visible=False)
                if not own:
                    axes.spines[:].set_visible(False)
                    continue
                means = [_off_diagonal(matrix) for matrix in own[0]]
                numbers += [{**wanted, "seed": seed, "off_diagonal": mean} for seed, mean in enumerate(means)]
                image = axes.imshow(_ordered(own[0][0], clustered), cmap="RdBu_r", vmin=-1, vmax=1)
                axes.set_title(f"{_label(method, kappa, ratio)}\n{np.mean(means):.3f}")
            line[0].set_ylabel(f"{AGENT_NAMES[agent]}, {_title(game)}")
        if image is not None:
            picture.colorbar(image, ax=[axes for line in found for axes in line], shrink=0.7)
    return Drawing(picture, pl.DataFrame(numbers), tuple(notes))


def _games(data: pl.DataFrame) -> list[str]:
    there = set(data["game"])
    return [*(game for game in PAPER_GAMES if game in there), *sorted(there - {*PAPER_GAMES})]


def _title(game: str) -> str:
    return PAPER_GAMES.get(game, game.replace("_", " ").capitalize())


def _lines(data: pl.DataFrame) -> list[tuple[str, float]]:
    """Methods in the paper's order, the larger replay ratios first."""
    there = set(data.select("method", "replay_ratio").iter_rows())
    methods = ordered_methods((method for method, _ in there), find_experiment(NAME))
    ratios = sorted({ratio for _, ratio in there}, reverse=True)
    return [(method, ratio) for method in methods for ratio in ratios if (method, ratio) in there]


def _style(method: str, ratio: float, largest: float) -> Style:
    style = style_of(method)
    return replace(style, label=f"{style.label}, RR {ratio:g}", line=style.line if ratio == largest else ":")


def _label(method: str, kappa: float | None, ratio: float) -> str:
    label = style_of(method).label
    return f"{label}{'' if kappa is None else f' ($κ$ = {kappa:g})'}, RR {ratio:g}"


def _seeds(part: pl.DataFrame) -> Sequence[pl.DataFrame]:
    return part.sort("seed", maintain_order=True).partition_by("seed", maintain_order=True)


def _matrix(one: pl.DataFrame) -> NDArray[Any]:
    size = int(one.select(pl.col("row").max()).item()) + 1
    return one.sort("row", "column")["value"].to_numpy().reshape(size, size)


def _off_diagonal(matrix: NDArray[Any]) -> float:
    import torch

    from weightclip.diagnostics import off_diagonal

    return off_diagonal(torch.from_numpy(np.array(matrix)))


def _ordered(matrix: NDArray[Any], clustered: bool) -> NDArray[Any]:
    """With transitions whose gradients point alike beside each other, if that is wanted."""
    if not clustered or len(matrix) < 3:
        return matrix
    from scipy.cluster.hierarchy import leaves_list, linkage  # type: ignore[import-untyped]
    from scipy.spatial.distance import squareform  # type: ignore[import-untyped]

    distances = np.clip(1 - (matrix + matrix.T) / 2, 0, 2)
    np.fill_diagonal(distances, 0)
    order = leaves_list(linkage(squareform(distances, checks=False), "average"))
    return matrix[np.ix_(order, order)]


FIGURES = (
    Figure("replay-return", "8", "Returns of DQN and Rainbow", partial(draw_metric, metric="test_return")),
    Figure("replay-training", "", "Returns in training", partial(draw_metric, metric="return")),
    Figure(
        "gradient-covariance",
        "9 and 12 to 15",
        "Gradient covariance at the end of runs",
        draw_covariance,
        table=COVARIANCE,
    ),
    Figure(
        "gradient-covariance-clustered",
        "",
        "The same, with similar gradients beside each other",
        partial(draw_covariance, clustered=True),
        table=COVARIANCE,
    ),
)
