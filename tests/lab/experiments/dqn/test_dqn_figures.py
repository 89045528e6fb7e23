import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from short_runs import config

from weightclip.cli import main
from weightclip.lab.analysis.statistics import interval
from weightclip.lab.experiments.dqn.figures import (
    COLUMNS,
    HEATMAPS,
    _ordered,
    draw_covariance,
    draw_kappas,
    draw_metric,
    draw_sensitivity,
)
from weightclip.lab.experiments.dqn.training import run_config
from weightclip.lab.paper import all_figures, find_figure
from weightclip.lab.plotting.panels import draw_records
from weightclip.lab.records.table import load
from weightclip.lab.report.content import gather


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    for method, ratio, agent in (
        ("adam", 1.0, "dqn"),
        ("adam", 0.5, "dqn"),
        ("adam+wc", 1.0, "dqn"),
        ("adam", 1.0, "rainbow"),
    ):
        for seed in (0, 1):
            run_config(config(agent, method, seed, replay_ratio=ratio, covariance=5), out=path)
    return path


def test_each_agent_and_game_has_a_panel(store: Path) -> None:
    drawing = draw_metric(load(store), metric="test_return")
    assert drawing.data.columns == list(COLUMNS)
    assert [axes.get_title() for axes in drawing.picture.axes] == ["MinAtar Breakout"] * 2
    labels = [f"{agent}\nReturn, evaluated" for agent in ("DQN", "Rainbow")]
    assert [axes.get_ylabel() for axes in drawing.picture.axes] == labels
    labels = [text.get_text() for text in drawing.picture.legends[0].get_texts()]
    assert labels == ["Adam, RR 1", "Adam, RR 0.5", "Adam + WC, RR 1, κ = 1"]
    lines = {line.get_label(): line for line in drawing.picture.axes[0].get_lines()}
    assert lines["Adam, RR 0.5"].get_linestyle() == ":"
    about = drawing.picture.legends[0].get_title().get_text()
    assert "90% interval" in about
    assert "not the paper's setting: suite minatar" in about
    assert any("suite minatar" in note for note in drawing.notes)


def test_intervals_match_the_paper(store: Path) -> None:
    table = load(store).filter(agent="dqn", method="adam+wc", part=4)
    row = (
        draw_metric(load(store), metric="return").data.filter(agent="dqn", method="adam+wc", part=4).row(0, named=True)
    )
    expected = interval(table["return"], 0.9)
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((expected.value, expected.low, expected.high))


def test_clustering_puts_similar_gradients_next_to_each_other() -> None:
    group = np.array([0, 1, 0, 1, 1, 0])
    matrix = np.where(group[:, None] == group, 0.9, 0.1)
    np.fill_diagonal(matrix, 1.0)
    assert np.array_equal(_ordered(matrix, clustered=False), matrix)
    found = _ordered(matrix, clustered=True)
    assert (found[:3, :3] > 0.5).all()
    assert (found[:3, 3:] < 0.5).all()


@pytest.mark.parametrize("clustered", [False, True])
def test_heatmaps_have_their_mean_as_title(store: Path, clustered: bool) -> None:
    table = load(store, table="covariance")
    drawing = draw_covariance(table, clustered=clustered)
    data = drawing.data
    assert len(data) == 8
    assert data["off_diagonal"].is_between(0, 1).all()
    own = table.filter(agent="dqn", method="adam", replay_ratio=1.0, seed=0).filter(pl.col("row") != pl.col("column"))
    first = data.filter(agent="dqn", method="adam", replay_ratio=1.0, seed=0)["off_diagonal"].item()
    assert first == pytest.approx(own["value"].abs().mean(), rel=1e-5)
    titles = [axes.get_title() for axes in drawing.picture.axes if axes.get_title()]
    assert titles[0].startswith("Adam, RR 0.5\nmean 0.")
    assert len(titles) == 4
    for _ in range(2):  # a layout that shrinks panels moves labels at every draw
        drawing.picture.canvas.draw()
    assert drawing.picture.axes[0].yaxis.label.get_window_extent().x0 > 0
    about = drawing.picture.get_supxlabel()
    assert "number above a matrix: mean of |C[i, j]|, i ≠ j; mean over 2 seeds" in about.replace("\n", " ")
    assert "not the paper's setting: suite minatar" in about


def test_heatmaps_of_several_points_of_a_run_are_separate(store: Path) -> None:
    table = load(store, table="covariance").filter(agent="dqn", replay_ratio=1.0)
    halfway = table.with_columns(pl.lit(50).cast(table.schema["percent"]).alias("percent"), pl.col("value") / 2)
    drawing = draw_covariance(pl.concat([table, halfway]))
    titles = [axes.get_title().rpartition("\n")[0] for axes in drawing.picture.axes if axes.get_title()]
    methods = ("Adam, RR 1", "Adam + WC, RR 1\nκ = 1")
    assert titles == [f"{method}\nafter {percent}%" for method in methods for percent in (50, 100)]
    means = drawing.data.filter(method="adam", seed=0).sort("percent")
    assert means["percent"].to_list() == [50, 100]
    assert means["off_diagonal"][0] == pytest.approx(means["off_diagonal"][1] / 2, rel=1e-5)


def test_seeds_are_counted_for_each_matrix(store: Path) -> None:
    table = load(store, table="covariance").filter(agent="dqn", replay_ratio=1.0)
    others = table.filter((pl.col("method") == "adam") | (pl.col("seed") == 0))
    assert "mean over 1 to 2 seeds;" in draw_covariance(others).picture.get_supxlabel().replace("\n", " ")
    apart = table.filter((pl.col("method") == "adam").cast(int) == pl.col("seed"))
    assert "; one seed not the" in draw_covariance(apart).picture.get_supxlabel().replace("\n", " ")


def test_long_curves_are_averaged_to_few_points(store: Path) -> None:
    runs = load(store).filter(agent="rainbow")
    longer = pl.concat([runs.with_columns(pl.col("part") + 4 * k, pl.col("samples") + 400 * k) for k in range(10)])
    data = draw_metric(longer, metric="return").data
    assert len(data) == 20
    assert data["part"].to_list() == list(range(2, 41, 2))
    assert data["mean"][0] == pytest.approx(runs.filter(pl.col("part") <= 2)["return"].mean())


def test_results_without_matrices_are_reported(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "results: got no gradient covariance, expected records of runs with --covariance 32"
    with pytest.raises(ValueError, match=re.escape(message)):
        draw_covariance(load(store))
    run_config(config(), out=tmp_path)
    assert main(["figure", "gradient-covariance", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_report_names_every_figure_of_a_store(store: Path, tmp_path: Path) -> None:
    def figures(path: Path) -> set[str]:
        found = [one.command.split() for one in gather(path, figures=all_figures()).commands]
        return {words[2] for words in found if words[1] == "figure"}

    curves = {"replay-return", "replay-training"}
    assert figures(store) == {*curves, "gradient-covariance", "gradient-covariance-clustered"}
    load(store).write_parquet(tmp_path / "saved.parquet")
    assert figures(tmp_path) == curves
    load(store, table="covariance").write_parquet(tmp_path / "covariance.parquet")
    assert figures(tmp_path) == figures(store)
    without = tmp_path / "without"
    run_config(config(), out=without)
    assert figures(without) == curves


def with_other(table: pl.DataFrame, **values: Any) -> pl.DataFrame:
    """Return the table with copies of the clipping runs that have the given values."""
    own = table.filter(method="adam+wc")
    others = [pl.lit(value).cast(own.schema[name]).alias(name) for name, value in values.items()]
    return pl.concat([table, own.with_columns(*others, identity=pl.col("identity") + str(values))])


def test_heatmaps_of_several_settings_are_separate_and_show_their_seeds(store: Path) -> None:
    table = load(store, table="covariance").with_columns(pl.col("seed") + 3)
    data = with_other(with_other(table, lr=0.5), kappa=5.0)
    drawing = draw_covariance(data)
    titles = [axes.get_title().rpartition("\n")[0] for axes in drawing.picture.axes if axes.get_title()]
    assert titles == [
        "Adam, RR 0.5",
        "Adam, RR 1",
        "Adam + WC, RR 1\nκ = 1\nα = 0.0001",
        "Adam + WC, RR 1\nκ = 1\nα = 0.5",
        "Adam + WC, RR 1\nκ = 5\nα = 0.0001",
        "Adam + WC, RR 1\nκ = 5\nα = 0.5",
        "Adam, RR 1",
    ]
    drawing.picture.canvas.draw()
    boxes = [axes.title.get_window_extent() for axes in drawing.picture.axes[:6]]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert sorted(set(drawing.data["seed"])) == [3, 4]
    found = drawing.data.filter(method="adam+wc", seed=4)
    assert found.select("lr", "kappa").rows() == [(0.0001, 1.0), (0.5, 1.0), (0.0001, 5.0), (0.5, 5.0)]
    own = table.filter(method="adam+wc", seed=4).filter(pl.col("row") != pl.col("column"))
    assert found["off_diagonal"].to_list() == pytest.approx([own["value"].abs().mean()] * 4, rel=1e-5)


def test_agents_with_different_settings_share_columns(store: Path) -> None:
    drawing = draw_covariance(load(store, table="covariance"))
    lr = drawing.data.filter(method="adam", replay_ratio=1.0).select("agent", "lr").unique().sort("agent")
    assert lr.rows() == [("dqn", 0.0001), ("rainbow", 6.25e-5)]
    assert len(drawing.picture.axes) == 2 * 3 + 1  # and the color bar


def test_a_matrix_of_a_diverged_run_does_not_prevent_the_figure(store: Path) -> None:
    table = load(store, table="covariance").with_columns(
        value=pl.when(pl.col("method") == "adam").then(pl.col("value"))
    )
    drawing = draw_covariance(table.with_columns(pl.col("value").fill_null(math.nan)), clustered=True)
    assert drawing.data.filter(method="adam+wc")["off_diagonal"].is_nan().all()
    assert drawing.data.filter(method="adam")["off_diagonal"].is_finite().all()


def test_all_figures_show_the_same_suite(store: Path) -> None:
    """The suite with the longer runs is selected, regardless of the number of points."""
    shown = []
    for table in (load(store), load(store, table="covariance")):
        own = pl.col("samples") * 2 if "samples" in table.columns else pl.lit(None).alias("samples")
        atari = table.with_columns(own, suite=pl.lit("atari"), frames=pl.col("frames") * 2)
        fewer = atari.filter(pl.col("part") > 2) if "part" in atari.columns else atari
        both = pl.concat([table, fewer.with_columns(pl.col("identity") + "a").select(table.columns)])
        drawn = draw_covariance(both) if "percent" in both.columns else draw_metric(both, metric="test_return")
        shown.append({*drawn.data["suite"]})
    assert shown == [{"atari"}, {"atari"}]


def test_every_replay_ratio_has_a_separate_line_and_the_legend_is_complete(store: Path) -> None:
    table = load(store).filter(agent="dqn")
    more = [
        table.with_columns(replay_ratio=pl.lit(ratio), identity=pl.col("identity") + str(ratio)) for ratio in (2.0, 4.0)
    ]
    drawing = draw_metric(pl.concat([table, *more]), metric="test_return")
    (axes,) = drawing.picture.axes
    styles = [line._unscaled_dash_pattern for line in axes.get_lines() if line.get_label().startswith("Adam, ")]
    assert len(styles) == len(set(map(str, styles))) == 4
    assert axes.get_lines()[0].get_label() == "Adam, RR 4"
    assert axes.get_lines()[0].get_linestyle() == "-"
    for one in (drawing, draw_metric(table, metric="test_return"), draw_sensitivity(with_other(table, kappa=5.0))):
        one.picture.canvas.draw()
        legend, whole = one.picture.legends[0].get_window_extent(), one.picture.bbox
        assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1


def test_every_kappa_has_a_separate_curve(store: Path) -> None:
    table = load(store)
    drawing = draw_kappas(with_other(with_other(table, kappa=5.0), lr=0.5))
    (axes,) = drawing.picture.axes
    assert axes.get_title() == "MinAtar Breakout"
    names = ["Adam, RR 1", "Adam, RR 0.5", "Adam + WC, RR 1, κ = 1", "Adam + WC, RR 1, κ = 5"]
    assert [line.get_label() for line in axes.get_lines()] == names
    assert [text.get_text() for text in drawing.picture.legends[0].get_texts()] == names
    line_styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}
    assert len(line_styles) == 4
    best = draw_metric(table.filter(agent="dqn"), metric="test_return").data.filter(method="adam+wc")
    for kappa in (1.0, 5.0):  # the same numbers twice
        assert drawing.data.filter(kappa=kappa)["mean"].to_list() == best["mean"].to_list()
    assert (drawing.data["low"] < drawing.data["mean"]).any()
    with pytest.raises(ValueError, match="results: got one value of kappa for each line, expected several"):
        draw_kappas(table)


def test_the_legend_names_the_kappa_of_a_curve(store: Path) -> None:
    table = load(store).filter(agent="dqn")
    drawing = draw_metric(table, metric="test_return")
    assert drawing.picture.axes[0].get_lines()[-1].get_label() == "Adam + WC, RR 1, κ = 1"
    assert {*drawing.data.select("method", "kappa").iter_rows()} == {("adam", None), ("adam+wc", 1.0)}
    without = draw_metric(table.filter(method="adam"), metric="test_return")
    assert [line.get_label() for line in without.picture.axes[0].get_lines()] == ["Adam, RR 1", "Adam, RR 0.5"]


def test_returns_against_kappa(store: Path) -> None:
    drawing = draw_sensitivity(with_other(load(store), kappa=5.0))
    assert [axes.get_title() for axes in drawing.picture.axes] == ["MinAtar Breakout"]
    lines = drawing.data.partition_by("method", "replay_ratio", as_dict=True)
    assert {*lines} == {("adam+wc", 1.0), ("adam", 1.0)}  # the other replay ratio has only one method
    for line in lines.values():
        assert line["kappa"].to_list() == [1.0, 5.0]
        assert line["mean"].n_unique() == 1  # Adam has no kappa, and clipping has the same numbers twice
    assert [label.get_text() for label in drawing.picture.axes[0].get_xticklabels()] == ["1", "5"]
    with pytest.raises(ValueError, match="results: got one value of kappa for each line, expected several"):
        draw_sensitivity(load(store))


def test_figures_are_found_by_the_papers_numbers() -> None:
    assert find_figure("8").name == "replay-return"
    assert [find_figure(number).name for number in HEATMAPS] == [
        f"gradient-covariance-{n}" for n in (9, 12, 13, 14, 15)
    ]


def test_the_papers_heatmaps_show_only_their_agent_and_games(store: Path) -> None:
    breakout = load(store, table="covariance")
    games = [breakout.with_columns(game=pl.lit(game)) for game in ("asterix", "seaquest", "space_invaders")]
    shown = {number: draw_covariance(pl.concat(games), number=number).data for number in HEATMAPS}
    assert {number: [*data.select("agent", "game").unique().sort("game").rows()] for number, data in shown.items()} == {
        "9": [("dqn", "space_invaders")],
        "12": [("dqn", "asterix")],
        "13": [("dqn", "seaquest"), ("dqn", "space_invaders")],
        "14": [("rainbow", "asterix")],
        "15": [("rainbow", "seaquest"), ("rainbow", "space_invaders")],
    }
    with pytest.raises(ValueError, match="got no gradient covariance of DQN in Space Invaders, expected at least one"):
        draw_covariance(breakout, number="9")


def test_a_single_run_can_be_drawn(tmp_path: Path) -> None:
    draw_records([run_config(config())], tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000
