import polars as pl
import pytest

from synthetic_runs import MNIST, runs
from weightclip.lab.experiments.streaming.figures import draw_authors_comparison
from weightclip.lab.experiments.streaming.published_curves import authors_curves, compare_with_authors


def make_runs(method: str = "adam+wc", **config: object) -> pl.DataFrame:
    """Create runs with the authors' settings."""
    kappa = 1.0 if method == "adam+wc" else None
    settings = {"lr": 1e-4, "kappa": kappa, "period": 50_000, "tasks": 12, **config}
    table = runs([method], **settings)  # type: ignore[arg-type]
    return table.with_columns(samples=pl.col("task") * 50_000)


def test_the_authors_logs_contain_thirty_seeds_of_both_methods() -> None:
    curves = authors_curves()
    assert curves["seeds"].unique().to_list() == [30]
    tasks = [*range(1, 12), *range(21, 92, 10)]
    for method, kappa in (("adam", None), ("adam+wc", 1.0)):
        accuracy = curves.filter(method=method, metric="accuracy")
        assert accuracy["task"].to_list() == tasks
        assert accuracy["kappa"].unique().to_list() == [kappa]
    first = curves.filter(method="adam", metric="accuracy", task=1).row(0, named=True)
    assert (first["authors"], first["authors_error"]) == (0.90538, 0.00021)


def test_our_tasks_are_compared_with_theirs() -> None:
    found = compare_with_authors(pl.concat([make_runs("adam"), make_runs()])).filter(metric="weight_l2")
    for (method,), part in found.group_by("method"):
        assert part["task"].to_list() == list(range(1, 13))
        assert part["authors"].null_count() == 1, method  # task 12 is missing in their logs
    row = found.filter(method="adam+wc", task=2).row(0, named=True)
    assert row["authors"] == 14.3824
    assert row["difference"] == pytest.approx(row["mean"] - 14.3824)


def test_runs_of_different_lengths_are_averaged_per_task() -> None:
    longer = make_runs(tasks=14).with_columns(pl.col("seed") + 2, identity=pl.col("identity") + "x")
    found = compare_with_authors(pl.concat([make_runs(), longer])).filter(metric="accuracy")
    assert found["seeds"].to_list() == [4] * 12 + [2] * 2


@pytest.mark.parametrize("changes", [{"period": 5000}, {"lr": 1e-3}, {"kappa": 2.0}, {"official": False}])
def test_runs_with_settings_different_from_theirs_are_excluded(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"results: got no runs of {MNIST} with period 50,000"):
        compare_with_authors(make_runs(**changes))


def test_their_points_are_drawn_on_our_lines() -> None:
    drawing = draw_authors_comparison(pl.concat([make_runs("adam"), make_runs()]))
    accuracy, *_ = drawing.picture.axes
    assert [axes.get_title() for axes in drawing.picture.axes] == ["Accuracy", "Loss", "Weight l2 norm"]
    theirs = accuracy.containers[0].lines[0]
    assert list(theirs.get_xdata()) == list(range(1, 12))
    (legend,) = drawing.picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Adam", "Adam + WC, κ = 1"]
    assert "the authors' logs, 30 seeds" in legend.get_title().get_text()
    assert "difference" in drawing.data.columns


def test_the_caption_says_to_which_task_there_are_more_seeds() -> None:
    longer = pl.concat([make_runs("adam", tasks=14), make_runs(tasks=14)])
    longer = longer.with_columns(pl.col("seed") + 2, identity=pl.col("identity") + "x")
    for table, expected in (
        (
            pl.concat([make_runs("adam"), make_runs(), longer]),
            "lines: mean of 4 seeds to task 12, then 2 seeds, standard error",
        ),
        (longer, "lines: mean of 2 seeds, standard error"),
    ):
        (legend,) = draw_authors_comparison(table).picture.legends
        assert expected in legend.get_title().get_text()
