import polars as pl
import pytest

from synthetic_runs import EMNIST, runs
from weightclip.lab.experiments.streaming.figures import GRADED, ONE, figure_ranges

RULES = ("hidden=1,output=0.5", "hidden=1,output=2", "hidden=inf,output=0.5", "output=2", "graded(0.5, 8, output=2)")


def study() -> pl.DataFrame:
    """Two single kappas, four settings by layer and a graded one, with two seeds each."""
    tables = [runs(["sgd+wc"], problem=EMNIST, kappa=kappa, kappa_rule=None) for kappa in (1.0, 2.0)]
    tables += [runs(["sgd+wc"], problem=EMNIST, kappa=None, kappa_rule=rule) for rule in RULES]
    return pl.concat(tables, how="diagonal_relaxed")


def test_settings_are_points_on_the_lines_of_their_hidden_layers() -> None:
    drawing = figure_ranges(study())
    lines = {line: part["output"].to_list() for (line,), part in drawing.data.group_by("line", maintain_order=True)}
    assert lines == {
        GRADED: [None],
        "hidden not clipped": [0.5, 2.0],
        "hidden κ = 1": [0.5, 2.0],
        ONE: [1.0, 2.0],
    }
    assert not drawing.notes
    assert (drawing.data["seeds"] == 2).all()
    (axes,) = drawing.picture.axes
    assert {line.get_label() for line in axes.get_lines()} == {*lines}


def test_a_graded_rule_is_a_horizontal_line_at_its_score() -> None:
    drawing = figure_ranges(study())
    (level,) = (line for line in drawing.picture.axes[0].get_lines() if line.get_label() == GRADED)
    score = drawing.data.filter(line=GRADED)["mean"][0]
    assert set(level.get_ydata()) == {score}


def test_the_default_graded_rule_is_drawn_even_if_another_one_is_better() -> None:
    better = runs(["sgd+wc"], problem=EMNIST, kappa=None, kappa_rule="graded(0.5, 8, output=1)", value=lambda *_: 1.0)
    drawing = figure_ranges(pl.concat([study(), better], how="diagonal_relaxed"))
    assert drawing.data.filter(line=GRADED)["rule"].to_list() == ["graded(0.5, 8, output=2)"]
    assert drawing.data["mean"].max() < 1.0
    assert drawing.notes == ("graded ranges that are not drawn: graded(0.5, 8, output=1)",)


def test_runs_with_only_one_kappa_raise_an_error() -> None:
    with pytest.raises(ValueError, match="expected runs with ranges such as hidden=5,output=1"):
        figure_ranges(runs(["sgd+wc"], kappa=1.0, kappa_rule=None))
