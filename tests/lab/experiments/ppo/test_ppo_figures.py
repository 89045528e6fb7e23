import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from matplotlib.figure import Figure as Picture
from toy_env import NAME, config

from weightclip.lab.analysis.best import best_settings, setting_notes
from weightclip.lab.analysis.selection import best_runs
from weightclip.lab.experiments.ppo.experiment import EXPERIMENT
from weightclip.lab.experiments.ppo.figures import COLUMNS, DIAGNOSTICS, RETURN, draw_metrics
from weightclip.lab.experiments.ppo.training import run_configs
from weightclip.lab.paper import find_figure
from weightclip.lab.plotting import panels
from weightclip.lab.plotting.captions import kappas_of
from weightclip.lab.plotting.panels import add_legend, draw_records
from weightclip.lab.plotting.style import Style
from weightclip.lab.records.columns import comparison_columns
from weightclip.lab.records.table import load


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    store = tmp_path_factory.mktemp("store")
    for method, settings in (("adam", {}), ("adam+wc", {"kappa": 1.0}), ("adam+wc", {"kappa": 2.0})):
        run_configs([config(method, seed, **settings) for seed in (0, 1)], store)
    one = load(store)
    return pl.concat([one, copy_runs("Ant-v4", one, "x")])


def copy_runs(env: str, table: pl.DataFrame, suffix: str, **settings: Any) -> pl.DataFrame:
    """Return copies of the runs with another environment and settings."""
    deviations = EXPERIMENT.compare_with_paper(replace(config(), env=env, **settings))[1]
    text = comparison_columns({"schema": EXPERIMENT.schema.as_dict(), "deviations": deviations})["deviations"]
    return table.with_columns(
        pl.lit(env).alias("env"), pl.lit(text, pl.String).alias("deviations"), pl.col("identity") + suffix
    )


def test_environments_are_columns_and_metrics_rows(table: pl.DataFrame) -> None:
    drawing = draw_metrics(table, metrics=DIAGNOSTICS)
    assert drawing.data.columns == list(COLUMNS)
    axes = drawing.picture.axes
    assert [one.get_title() for one in axes] == ["Ant-v4", NAME, "", ""]
    assert [one.get_ylabel() for one in axes] == ["Weight l2 norm", "", "Saturated units", ""]
    labels = [text.get_text() for text in drawing.picture.legends[0].get_texts()]
    (kappa,) = kappas_of(best_runs(table), "env")["adam+wc"]
    assert labels == ["Adam", f"Adam + WC, {kappa}"]
    assert sum("best of several settings by auc" in note for note in drawing.notes) == 2
    assert drawing.data["seeds"].unique().to_list() == [2]


def test_a_stopped_seed_is_averaged_until_it_stops_and_reported(table: pl.DataFrame) -> None:
    broken = (pl.col("seed") == 1) & (pl.col("iteration") > 2) & (pl.col("method") == "adam")
    nothing = [
        pl.when(broken).then(float("nan")).otherwise(pl.col(name)).alias(name) for name in ("return", "weight_l2")
    ]
    stopped = table.with_columns(nothing)
    drawing = draw_metrics(stopped, metrics=RETURN)
    assert f"{NAME}: adam: 1 of 2 seeds stopped early; means exclude them after that" in drawing.notes
    (fall,) = (note for note in drawing.notes if note.startswith(f"{NAME}: adam: return"))
    assert fall.endswith("below that (1 of 2 seeds)")
    stopped_all = stopped.with_columns(
        pl.when(pl.col("iteration") > 3).then(math.nan).otherwise("return").alias("return")
    )
    assert any(note.endswith("no seed reaches the end") for note in draw_metrics(stopped_all, metrics=RETURN).notes)
    line = drawing.data.filter(env=NAME, method="adam").sort("iteration")
    assert line["seeds"].to_list() == [2, 2, 1, 1]
    assert line["mean"].is_finite().all()


def test_the_peak_of_returns_and_the_fall_from_it_are_reported(table: pl.DataFrame) -> None:
    rises = table.with_columns(
        pl.when(pl.col("iteration") == 2).then(50.0).otherwise(10.0 + pl.col("seed")).alias("return")
    )
    notes = draw_metrics(rises, metrics=RETURN).notes
    assert f"{NAME}: adam: return at most 50 ± 0, after 130 steps; ends 39.50 ± 0.50 below that" in notes
    assert not any("ends" in note for note in draw_metrics(rises, metrics=DIAGNOSTICS).notes)


def test_each_seed_has_a_thin_line(table: pl.DataFrame) -> None:
    rises = table.filter(pl.col("kappa").is_null() | (pl.col("kappa") == 1)).with_columns(
        pl.when(pl.col("iteration") == 2).then(50.0).otherwise(10.0 + pl.col("seed")).alias("return")
    )
    drawing = find_figure("policy-seeds").draw(rises, "auc")
    assert drawing.data.columns == ["env", "method", "seed", "samples", "mean"]
    seed = drawing.data.filter(env=NAME, method="adam+wc", seed=1)
    assert seed.select("samples", "mean").rows() == [(64, 11.0), (128, 50.0), (192, 11.0), (256, 11.0)]
    axes = drawing.picture.axes
    assert [one.get_title() for one in axes] == ["Ant-v4", NAME]
    assert len(axes[1].lines) == 4
    assert max(line.get_linewidth() for line in axes[1].lines) < 1
    assert [text.get_text() for text in drawing.picture.legends[0].get_texts()] == ["Adam", "Adam + WC, κ = 1"]
    assert "a line for each seed, 2 seeds" in drawing.picture.legends[0].get_title().get_text()
    assert f"{NAME}: adam: return at most 50 ± 0, after 130 steps; ends 39.50 ± 0.50 below that" in drawing.notes


def test_curves_are_thinned(table: pl.DataFrame) -> None:
    for times, points in ((20, 80), (25, 100), (60, 100)):  # means of 4 iterations each
        longer = pl.concat([table.with_columns(pl.col("iteration", "samples") + 4 * i) for i in range(times)])
        data = draw_metrics(longer, metrics=RETURN).data
        assert data.group_by("env", "method").len()["len"].unique().to_list() == [points]


def test_figures_are_found_by_the_papers_numbers() -> None:
    names = [find_figure(number).name for number in ("5", "6", "7", "11")]
    assert names == ["policy-return", "policy-kl", "policy-diagnostics-two", "policy-diagnostics"]


def test_figure_7_has_only_two_environments(table: pl.DataFrame) -> None:
    figure = find_figure("7")
    with pytest.raises(ValueError, match=f"got runs in Ant-v4, {NAME}, expected runs in Walker2d-v4 or Humanoid-v4"):
        figure.draw(table, "auc")
    walker = copy_runs("Walker2d-v4", table.filter(env=NAME), "y")
    drawing = figure.draw(pl.concat([table, walker]), "auc")
    assert set(drawing.data["env"]) == {"Walker2d-v4"}


def test_deviations_from_the_paper_are_reported_and_marked(table: pl.DataFrame) -> None:
    drawing = draw_metrics(table, metrics=RETURN)
    reported = [note for note in drawing.notes if note.startswith("not the paper's setting: ")]
    assert len(reported) == 2
    assert all("update_epochs 2, num_steps 64, num_minibatches 4, hidden 8,8" in note for note in reported)
    assert sum(f"env {NAME}" in note for note in reported) == 1
    about = drawing.picture.legends[0].get_title().get_text().replace("\n", " ")
    assert "not the paper's setting: " in about
    assert "update_epochs 2, num_steps 64, num_minibatches 4, hidden 8,8 (Ant-v4)" in about
    usual = {"update_epochs": 10, "num_steps": 2048, "num_minibatches": 32, "hidden": (64, 64)}
    papers = draw_metrics(copy_runs("Ant-v4", table.filter(env=NAME), "y", **usual), metrics=RETURN)
    assert not any("not the paper's" in note for note in papers.notes)
    assert papers.picture.legends[0].get_title().get_text() == "mean of 2 seeds, standard error shaded"


def test_a_best_setting_is_reported_with_its_deviations(table: pl.DataFrame) -> None:
    row, *_ = best_settings(table).iter_rows(named=True)
    assert any(note.startswith("not the paper's setting: update_epochs 2") for note in setting_notes(row))


def test_a_single_run_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    legends: list[str] = []
    pictures: list[Picture] = []

    def legend(picture: Picture, styles: Iterable[Style], title: str = "") -> None:
        pictures.append(picture)
        legends.append(title)
        add_legend(picture, styles, title)

    monkeypatch.setattr(panels, "add_legend", legend)
    draw_records(run_configs([config(seed=seed) for seed in (0, 1)], tmp_path), tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000
    assert legends == ["mean of 2 seeds, standard error shaded"]
    axes = pictures[0].axes
    assert {one.get_xlabel() for one in axes} == {"Environment steps"}
    assert axes[0].lines[0].get_xdata().tolist() == [64, 128, 192, 256]
    assert [text.get_text() for text in pictures[0].legends[0].get_texts()] == ["Adam + WC, κ = 3"]
    title = pictures[0].get_suptitle()
    assert title.replace("\n", " ").startswith(
        f"policy-collapse, env {NAME}: lr 0.0003, kappa 3, bounds paper, steps 256 "
        f"not the paper's setting: env {NAME}, update_epochs 2, "
    )
    draw_records(
        run_configs([config(seed=seed) for seed in (0, 1)], tmp_path), tmp_path / "run.png"
    )  # read from records
    assert pictures[1].get_suptitle() == title
