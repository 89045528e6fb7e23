from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from weightclip.lab.streaming.figures import PANELS, draw_run


def table(seeds: int, tasks: int = 5, columns: tuple[str, ...] = PANELS) -> pl.DataFrame:
    random = np.random.default_rng(seeds)
    rows = [
        {"seed": s, "task": t, **dict.fromkeys(columns, random.uniform())} for s in range(seeds) for t in range(tasks)
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """What the panels get to see: the points of each line, and the edges of each shade."""
    seen: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"lines": [], "shades": []}
    plot, fill = Axes.plot, Axes.fill_between

    def spy_plot(self, x, y, **style):
        seen["lines"].append((x, y))
        return plot(self, x, y, **style)

    def spy_fill(self, x, low, high, **style):
        seen["shades"].append((low, high))
        return fill(self, x, low, high, **style)

    monkeypatch.setattr(Axes, "plot", spy_plot)
    monkeypatch.setattr(Axes, "fill_between", spy_fill)
    return seen


def test_four_panels_of_means_over_seeds_with_their_standard_errors(drawn, tmp_path: Path) -> None:
    one = table(4)
    draw_run({"adam+wc": one}, tmp_path / "run.png")
    assert len(drawn["lines"]) == len(drawn["shades"]) == 4
    by_task = one["accuracy"].to_numpy().reshape(4, 5)
    mean, error = by_task.mean(0), by_task.std(0, ddof=1) / 2
    np.testing.assert_allclose(drawn["lines"][0][1], mean)
    np.testing.assert_allclose(drawn["shades"][0][0], mean - error)
    np.testing.assert_allclose(drawn["shades"][0][1], mean + error)


def test_one_seed_has_no_shade(drawn, tmp_path: Path) -> None:
    draw_run({"adam": table(1), "adam+wc": table(1)}, tmp_path / "run.png")
    assert len(drawn["lines"]) == 8
    assert not drawn["shades"]


def test_the_picture_is_a_png_that_is_there_whole(tmp_path: Path) -> None:
    draw_run({"adam": table(3), "adam+wc": table(3)}, tmp_path / "new" / "run.png", title="a title")
    height, width, _ = imread(tmp_path / "new" / "run.png").shape
    assert width > 2 * height
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.png"]


def test_without_diagnostics_there_are_two_panels(drawn, tmp_path: Path) -> None:
    draw_run({"adam": table(1, columns=("accuracy", "loss"))}, tmp_path / "run.png")
    assert len(drawn["lines"]) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_run_and_a_single_task_are_drawn_too(tmp_path: Path, value: float) -> None:
    broken = table(2, tasks=1).with_columns(loss=pl.lit(value))
    draw_run({"sgd": broken, "mine+own": table(1, tasks=1)}, tmp_path / "run.png")
    assert (tmp_path / "run.png").exists()
