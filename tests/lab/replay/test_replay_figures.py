from pathlib import Path

import polars as pl
import pytest
from short_runs import config

from weightclip.lab.paper import find_figure
from weightclip.lab.replay.experiment import run_config
from weightclip.lab.replay.figures import COLUMNS, draw_covariance, draw_metric
from weightclip.lab.replay.plugin import EXPERIMENT
from weightclip.lab.results.loading import load


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


def test_agents_and_games_have_a_panel_each(store: Path) -> None:
    drawing = draw_metric(load(store), metric="test_return")
    assert drawing.data.columns == list(COLUMNS)
    assert [axes.get_title() for axes in drawing.picture.axes] == ["Breakout, DQN", "Breakout, Rainbow"]
    labels = [text.get_text() for text in drawing.picture.legends[0].get_texts()]
    assert labels == ["Adam, RR 1", "Adam, RR 0.5", "Adam + WC, RR 1"]
    lines = {line.get_label(): line for line in drawing.picture.axes[0].get_lines()}
    assert lines["Adam, RR 0.5"].get_linestyle() == ":"
    assert "90% interval" in drawing.picture.legends[0].get_title().get_text()


@pytest.mark.parametrize("clustered", [False, True])
def test_heatmaps_have_their_number_above(store: Path, clustered: bool) -> None:
    table = load(store, table="covariance")
    drawing = draw_covariance(table, clustered=clustered)
    data = drawing.data
    assert len(data) == 8
    assert data["off_diagonal"].is_between(0, 1).all()
    own = table.filter(agent="dqn", method="adam", replay_ratio=1.0, seed=0).filter(pl.col("row") != pl.col("column"))
    first = data.filter(agent="dqn", method="adam", replay_ratio=1.0, seed=0)["off_diagonal"].item()
    assert first == pytest.approx(own["value"].abs().mean(), rel=1e-5)
    titles = [axes.get_title() for axes in drawing.picture.axes if axes.get_title()]
    assert titles[0].startswith("Adam, RR 0.5\n0.")
    assert len(titles) == 4


def test_the_papers_numbers_find_them() -> None:
    names = [find_figure(number).name for number in ("8", "9", "12", "13", "14", "15")]
    assert names == ["replay-return", *["gradient-covariance"] * 5]


def test_a_run_has_its_own_picture(tmp_path: Path) -> None:
    EXPERIMENT.draw([run_config(config())], tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000
