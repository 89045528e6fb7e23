"""Figures of DQN and Rainbow: 8 (returns), 9 and 12 to 15 (gradient covariance) of the paper. Input: tidy tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray

from weightclip.lab.analysis.best import chosen_runs, experiment_runs
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.selection import select
from weightclip.lab.analysis.setups import SINGLE_KAPPA, check_several_kappas, columns_of, main_setup, remarks
from weightclip.lab.analysis.statistics import sensitivity
from weightclip.lab.experiments.dqn.config import AGENTS, NAME
from weightclip.lab.experiments.dqn.environments import PAPER_GAMES
from weightclip.lab.experiments.dqn.metrics import COVARIANCE, METRICS, SCHEMA
from weightclip.lab.plotting.captions import BARS, KAPPA, ONE_SEED, caption, seed_count_text, seeds_caption
from weightclip.lab.plotting.figure import Drawing, Figure
from weightclip.lab.plotting.panels import (
    CHARACTERS,
    KAPPA_LABEL,
    WIDTH,
    add_legend,
    draw_curve,
    format_unit,
    lighter,
    panels,
    set_kappa_axis,
    set_steps_axis,
    wrapped,
)
from weightclip.lab.plotting.style import MARKERS, Style, style_of
from weightclip.lab.records.schema import CRITERIA, DEFAULT, Criterion, Metric
from weightclip.lab.text import kappa_text, value_text

_FIRST, _SECOND = tuple(PAPER_GAMES)[:4], tuple(PAPER_GAMES)[4:]

HEATMAPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "9": ("dqn", ("space_invaders",)),
    "12": ("dqn", _FIRST),
    "13": ("dqn", _SECOND),
    "14": ("rainbow", _FIRST),
    "15": ("rainbow", _SECOND),
}
"""Number of a figure in the paper with gradient covariances -> agent and games."""

LEVEL = 0.9
"""Confidence level of the intervals, as in the paper."""

NUM_POINTS = 20
"""Points per curve. An evaluation has few games, so each point averages several evaluations."""

PANEL = ("suite", "agent", "game")
LINE = ("replay_ratio", "method", *KAPPA)
COLUMNS = (*PANEL, *LINE, "metric", "part", "samples", "mean", "low", "high", "seeds")
AGENT_NAMES = {"dqn": "DQN", "rainbow": "Rainbow"}
SYMBOLS = {"lr": "α", "decay": "λ", "sigma": "σ"}

VARIED = "varied."
"""Prefix of settings that distinguish the columns of a figure."""

SMALLER: tuple[Any, ...] = (":", "-.", (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2)))
"""Line styles of all replay ratios except the largest."""

SHADED = tuple(marker for marker in MARKERS.values() if marker)
"""Markers that distinguish kappas, in addition to shades."""

MARGINS = 1.0
"""Width of the labels and the color bar of heatmaps, in inches."""

LEGEND_WIDTH, ENTRY_WIDTH = 3.6, 1.55
"""Widths of the legend's title and of an entry, in inches."""


def draw_metric(table: pl.DataFrame, criterion: Criterion = DEFAULT, *, metric: str) -> Drawing:
    """Draw a metric by frames, with a panel for each agent and game. Smaller replay ratios have dashed lines.

    A point is the mean over one of `NUM_POINTS` equal parts of a run.
    """
    return _draw_curves(*chosen_runs(table, NAME, criterion), metric)


def draw_kappas(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw evaluation returns by frames for each kappa, with the best other settings, on games with several kappas."""
    notes: list[str] = []
    runs = main_setup(experiment_runs(table, NAME), notes.append)
    several = runs.filter(pl.col("kappa").n_unique().over(*PANEL, "method") > 1)
    if several.is_empty():
        raise ValueError(SINGLE_KAPPA)
    runs = runs.join(several, PANEL, how="semi")
    chosen = [chosen_runs(part, NAME, criterion) for part in runs.partition_by(_kappa_columns(runs))]
    notes += [note for _, part_notes in chosen for note in part_notes]
    return _draw_curves(pl.concat([part for part, _ in chosen]), notes, "test_return")


def _draw_curves(runs: pl.DataFrame, notes: Sequence[str], metric: str) -> Drawing:
    """Draw a metric of the runs by frames."""
    found = curves(runs, metric, level=LEVEL, points=NUM_POINTS)
    rule = () if "kappa_rule" in found.columns else (pl.lit(None, pl.String).alias("kappa_rule"),)
    data = found.with_columns(pl.lit(metric).alias("metric"), *rule).select(COLUMNS)
    about = f"{seeds_caption(data, f'{LEVEL:.0%} interval shaded')}; a point is the mean over a twentieth of the run"
    x, label = SCHEMA.plot_column, SCHEMA.plot_label
    picture = _draw_panels(data, x, label, set_steps_axis, METRICS[metric], _caption(about, runs))
    return Drawing(picture, data, (*notes, *remarks(runs)))


def draw_sensitivity(table: pl.DataFrame, criterion: Criterion = DEFAULT) -> Drawing:
    """Draw evaluation returns by kappa, with the best other settings; a panel for each agent and game.

    Methods without kappa are horizontal lines.
    """
    notes: list[str] = []
    runs = main_setup(experiment_runs(table, NAME), notes.append)
    line, score, error = (*PANEL, "replay_ratio", "method"), pl.col("score"), pl.col("error").fill_null(0.0)
    several = (
        sensitivity(runs, "kappa", criterion=criterion)
        .filter(pl.col("kappa").is_finite())
        .filter(pl.len().over(line) > 1)
    )
    if several.is_empty():
        raise ValueError(SINGLE_KAPPA)
    without = [pl.col(name).is_null() for name in _kappa_columns(runs)]
    constant = select(runs, criterion=criterion).filter(without).drop("kappa")
    ratios = (*PANEL, "replay_ratio")
    level = constant.join(several.select(*ratios, "kappa").unique(), ratios)
    data = (
        pl.concat([several, level], how="diagonal_relaxed")
        .select(
            *line, "kappa", score.alias("mean"), (score - error).alias("low"), (score + error).alias("high"), "seeds"
        )
        .sort(*line, "kappa")
    )
    about = f"{CRITERIA[criterion]}; {seeds_caption(data, BARS)}"
    scale = partial(set_kappa_axis, ticks=data["kappa"])
    picture = _draw_panels(data, "kappa", KAPPA_LABEL, scale, METRICS["test_return"], _caption(about, runs), bars=True)
    return Drawing(picture, data, (*notes, *remarks(runs)))


def _draw_panels(
    data: pl.DataFrame,
    x_column: str,
    label: str,
    scale: Callable[[Axes], None],
    metric: Metric,
    about: str,
    bars: bool = False,
) -> Picture:
    """Draw a panel for each agent and game, with a line for each method, replay ratio and kappa."""
    agents = [agent for agent in AGENTS if agent in data["agent"]]
    games = _games(data)
    styles = _styles(data, [name for name in LINE if name != x_column and name in data.columns])
    columns = min(4, len(games))
    rows = [(agent, games[first : first + columns]) for agent in agents for first in range(0, len(games), columns)]
    entries = len(styles) if len(styles) < 5 else -(-len(styles) // 2)  # entries per row of the legend
    width = max(WIDTH * columns / 4, LEGEND_WIDTH, ENTRY_WIDTH * entries)
    height = 0.2 + 1.7 * len(rows)
    with panels(len(rows), columns, width, height) as (picture, found):
        for (agent, row_games), row in zip(rows, found, strict=True):
            for axes, game in zip(row, row_games, strict=False):
                for line, style in styles:
                    curve = _filter(data, {"agent": agent, "game": game, **line})
                    if len(curve):
                        draw_curve(axes, curve, x_column, style, bars)
                axes.set_title(_title(game, data["suite"][0]))
                format_unit(axes, metric)
                scale(axes)
            for axes in row[len(row_games) :]:
                axes.set_axis_off()
            row[0].set_ylabel(f"{AGENT_NAMES[agent]}\n{metric.label}")
        for axes in found[-1]:
            axes.set_xlabel(label)
        add_legend(picture, [style for _, style in styles], about)
    return picture


def draw_covariance(
    table: pl.DataFrame, criterion: Criterion = DEFAULT, *, clustered: bool = False, number: str | None = None
) -> Drawing:
    """Draw heatmaps of the first seed's gradient covariance, for all runs or for those in one of the paper's figures.

    There is a row for each agent and game, and a column for each replay ratio, method, varied setting and, if there are
    several, percentage of the run. The title of a heatmap shows the mean of |C[i, j]| over i != j and all seeds.
    """
    notes: list[str] = []
    runs = main_setup(_with_covariance(experiment_runs(table, NAME), number), notes.append)
    settings = [name for name in columns_of(runs).settings if runs[name].count()]
    runs = _varied(runs, settings)
    points = ("percent",) if runs["percent"].n_unique() > 1 else ()
    key = ("replay_ratio", "method", *(VARIED + name for name in settings), *points)
    rows = sorted(set(runs.select(PANEL).iter_rows()), key=lambda row: (AGENTS.index(row[1]), row[2]))
    columns = runs.select(key).unique().sort(key, nulls_last=False).to_dicts()
    numbers = []
    size = min(1.5, (WIDTH - MARGINS) / len(columns))
    labels = [wrapped(_label(column), size) for column in columns]
    row_height = size + 0.15 * (1 + max(len(label.splitlines()) for label in labels))
    with panels(len(rows), len(columns), size * len(columns) + MARGINS, row_height * len(rows) + 0.5) as (
        picture,
        found,
    ):
        picture.set_layout_engine("compressed")  # otherwise labels next to the square panels are cut off
        image = None
        for (suite, agent, game), line in zip(rows, found, strict=True):
            for axes, column, label in zip(line, columns, labels, strict=True):
                part = _filter(runs, {"agent": agent, "game": game, **column})
                axes.set_xticks([])
                axes.set_yticks([])
                axes.grid(visible=False)
                if part.is_empty():
                    axes.spines[:].set_visible(False)
                    continue
                seeds = part.sort("seed").partition_by("seed", maintain_order=True)
                matrices = [_matrix(seed_runs) for seed_runs in seeds]
                means = [_off_diagonal(matrix) for matrix in matrices]
                keys = [
                    seed_runs.select(*PANEL, "replay_ratio", "method", *settings, "percent", "seed")[:1]
                    for seed_runs in seeds
                ]
                numbers.append(pl.concat(keys).with_columns(off_diagonal=pl.Series(means)))
                image = axes.imshow(_ordered(matrices[0], clustered), cmap="RdBu_r", vmin=-1, vmax=1)
                axes.set_title(f"{label}\nmean {np.mean(means):.3f}", fontsize=7)
            name = f"{AGENT_NAMES[agent]}, {_title(game, suite)}"
            line[0].set_ylabel("\n".join(textwrap.wrap(name, int(CHARACTERS * size))), fontsize=7)
        if image is not None:
            picture.colorbar(image, ax=[axes for line in found for axes in line], shrink=0.7, label="C[i, j]")
        data = pl.concat(numbers)
        number = seed_count_text([len(seed_runs) for seed_runs in numbers])
        about = number if number == ONE_SEED else f"mean over {number}; matrix of the first seed"
        text = _caption(f"number above a matrix: mean of |C[i, j]|, i ≠ j; {about}", runs)
        picture.supxlabel(wrapped(text, picture.get_figwidth()), fontsize="medium")
    return Drawing(picture, data, (*notes, *remarks(runs)))


def _caption(about: str, runs: pl.DataFrame) -> str:
    """The caption of a figure whose legend or titles show every kappa."""
    return caption(f"RR: replay ratio; {about}", runs=runs, panel="game", kappas=False)


def _kappa_columns(runs: pl.DataFrame) -> list[str]:
    return [name for name in KAPPA if name in runs.columns]


def _with_covariance(runs: pl.DataFrame, number: str | None = None) -> pl.DataFrame:
    """The runs with gradient covariances, or those in one of the paper's figures. Without any, raise a ValueError."""
    if "percent" not in runs.columns or not runs["percent"].count():
        expected = "records of runs with --covariance 32, or a table of it"
        raise ValueError(f"results: got no gradient covariance, expected {expected}")
    if number is None:
        return runs
    agent, games = HEATMAPS[number]
    found = runs.filter(pl.col("agent") == agent, pl.col("game").is_in(games))
    if found.is_empty():
        raise ValueError(f"results: got no gradient covariance of {_content(number)}, expected at least one")
    return found


def _content(number: str) -> str:
    """The content of one of the paper's figures: "DQN in Asterix, Beam Rider, Demon Attack, Ice Hockey"."""
    agent, games = HEATMAPS[number]
    return f"{AGENT_NAMES[agent]} in {', '.join(PAPER_GAMES[game] for game in games)}"


def _games(data: pl.DataFrame) -> list[str]:
    found = set(data["game"])
    return [*(game for game in PAPER_GAMES if game in found), *sorted(found - {*PAPER_GAMES})]


def _title(game: str, suite: str) -> str:
    """The title of a game: as in the paper, with the suite for MinAtar."""
    title = PAPER_GAMES.get(game, game.replace("_", " ").capitalize())
    return f"MinAtar {title}" if suite == "minatar" else title


def _styles(data: pl.DataFrame, keys: Sequence[str]) -> list[tuple[dict[str, Any], Style]]:
    """Lines, as values of the columns in `keys`, with their styles, in the paper's order of methods.

    Smaller replay ratios have other line styles. Each kappa has a shade of the method's color and a marker.
    """
    found = data.select(keys).unique().to_dicts()
    ratios = sorted({line["replay_ratio"] for line in found}, reverse=True)
    kappas = sorted({line["kappa"] for line in found if line.get("kappa") is not None})
    methods = SCHEMA.ordered_methods(line["method"] for line in found)

    def order(line: Mapping[str, Any]) -> tuple[int, int, float]:
        return methods.index(line["method"]), ratios.index(line["replay_ratio"]), line.get("kappa") or 0.0

    def styled(line: Mapping[str, Any]) -> Style:
        style, kappa = style_of(line["method"]), line.get("kappa")
        text = kappa_text(kappa, line.get("kappa_rule"))
        _, ratio, _ = order(line)
        dashes = style.line if ratio == 0 else SMALLER[(ratio - 1) % len(SMALLER)]
        label = ", ".join(filter(None, (style.label, f"RR {line['replay_ratio']:g}", text)))
        drawn = replace(style, label=label, line=dashes)
        if kappa is None:
            return drawn
        k = kappas.index(kappa)
        return replace(
            drawn,
            color=lighter(style.color, 0.7 * k / len(kappas)),
            marker=SHADED[k % len(SHADED)] if k else style.marker,
        )

    return [(line, styled(line)) for line in sorted(found, key=order)]


def _varied(runs: pl.DataFrame, settings: Sequence[str]) -> pl.DataFrame:
    """Add a column for each setting, which is null for methods with a single value of it per agent, except kappa."""
    numbers = runs.with_columns(pl.col(settings).n_unique().over("agent", "method").name.prefix(VARIED))
    several = [((pl.col(VARIED + name).max().over("method") > 1) | pl.lit(name in KAPPA), name) for name in settings]
    return numbers.with_columns(pl.when(varied).then(name).alias(VARIED + name) for varied, name in several)


def _label(column: Mapping[str, Any]) -> str:
    """The title of a column: method and replay ratio, kappa, the varied settings and the percentage of the run."""
    given = {name.removeprefix(VARIED): value for name, value in column.items() if name.startswith(VARIED)}
    varied = {SYMBOLS.get(name, name.rpartition(".")[2]): value for name, value in given.items() if value is not None}
    kappa = kappa_text(*(varied.pop(name, None) for name in KAPPA))
    settings = [kappa, *(f"{name} = {value_text(value)}" for name, value in varied.items())]
    first = f"{style_of(column['method']).label}, RR {column['replay_ratio']:g}"
    point = f"after {column['percent']}%" if "percent" in column else ""
    return "\n".join(filter(None, (first, *settings, point)))


def _filter(runs: pl.DataFrame, values: Mapping[str, Any]) -> pl.DataFrame:
    """The runs with these values; null matches null."""
    return runs.filter(pl.col(name).eq_missing(pl.lit(value)) for name, value in values.items())


def _matrix(seed_runs: pl.DataFrame) -> NDArray[Any]:
    size = int(seed_runs.select(pl.col("row").max()).item()) + 1
    return seed_runs.sort("row", "column")["value"].to_numpy().reshape(size, size)


def _off_diagonal(matrix: NDArray[Any]) -> float:
    import torch

    from weightclip.diagnostics import off_diagonal

    return off_diagonal(torch.from_numpy(np.array(matrix)))


def _ordered(matrix: NDArray[Any], clustered: bool) -> NDArray[Any]:
    """The matrix, with similar gradients next to each other if `clustered` and all entries are finite."""
    if not clustered or len(matrix) < 3 or not np.isfinite(matrix).all():
        return matrix
    from scipy.cluster.hierarchy import leaves_list, linkage  # type: ignore[import-untyped]
    from scipy.spatial.distance import squareform  # type: ignore[import-untyped]

    distances = np.clip(1 - (matrix + matrix.T) / 2, 0, 2)
    np.fill_diagonal(distances, 0)
    order = leaves_list(linkage(squareform(distances, checks=False), "average"))
    return matrix[np.ix_(order, order)]


def _check_kappas(table: pl.DataFrame) -> None:
    check_several_kappas(table, (*PANEL, "method"))


FIGURES = (
    Figure("replay-return", "8", "Returns of DQN and Rainbow", partial(draw_metric, metric="test_return"), NAME),
    Figure("replay-training", "", "Training returns", partial(draw_metric, metric="return"), NAME),
    Figure("replay-kappas", "", "Returns for each kappa", draw_kappas, NAME, _check_kappas),
    Figure("replay-sensitivity", "", "Returns by kappa", draw_sensitivity, NAME, _check_kappas),
    Figure(
        "gradient-covariance",
        "",
        "Gradient covariance of all runs",
        draw_covariance,
        NAME,
        _with_covariance,
        COVARIANCE,
    ),
    Figure(
        "gradient-covariance-clustered",
        "",
        "Gradient covariance of all runs, clustered",
        partial(draw_covariance, clustered=True),
        NAME,
        _with_covariance,
        COVARIANCE,
    ),
    *(
        Figure(
            f"gradient-covariance-{number}",
            number,
            f"Gradient covariance of {_content(number)}",
            partial(draw_covariance, number=number),
            NAME,
            partial(_with_covariance, number=number),
            COVARIANCE,
        )
        for number in HEATMAPS
    ),
)
