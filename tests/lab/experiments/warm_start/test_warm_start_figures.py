from pathlib import Path

import polars as pl
import pytest
from synthetic_images import config, image_data

from weightclip.lab.analysis.selection import best_runs
from weightclip.lab.experiments.warm_start.figures import draw_sensitivity, figure_2
from weightclip.lab.experiments.warm_start.training import run_config
from weightclip.lab.plotting.captions import kappas_of
from weightclip.lab.plotting.panels import draw_records
from weightclip.lab.records.table import load

DATA = image_data()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    store = tmp_path_factory.mktemp("store")
    runs = [("sgd", 1, {}), ("sgd", 2, {}), *(("sgd+wc", 2, {"kappa": kappa}) for kappa in (0.5, 1.0, 2.0))]
    for method, stages, settings in (*runs, ("sgd+wc@switch", 2, {})):
        for seed in (0, 1):
            run_config(config(method, stages=stages, seed=seed, **settings), DATA, out=store)  # type: ignore[arg-type]
    return load(store)


def test_one_figure_shows_both_schedules(table: pl.DataFrame) -> None:
    drawing = figure_2(table)
    assert drawing.data.columns == ["method", "stages", "metric", "epoch", "passes", "mean", "low", "high", "seeds"]
    there = set(drawing.data.select("method", "stages").iter_rows())
    assert there == {("sgd", 1), ("sgd", 2), ("sgd+wc", 2), ("sgd+wc@switch", 2)}
    ends = drawing.data.group_by("method", "stages").agg(pl.col("passes").max())
    assert ends["passes"].unique().to_list() == [2.0]  # both use every image twice
    (kappa,) = kappas_of(best_runs(table, criterion="auc"))["sgd+wc"]
    labels = [text.get_text() for text in drawing.picture.legends[0].get_texts()]
    assert labels == [
        "SGD, one stage",
        "SGD, two stages",
        f"SGD + WC, {kappa}, two stages",
        "SGD + WC@switch, κ = 1, two stages",
    ]
    assert any("best of several settings by auc" in note for note in drawing.notes)


def test_deviations_from_the_paper_are_marked(table: pl.DataFrame) -> None:
    drawing = figure_2(table)
    about = drawing.picture.legends[0].get_title().get_text().replace("\n", " ")
    assert about.startswith("mean of 2 seeds, standard error shaded not the paper's setting: ")
    assert "width 4" in about
    assert any(note.startswith("not the paper's setting: ") and "width 4" in note for note in drawing.notes)
    several = draw_sensitivity(table)
    about = several.picture.legends[0].get_title().get_text().replace("\n", " ")
    assert about.startswith("area under the curve; mean of 2 seeds, standard error as bars not the paper's setting: ")
    assert set(drawing.notes) & set(several.notes)


def test_all_lines_have_different_styles(table: pl.DataFrame) -> None:
    """The line style shows the optimizer, as in all figures; lines of one-stage runs are paler."""
    adam = table.filter(method="sgd").with_columns(pl.lit("adam").alias("method"), pl.col("identity") + "a")
    lines = figure_2(pl.concat([table, adam])).picture.axes[0].get_lines()[:-1]  # the last line marks the switch
    kinds = {line.get_label(): (line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}
    assert len(set(kinds.values())) == len(kinds) == 6
    assert {label.split(",")[0]: kind[1] for label, kind in kinds.items() if "WC" not in label} == {
        "SGD": "--",
        "Adam": "-",
    }
    assert kinds["SGD, one stage"][0] == "#808080"


def test_sensitivity_has_the_tried_values(table: pl.DataFrame) -> None:
    data = draw_sensitivity(table).data
    assert data["kappa"].to_list() == [0.5, 1.0, 2.0]
    assert data["method"].unique().to_list() == ["sgd+wc"]
    with pytest.raises(ValueError, match="results: got one value of kappa for each line, expected several"):
        draw_sensitivity(table.filter(method="sgd"))


def test_the_switch_is_marked_where_the_first_stage_ends(table: pl.DataFrame) -> None:
    for axes in figure_2(table).picture.axes:
        assert list(axes.get_lines()[-1].get_xdata()) == [1.0, 1.0]  # both halves are used twice: 2 passes in total
    assert [text.get_text() for text in figure_2(table).picture.axes[0].texts] == ["switch"]
    one_stage = figure_2(table.filter(stages=1)).picture.axes[0]
    assert len(one_stage.get_lines()) == 1
    assert not one_stage.texts


def test_other_experiments_raise_an_error(table: pl.DataFrame) -> None:
    other = table.with_columns(pl.lit("streaming").alias("experiment"))
    with pytest.raises(ValueError, match="results: got runs of streaming, expected runs of warm-start"):
        figure_2(other)


def test_a_single_run_can_be_drawn(tmp_path: Path) -> None:
    draw_records([run_config(config(seed=seed), DATA) for seed in (0, 1)], tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000
