from typing import Any

import polars as pl
import pytest

from lab.records.synthetic_records import make_record, tidy, with_schema
from weightclip.lab.analysis.setups import by_experiment, check_metric, columns_of, main_setup, where


def test_a_setup_is_the_configuration_without_seed_method_and_settings() -> None:
    columns = columns_of(tidy(make_record(settings={"beta1": 0.9})))
    assert set(columns.setup) == {
        *("experiment", "problem", "steps", "period", "hidden", "activation", "diagnostics"),
        "checksum",
    }
    assert set(columns.settings) == {"lr", "kappa", "decay", "sigma", "settings.beta1", "rules"}
    assert columns.setup[:2] == ("experiment", "problem")
    assert (columns.x_column, columns.schema.score) == ("task", "accuracy")


def test_columns_of_a_table_without_a_schema_raise_an_error() -> None:
    with pytest.raises(ValueError, match="table: got a table without a schema, expected"):
        columns_of(tidy(make_record()).with_columns(schema=None))


def test_experiments_that_are_not_installed_keep_their_columns() -> None:
    toy = tidy(make_record(experiment="toy")).with_columns(
        pl.lit(3).alias("width"), pl.lit(1.0).alias("return"), pl.col("task").alias("epoch")
    )
    toy = with_schema(toy, settings=("width",), x_column="epoch", score="return")
    table = pl.concat([tidy(make_record()), toy], how="diagonal_relaxed")
    seen = {}

    def record_columns(part: pl.DataFrame, columns: Any) -> pl.DataFrame:
        seen[part["experiment"][0]] = columns.x_column, columns.schema.score
        return part

    assert by_experiment(table, record_columns).height == 4
    assert seen == {"streaming": ("task", "accuracy"), "toy": ("epoch", "return")}


def test_a_metric_is_a_measured_column() -> None:
    table = tidy(make_record(columns={"loss": [1.0, 2.0]}))
    columns = columns_of(table)
    assert check_metric(table, None, columns) == "accuracy"
    assert check_metric(table, "loss", columns) == "loss"
    with pytest.raises(ValueError, match=r"metric: got 'los', expected one of accuracy, loss; did you mean 'loss'"):
        check_metric(table, "los", columns)


@pytest.mark.parametrize(
    ("chosen", "seeds"),
    [
        ({"steps": "50k"}, [1]),
        ({"steps": "50_000"}, [1]),
        ({"lr": "0.001,5"}, [0, 1]),
        ({"lr": "1e-2"}, [2]),
        ({"hidden": "300,150"}, [0, 2]),
        ({"hidden": "50"}, [1]),
        ({"method": "sgd,adam"}, [0, 1, 2]),
        ({"method": "adam", "seed": "2"}, [2]),
        ({"kappa": "none"}, [0, 1]),
        ({"kappa": "inf"}, [2]),
        ({"diagnostics": "no"}, [1]),
        ({"official": "true"}, [0, 2]),
        ({"decay": "none"}, [0, 1, 2]),
        ({}, [0, 1, 2]),
    ],
)
def test_runs_are_selected_by_text_values(chosen: dict[str, str], seeds: list[int]) -> None:
    table = tidy(
        make_record(),
        make_record(seed=1, steps=50_000, hidden=[50], diagnostics=False, official=False),
        make_record(seed=2, method="adam", lr=0.01, kappa=float("inf")),
    )
    assert where(table, chosen)["seed"].unique(maintain_order=True).to_list() == seeds


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"step": "1"}, "where: got 'step', expected one of .*; did you mean 'steps'"),
        ({"accuracy": "1"}, "where: got 'accuracy', expected one of"),
        ({"steps": "many"}, "where: steps: got 'many', expected a whole number such as 2500, 50k or 1M"),
        ({"lr": "x"}, "where: lr: got 'x', expected a number"),
        ({"diagnostics": "maybe"}, "where: diagnostics: got 'maybe', expected true or false"),
        ({"steps": "1M"}, "where: got steps=1M, expected one of 20, 30"),
        ({"decay": "1"}, "where: got decay=1, expected one of none"),
        ({"lr": "1"}, r"where: got lr=1, expected one of 0\.001"),
    ],
)
def test_invalid_selections_are_reported(chosen: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        where(tidy(make_record(), make_record((0.1, 0.2, 0.3))), chosen)


def test_a_stray_longer_run_does_not_become_the_main_setup() -> None:
    lines: list[str] = []
    table = tidy(make_record(seed=0), make_record(seed=1), make_record((0.1, 0.2, 0.3), seed=2))
    assert set(main_setup(table, lines.append)["seed"]) == {0, 1}
    assert lines == [
        "input-permuted-mnist: using steps=20 (2 runs), skipping steps=30 (1 run); select another with --where steps=30"
    ]


def test_the_hint_contains_the_differing_fields() -> None:
    lines: list[str] = []
    table = tidy(*(make_record(seed=seed) for seed in range(3)), make_record((0.1, 0.2, 0.3)), make_record(hidden=[50]))
    main_setup(table, lines.append)
    (line,) = lines
    hint = line.rpartition("--where ")[2]
    taken, _, skipped = line.partition(", skipping ")
    assert hint in skipped.partition(";")[0]
    assert hint not in taken


def test_the_hint_names_the_first_of_several_differences() -> None:
    lines: list[str] = []
    main_setup(tidy(make_record(), make_record(seed=1), make_record(hidden=[50], dtype="float64")), lines.append)
    assert lines[0].endswith("select another with --where hidden=50")


def test_skipped_setups_are_reported_by_their_differences() -> None:
    lines: list[str] = []
    most = [make_record(seed=seed) for seed in range(3)]
    main_setup(tidy(*most, make_record(hidden=[50]), make_record(dtype="float64")), lines.append)
    assert "skipping hidden=50 (1 run); dtype=float64 (1 run); " in lines[0]


def test_the_main_setup_has_the_most_methods_rather_than_the_most_runs() -> None:
    search = [make_record((0.1, 0.2, 0.3), lr=10.0**-number) for number in range(5)]
    compared = [make_record(method=method) for method in ("sgd", "adam", "sgd+wc")]
    table = tidy(*search, *compared)
    assert set(main_setup(table, lambda line: None)["steps"]) == {20}


def test_the_longest_of_equally_large_setups_is_the_main_one() -> None:
    table = tidy(make_record(seed=0), make_record((0.1, 0.2, 0.3), seed=1))
    assert set(main_setup(table, lambda line: None)["seed"]) == {1}


def test_setups_along_an_axis_are_grouped() -> None:
    lines: list[str] = []
    table = tidy(
        *(make_record(period=period, steps=20, seed=seed) for period in (5, 10) for seed in (0, 1)),
        *(make_record(period=5, steps=20, seed=seed, hidden=[50]) for seed in (0, 1, 2)),
    )
    chosen = main_setup(with_schema(table, axes=("method", "period")), lines.append)
    assert chosen.select("period", "hidden").unique(maintain_order=True).rows() == [(5, "300,150"), (10, "300,150")]
    assert lines == [
        "input-permuted-mnist: using hidden=300,150 (4 runs), skipping hidden=50 (3 runs); "
        "select another with --where hidden=50"
    ]


def test_the_largest_of_equally_long_setups_is_the_main_one() -> None:
    lines: list[str] = []
    table = tidy(make_record(hidden=[50]), make_record(), make_record(seed=1), make_record(seed=2, problem="other"))
    chosen = main_setup(table, lines.append)
    assert chosen.select("problem", "hidden", "seed").unique(maintain_order=True).rows() == [
        ("input-permuted-mnist", "300,150", 0),
        ("input-permuted-mnist", "300,150", 1),
        ("other", "300,150", 2),
    ]
    assert len(lines) == 1
    assert "--where hidden=50" in lines[0]


def test_different_data_is_a_different_setup() -> None:
    table = tidy(make_record(), make_record(seed=1), make_record(seed=2, checksum="other"))
    assert set(main_setup(table, lambda line: None)["seed"]) == {0, 1}


def test_a_single_setup_is_not_reported() -> None:
    lines: list[str] = []
    table = tidy(make_record(), make_record(seed=1), make_record(method="adam", lr=1.0))
    assert main_setup(table, lines.append).equals(table)
    assert lines == []


def test_the_order_of_columns_does_not_matter() -> None:
    table = tidy(make_record(), make_record(seed=1, settings={"beta1": 0.9}))
    assert "settings.beta1" in columns_of(table).settings
    assert columns_of(table.select(sorted(table.columns))).settings[-1] == "sigma"
