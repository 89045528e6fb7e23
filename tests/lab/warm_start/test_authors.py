import polars as pl
import pytest
from photographs import config, photographs

from weightclip.lab.results.selection import select
from weightclip.lab.warm_start.authors import authors_curves, authors_table, beside_authors
from weightclip.lab.warm_start.experiment import run_config


def chosen(criterion: str) -> dict[tuple[str, int], float | None]:
    found = select(authors_table(), criterion=criterion, last=1)  # type: ignore[arg-type]
    return {(row["method"], row["stages"]): row["kappa"] for row in found.iter_rows(named=True)}


def test_the_area_under_the_authors_curves_chooses_20_for_both() -> None:
    """Their table 2 has 10 for clipping after every step, which this criterion does not give."""
    found = chosen("auc")
    assert (found["sgd+wc", 2], found["sgd+wc@switch", 2]) == (20.0, 20.0)


def test_the_final_accuracy_chooses_10_and_5() -> None:
    found = chosen("final")
    assert (found["sgd+wc", 2], found["sgd+wc@switch", 2]) == (10.0, 5.0)


def test_the_authors_numbers_are_those_of_the_paper() -> None:
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


def test_our_epochs_stand_beside_theirs() -> None:
    record = run_config(config("sgd+wc", kappa=10.0, variant="paper"), photographs())
    facts = {**config("sgd+wc").facts(), "images": 50_000, "batch": 125, "width": 64, "variant": "paper"}
    made = record.table.drop("seed").with_columns(
        pl.lit("warm-start").alias("experiment"),
        pl.lit("warm-start").alias("problem"),
        pl.lit("sgd+wc").alias("method"),
        pl.lit(0).alias("seed"),
        *(pl.lit(facts[name]).alias(name) for name in ("variant", "images", "batch", "width", "stem", "augment")),
        pl.lit(2).alias("stages"),
        pl.lit(10.0).alias("kappa"),
        pl.lit(0.001).alias("lr"),
        *(pl.lit("x").alias(name) for name in ("data", "data_kind", "checksum", "identity")),
        pl.lit(True).alias("official"),
        pl.lit(1.0).alias("seconds"),
    )
    (row,) = beside_authors(made).to_dicts()
    assert (row["epoch"], row["authors"]) == (1, 0.11819)
    assert row["difference"] == pytest.approx(record.table["test_accuracy"][0] - 0.11819)
    with pytest.raises(ValueError, match="results: got no runs of warm-start with variant paper"):
        beside_authors(made.with_columns(pl.lit("default").alias("variant")))
