import json
from dataclasses import replace

import polars as pl
import pytest

from weightclip.lab.analysis.selection import select
from weightclip.lab.experiments.warm_start.config import Config, resolve
from weightclip.lab.experiments.warm_start.figures import draw_authors_comparison
from weightclip.lab.experiments.warm_start.metrics import SCHEMA
from weightclip.lab.experiments.warm_start.published_curves import authors_curves, authors_table, compare_with_authors
from weightclip.lab.records.columns import SCHEMA_TYPE


def chosen(criterion: str) -> dict[tuple[str, int], float | None]:
    found = select(authors_table(), criterion=criterion)  # type: ignore[arg-type]
    return {(row["method"], row["stages"]): row["kappa"] for row in found.iter_rows(named=True)}


def test_the_area_under_the_authors_curves_selects_20_for_both() -> None:
    """Their table 2 lists 10 for clipping after every step, which this criterion does not select."""
    found = chosen("auc")
    assert (found["sgd+wc", 2], found["sgd+wc@switch", 2]) == (20.0, 20.0)


def test_the_final_accuracy_selects_10_and_5() -> None:
    found = chosen("final")
    assert (found["sgd+wc", 2], found["sgd+wc@switch", 2]) == (10.0, 5.0)


def test_the_authors_numbers_match_the_paper() -> None:
    last = authors_curves().filter(pl.col("epoch") == pl.col("epochs"))
    ends = {(row["method"], row["stages"], row["kappa"]): row["test_accuracy"] for row in last.iter_rows(named=True)}
    expected = {
        ("sgd", 1, None): 0.553,
        ("sgd", 2, None): 0.539,
        ("sgd+wc", 1, 10.0): 0.628,
        ("sgd+wc", 2, 10.0): 0.604,
        ("sgd+wc@switch", 2, 20.0): 0.569,
        ("sgd+wc@switch", 2, 10.0): 0.594,
        ("sgd+wc@switch", 2, 5.0): 0.609,
    }
    assert {key: ends[key] for key in expected} == pytest.approx(expected, abs=0.0015)


def make_runs(epochs: int = 11, seeds: int = 2, **changes: object) -> pl.DataFrame:
    """Create a tidy table of runs at the paper's scale with accuracy 0.1 in the first stage and 0.9 in the second."""
    wanted = replace(resolve(Config(method="sgd+wc", variant="paper", kappa=10.0)), epochs=epochs, **changes)
    facts = {name: value for name, value in wanted.facts().items() if name not in ("settings", "seed")}
    runs = []
    for seed in range(seeds):
        rows = range(1, epochs * wanted.stages + 1)
        stage = [1 + (epoch - 1) // epochs for epoch in rows]
        accuracy = [0.1 if one == 1 else 0.9 for one in stage]
        runs.append(
            pl.DataFrame({"epoch": rows, "stage": stage, "samples": rows, "test_accuracy": accuracy}).with_columns(
                pl.lit("warm-start").alias("experiment"),
                pl.lit(seed).alias("seed"),
                *(pl.lit(value).alias(name) for name, value in facts.items()),
                *(pl.lit(value).alias(f"settings.{name}") for name, value in wanted.settings.items()),
                pl.lit(f"{seed} {facts} {dict(wanted.settings)}").alias("identity"),
                *(pl.lit("x").alias(name) for name in ("data", "data_kind", "checksum")),
                pl.lit(True).alias("official"),
                pl.lit(1.0).alias("seconds"),
                *(pl.lit(None, pl.String).alias(name) for name in ("deviations", "paper_setting")),
                pl.lit(json.dumps(SCHEMA.as_dict())).cast(SCHEMA_TYPE).alias("schema"),
            )
        )
    return pl.concat(runs)


def test_our_epochs_are_compared_with_theirs() -> None:
    first, *between, eleventh = compare_with_authors(make_runs()).to_dicts()
    assert [row["authors"] for row in between] == [None] * 9
    assert (first["epoch"], first["authors"], first["seeds"]) == (1, 0.11819, 2)
    assert first["difference"] == pytest.approx(0.1 - 0.11819)
    assert eleventh["epoch"] == 11


def test_a_second_stage_is_never_compared_with_their_first() -> None:
    assert compare_with_authors(make_runs(epochs=6))["epoch"].to_list() == [1, 2, 3, 4, 5, 6]
    whole = compare_with_authors(make_runs(epochs=300))
    assert whole.filter(pl.col("epoch") > 300)["mean"].unique().to_list() == [0.9]
    assert whole.filter(pl.col("epoch") <= 300)["mean"].unique().to_list() == [0.1]


@pytest.mark.parametrize(
    "changes",
    [
        {"variant": "default"},
        {"lr": 0.1},
        {"settings": {"momentum": 0.9}},
        {"precision": "bfloat16"},
        {"width": 16},
        {"test_images": 500},
        {"images": 20_000},
        {"batch_size": 32},
        {"stem": "cifar"},
        {"augment": True},
    ],
)
def test_runs_with_settings_different_from_theirs_are_excluded(changes: dict[str, object]) -> None:
    other = make_runs(**changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="results: got no runs of warm-start with variant paper"):
        compare_with_authors(other)
    assert len(compare_with_authors(pl.concat([make_runs(), other], how="diagonal"))) == 11


def test_a_kappa_they_did_not_try_is_excluded() -> None:
    both = pl.concat([make_runs(), make_runs(kappa=3.0)])
    assert compare_with_authors(both)["kappa"].unique().to_list() == [10.0]


def test_one_length_is_selected_and_the_others_are_reported() -> None:
    reported: list[str] = []
    found = compare_with_authors(pl.concat([make_runs(seeds=3), make_runs(epochs=2)]), reported.append)
    assert found["epoch"].to_list() == list(range(1, 12))
    assert found["seeds"].unique().to_list() == [3]
    assert len(reported) == 1


def test_their_curves_are_drawn_with_ours() -> None:
    drawing = draw_authors_comparison(make_runs())
    assert drawing.data.equals(compare_with_authors(make_runs()))
    axes = drawing.picture.axes[0]
    assert list(axes.get_lines()[0].get_xdata()) == list(range(1, 12))
    (theirs,) = axes.containers
    assert list(theirs.lines[0].get_xdata()) == [1, 11]
    assert theirs.lines[0].get_ydata()[0] == 0.11819
    assert theirs.lines[0].get_linestyle() == "None"
