from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from synthetic_runs import EMNIST, IMAGENET, MNIST, runs, some_value
from weightclip.lab.experiments.streaming.config import PAPER_METHODS
from weightclip.lab.experiments.streaming.figures import (
    PANELS,
    draw_run,
    draw_sensitivity,
    figure_3,
    figure_4,
    figure_10,
    figure_plasticity,
)
from weightclip.lab.plotting.style import style_of

PAIRS = "a point is the mean of two tasks"


def table(seeds: int, tasks: int = 5, columns: tuple[str, ...] = PANELS) -> pl.DataFrame:
    random = np.random.default_rng(seeds)
    rows = [
        {"seed": s, "task": t, **dict.fromkeys(columns, random.uniform())} for s in range(seeds) for t in range(tasks)
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Record the points of each recorded line and the edges of each shaded area."""
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


def test_four_panels_of_means_over_seeds_with_their_standard_errors(recorded, tmp_path: Path) -> None:
    one = table(4)
    draw_run({"adam+wc": one}, tmp_path / "run.png")
    assert len(recorded["lines"]) == len(recorded["shades"]) == 4
    by_task = one["accuracy"].to_numpy().reshape(4, 5)
    mean, error = by_task.mean(0), by_task.std(0, ddof=1) / 2
    np.testing.assert_allclose(recorded["lines"][0][1], mean)
    np.testing.assert_allclose(recorded["shades"][0][0], mean - error)
    np.testing.assert_allclose(recorded["shades"][0][1], mean + error)


def test_one_seed_has_no_shaded_area(recorded, tmp_path: Path) -> None:
    draw_run({"adam": table(1), "adam+wc": table(1)}, tmp_path / "run.png")
    assert len(recorded["lines"]) == 8
    assert not recorded["shades"]


def test_the_png_is_written_atomically(tmp_path: Path) -> None:
    draw_run({"adam": table(3), "adam+wc": table(3)}, tmp_path / "new" / "run.png", title="a title")
    height, width, _ = imread(tmp_path / "new" / "run.png").shape
    assert width > height  # four panels in two rows, so that text is legible at page width
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.png"]


def test_without_diagnostics_there_are_two_panels(recorded, tmp_path: Path) -> None:
    draw_run({"adam": table(1, columns=("accuracy", "loss"))}, tmp_path / "run.png")
    assert len(recorded["lines"]) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_run_and_a_single_task_are_drawn(tmp_path: Path, value: float) -> None:
    broken = table(2, tasks=1).with_columns(loss=pl.lit(value))
    draw_run({"sgd": broken, "mine+own": table(1, tasks=1)}, tmp_path / "run.png")
    assert (tmp_path / "run.png").exists()


def lines(axes: Axes) -> dict[str, Line2D]:
    """Label -> line, without error bar caps."""
    return {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}


def shades(axes: Axes) -> list[PolyCollection]:
    return [one for one in axes.collections if isinstance(one, PolyCollection)]


def legend_title(picture: Figure) -> str:
    return picture.legends[0].get_title().get_text()


def test_figure_3_has_a_panel_per_problem_and_marks_stand_in_data() -> None:
    mixed = pl.concat([runs(["sgd", "adam"], problem=EMNIST, official=False), runs(["sgd", "adam"])])
    picture = figure_3(mixed).picture
    titles = [axes.get_title() for axes in picture.axes]
    assert titles == ["Input-permuted MNIST", "Label-permuted EMNIST\n(stand-in data)"]
    assert all(set(lines(axes)) == {"SGD", "Adam"} for axes in picture.axes)


def test_figure_3_shows_pairs_of_tasks_and_the_standard_error_over_seeds() -> None:
    drawing = figure_3(runs(["adam+wc"], seeds=4, tasks=6))
    measured = [[some_value("accuracy", "adam+wc", seed, task) for task in range(1, 7)] for seed in range(4)]
    pairs = np.array(measured).reshape(4, 3, 2).mean(2)
    mean, error = pairs.mean(0), pairs.std(0, ddof=1) / 2
    axes = drawing.picture.axes[0]
    np.testing.assert_allclose(lines(axes)["Adam + WC"].get_xydata(), np.stack([[2, 4, 6], mean], axis=1))
    corners = shades(axes)[0].get_paths()[0].vertices
    for task, low, high in zip((2, 4, 6), mean - error, mean + error):
        at_task = corners[corners[:, 0] == task, 1]
        np.testing.assert_allclose([at_task.min(), at_task.max()], [low, high])
    assert legend_title(drawing.picture) == f"mean of 4 seeds, standard error shaded; {PAIRS}"


def test_the_csv_of_a_figure_contains_the_drawn_data() -> None:
    drawing = figure_10(pl.concat([runs(PAPER_METHODS, problem=problem) for problem in (EMNIST, IMAGENET)]))
    assert drawing.data.columns == ["problem", "method", "metric", "task", "mean", "low", "high", "seeds", "cut_short"]
    panels = [(p, m) for p in (EMNIST, IMAGENET) for m in ("loss", "plasticity", "gradient_l2", "weight_l2")]
    recorded = 0
    for axes, (problem, metric) in zip(drawing.picture.axes, panels, strict=True):
        for method in PAPER_METHODS:
            reported = drawing.data.filter(problem=problem, metric=metric, method=method)
            np.testing.assert_array_equal(
                lines(axes)[style_of(method).label].get_xydata(), reported.select("task", "mean")
            )
            recorded += len(reported)
    assert recorded == len(drawing.data)
    assert (drawing.data["seeds"] == 2).all()


def test_every_method_has_a_style_and_clipping_is_drawn_on_top() -> None:
    axes = figure_3(runs(PAPER_METHODS)).picture.axes[0]
    for method in PAPER_METHODS:
        line, style = lines(axes)[style_of(method).label], style_of(method)
        assert (line.get_color(), line.get_linestyle()) == (style.color, style.line)
    highest = max(line.get_zorder() for line in axes.get_lines())
    on_top = [label for label, line in lines(axes).items() if line.get_zorder() == highest]
    assert on_top == ["SGD + WC", "Adam + WC"]
    assert max(shade.get_zorder() for shade in shades(axes)) < min(line.get_zorder() for line in axes.get_lines())


def test_one_seed_is_a_line_without_a_band_and_is_reported() -> None:
    picture = figure_3(runs(["adam"], seeds=1)).picture
    assert not shades(picture.axes[0])
    assert legend_title(picture) == f"one seed; {PAIRS}"
    several = pl.concat([runs(["adam"], seeds=1), runs(["sgd"], seeds=3)])
    assert legend_title(figure_3(several).picture) == f"mean of 1 to 3 seeds, standard error shaded; {PAIRS}"


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_values_that_are_not_finite_leave_a_gap_and_are_reported(broken: float) -> None:
    def diverged(metric: str, method: str, seed: int, task: int) -> float:
        return broken if method == "sgd" and task > 4 else some_value(metric, method, seed, task)

    drawing = figure_4(runs(["sgd", "adam"], value=diverged))
    for axes in drawing.picture.axes:
        assert np.isnan(lines(axes)["SGD"].get_ydata()).tolist() == [False, False, True]
        assert np.isfinite(axes.get_ylim()).all()
    assert f"{MNIST}: the line of sgd has gaps where values are not finite" in drawing.notes


def test_a_kappa_that_differs_between_panels_is_in_the_caption() -> None:
    same = {problem: runs(["adam+wc"], problem=problem, kappa=1.0) for problem in (MNIST, EMNIST)}
    picture = figure_3(pl.concat(same.values())).picture
    assert texts(picture) == ["Adam + WC, κ = 1"]
    other = runs(["adam+wc"], problem=IMAGENET, kappa=3.0)
    picture = figure_3(pl.concat([*same.values(), other])).picture
    assert texts(picture) == ["Adam + WC"]
    assert legend_title(picture).endswith("\nAdam + WC: κ = 1 (MNIST and EMNIST), κ = 3 (mini-ImageNet)")


@pytest.mark.parametrize(
    ("rule", "label"),
    [("graded(0.5, 8, output=2)", "κ = graded(0.5, 8, output=2)"), ("hidden=inf,output=1", "κ: hidden ∞, output 1")],
)
def test_ranges_by_layer_and_graded_ranges_are_in_the_legend(rule: str, label: str) -> None:
    picture = figure_3(runs(["sgd+wc"], kappa_rule=rule)).picture
    assert texts(picture) == [f"SGD + WC, {label}"]


def test_deviations_of_some_panels_name_the_panels() -> None:
    short = runs(["sgd"], problem=EMNIST).with_columns(deviations=pl.lit("steps 6,000"))
    assert legend_title(figure_3(short).picture).endswith("\nnot the paper's setting: steps 6,000")
    both = legend_title(figure_3(pl.concat([runs(["sgd"]), short])).picture)
    assert both.endswith("\nnot the paper's setting: steps 6,000 (EMNIST)")


def test_the_picture_of_a_run_shows_kappa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[str] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (labels.extend(map(str, texts(self))), save(self, *a, **k))
    )
    draw_run({"adam": table(2), "adam+wc": table(2)}, tmp_path / "run.png", kappas={"adam+wc": 1.0})
    assert labels == ["Adam", "Adam + WC, κ = 1"]


def texts(picture: Figure) -> list[str]:
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_loss_of_plasticity_has_three_metrics() -> None:
    drawing = figure_plasticity(runs(["adam", "adam+wc"]))
    assert drawing.data["metric"].unique(maintain_order=True).to_list() == ["accuracy", "plasticity", "weight_l2"]
    assert len(drawing.picture.axes) == 3
    assert not drawing.notes  # other methods are not expected


def test_methods_without_results_are_reported() -> None:
    drawing = figure_3(runs([method for method in PAPER_METHODS if method not in ("sgd+sp", "madam")]))
    assert drawing.notes == (f"{MNIST}: no results for sgd+sp, madam",)
    assert not figure_3(runs(PAPER_METHODS)).notes


def test_user_defined_methods_are_drawn_after_the_papers() -> None:
    drawing = figure_3(runs(["adam+mine", *PAPER_METHODS]))
    assert list(lines(drawing.picture.axes[0]))[-1] == "Adam + mine"


def test_the_best_setting_is_drawn_and_reported() -> None:
    def rising(metric: str, method: str, seed: int, task: int) -> float:
        return 0.1 * task

    def falling(metric: str, method: str, seed: int, task: int) -> float:
        return 0.75 - 0.1 * task

    both = pl.concat([runs(["adam+wc"], kappa=1.0, value=rising), runs(["adam+wc"], kappa=2.0, value=falling)])
    for criterion, kappa, last in (("auc", 2, 0.2), ("final", 1, 0.55)):
        drawing = figure_3(both.with_columns(accuracy=pl.col("accuracy") + 0.1 * (pl.col("kappa") == 2)), criterion)
        reported = f"{MNIST}: best of several settings by {criterion}: adam+wc (lr 0.001, kappa {kappa})"
        assert drawing.notes[0] == reported
        (line,) = lines(drawing.picture.axes[0]).values()
        assert line.get_label() == f"Adam + WC, κ = {kappa}"
        assert line.get_ydata()[-1] == pytest.approx(last + 0.1 * (kappa == 2))


def test_runs_of_another_setup_are_skipped_and_reported() -> None:
    drawing = figure_3(pl.concat([runs(PAPER_METHODS), runs(PAPER_METHODS, tasks=2)]))
    assert drawing.data["task"].max() == 6
    (note,) = drawing.notes
    assert "steps=6000" in note
    assert "--where steps=2000" in note


def test_an_axis_is_logarithmic_only_if_one_method_hides_another() -> None:
    def plastic(metric: str, method: str, seed: int, task: int) -> float:
        return 1.0 + task + 50.0 * (method == "madam" and metric == "plasticity")

    axes = figure_4(runs(["adam", "madam"], value=plastic)).picture.axes
    assert [one.get_yscale() for one in axes] == ["linear", "log", "linear", "linear"]


@pytest.mark.parametrize(("figure", "expected"), [(figure_4, MNIST), (figure_10, f"{EMNIST} or {IMAGENET}")])
def test_results_of_other_problems_raise_an_error_with_their_name(figure, expected: str) -> None:
    with pytest.raises(ValueError, match=f"results: got stationary-mnist, expected runs of {expected}"):
        figure(runs(["sgd"], problem="stationary-mnist"))


def test_a_problem_missing_from_the_paper_has_a_panel_if_it_is_the_only_one() -> None:
    own = runs(["sgd"], problem="stationary-mnist")
    assert [axes.get_title() for axes in figure_3(own).picture.axes] == ["stationary-mnist"]
    assert len(figure_3(pl.concat([own, runs(["sgd"])])).picture.axes) == 1


@pytest.mark.parametrize("figure", [figure_3, figure_4, figure_10, draw_sensitivity])
def test_results_of_another_experiment_raise_an_error(figure) -> None:
    with pytest.raises(ValueError, match="results: got runs of policy, expected runs of streaming"):
        figure(runs(["adam"]).with_columns(experiment=pl.lit("policy")))


def test_diagnostics_are_drawn_from_runs_with_diagnostics() -> None:
    without = runs(PAPER_METHODS, tasks=8, diagnostics=False).with_columns(plasticity=pl.lit(None, pl.Float64))
    drawing = figure_4(pl.concat([without, runs(PAPER_METHODS, diagnostics=True)]))
    assert drawing.data["task"].max() == 6
    for bare in (without, without.drop("plasticity")):
        with pytest.raises(ValueError, match="results: got no runs with diagnostics, expected at least one"):
            figure_4(bare)


def grid() -> pl.DataFrame:
    """Create runs with accuracies 0.1 kappa + 0.01 (lr is 0.01) for adam+wc and 0.3 + decay for adam+l2init."""
    return pl.concat(
        [
            *(
                runs(["adam+wc"], kappa=kappa, lr=lr, value=lambda *_, k=kappa, a=lr: 0.1 * k + (a == 0.01) * 0.01)
                for kappa in (1.0, 2.0, 3.0)
                for lr in (0.01, 0.001)
            ),
            *(runs(["adam+l2init"], decay=decay, value=lambda *_, d=decay: 0.3 + d) for decay in (0.0, 0.1)),
        ]
    )


def test_sensitivity_is_the_best_score_at_each_value() -> None:
    drawing = draw_sensitivity(grid())
    lr, decay, kappa = drawing.picture.axes
    np.testing.assert_allclose(lines(lr)["Adam + WC"].get_xydata(), [[0.001, 0.3], [0.01, 0.31]])
    np.testing.assert_allclose(lines(kappa)["Adam + WC"].get_xydata(), [[1, 0.11], [2, 0.21], [3, 0.31]])
    np.testing.assert_allclose(lines(decay)["Adam + L2 Init"].get_xydata(), [[0, 0.3], [0.1, 0.4]])
    assert set(lines(lr)) == {"Adam + WC"}  # l2init has one step size: no line
    assert (lr.get_xscale(), decay.get_xscale(), kappa.get_xscale()) == ("symlog", "symlog", "linear")
    assert [label.get_text() for label in decay.get_xticklabels()] == ["0", "0.1"]
    assert drawing.data.columns == [
        *("problem", "method", "metric", "parameter", "value", "mean", "low", "high", "seeds")
    ]


def test_sensitivity_uses_the_requested_criterion() -> None:
    late = [runs(["sgd"], lr=lr, value=lambda *a: 0.1 * a[-1]) for lr in (0.1, 0.01)]
    drawing = draw_sensitivity(pl.concat(late), "final")
    np.testing.assert_allclose(lines(drawing.picture.axes[0])["SGD"].get_ydata(), [0.6, 0.6])
    assert legend_title(drawing.picture).replace("\n", " ") == (
        "Accuracy, mean over the last tenth, at the best other settings; mean of 2 seeds, standard error as bars"
    )
    assert "Accuracy, area under the curve, " in legend_title(draw_sensitivity(pl.concat(late)).picture)


def test_an_infinite_kappa_is_skipped() -> None:
    drawing = draw_sensitivity(pl.concat([grid(), runs(["adam+wc"], kappa=float("inf"))]))
    assert drawing.data.filter(parameter="kappa")["value"].to_list() == [1, 2, 3]


def test_sensitivity_requires_several_values() -> None:
    with pytest.raises(
        ValueError, match="results: got one value of each setting, expected several of lr, decay or kappa"
    ):
        draw_sensitivity(runs(["sgd", "adam"]))
