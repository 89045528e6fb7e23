import math

import polars as pl
import pytest

from lab.records.synthetic_records import make_record, tidy
from weightclip.lab.analysis.selection import best_runs, score_runs, score_settings, select


def test_the_area_under_the_curve_is_the_mean_over_samples() -> None:
    short_last = make_record((0.2, 0.6, 1.0), steps=25)
    assert score_runs(tidy(short_last))["score"].to_list() == pytest.approx([(0.2 * 10 + 0.6 * 10 + 1.0 * 5) / 25])


def test_without_samples_all_rows_have_equal_weight() -> None:
    table = tidy(make_record((0.2, 0.6, 1.0), steps=25)).drop("samples")
    assert score_runs(table)["score"].to_list() == pytest.approx([0.6])


@pytest.mark.parametrize(("last", "score"), [(0.1, 1.9), (0.25, 1.7), (1, 1.9), (3, 1.8), (0.001, 1.9)])
def test_the_final_score_is_the_mean_over_the_last_rows(last: float, score: float) -> None:
    table = tidy(make_record([number / 10 for number in range(20)])).sample(fraction=1.0, shuffle=True, seed=0)
    found = score_runs(table, criterion="final", last=last)
    expected = score if last != 0.1 else (1.8 + 1.9) / 2
    assert found["score"].to_list() == pytest.approx([expected])
    assert found["rows"].to_list() == [20]


def test_a_run_keeps_its_configuration_and_identity() -> None:
    record = make_record(lr=0.1, seed=3)
    (row,) = score_runs(tidy(record)).to_dicts()
    assert (row["lr"], row["seed"], row["identity"], row["method"]) == (0.1, 3, record.identity, "sgd")


def test_settings_are_averaged_over_seeds_with_their_standard_error() -> None:
    table = tidy(*(make_record((value,), seed=seed) for seed, value in enumerate((0.1, 0.2, 0.6))))
    (row,) = score_settings(table).to_dicts()
    assert row["score"] == pytest.approx(0.3)
    assert row["error"] == pytest.approx(math.sqrt((0.04 + 0.01 + 0.09) / 2 / 3))
    assert row["seeds"] == 3


def test_the_standard_error_of_one_run_is_unknown() -> None:
    assert score_settings(tidy(make_record()))["error"].to_list() == [None]


def test_runs_of_different_setups_or_data_are_never_averaged() -> None:
    table = tidy(
        make_record(seed=0),
        make_record(seed=1, hidden=[50]),
        make_record(seed=2, checksum="b"),
        make_record(seed=3, lr=1),
    )
    assert score_settings(table)["seeds"].to_list() == [1, 1, 1, 1]


def test_methods_of_the_same_name_with_different_rules_are_not_averaged() -> None:
    table = tidy(make_record(seed=0, rules="a"), make_record(seed=1, rules="b"))
    assert score_settings(table)["seeds"].to_list() == [1, 1]


def grid(**accuracies: float) -> pl.DataFrame:
    """Two seeds of sgd with step size 10**-i for each accuracy."""
    return tidy(
        *(
            make_record((value,), lr=10.0**-index, seed=seed)
            for index, value in enumerate(accuracies.values())
            for seed in (0, 1)
        )
    )


def test_the_best_setting_has_the_largest_area() -> None:
    (row,) = select(grid(a=0.2, b=0.7, c=0.5)).to_dicts()
    assert (row["lr"], row["score"], row["error"], row["seeds"]) == (0.1, 0.7, 0.0, 2)
    assert (row["compared"], row["incomplete"], row["ties"], row["edges"]) == (3, 0, 0, "")


def test_the_two_criteria_may_disagree() -> None:
    table = tidy(make_record((0.9, 0.5), lr=0.1), make_record((0.1, 0.6), lr=0.01))
    assert select(table)["lr"].to_list() == [0.1]
    assert select(table, criterion="final")["lr"].to_list() == [0.01]


def test_the_smallest_loss_is_best() -> None:
    table = tidy(make_record(lr=0.1, columns={"loss": [2.0, 2.0]}), make_record(lr=0.01, columns={"loss": [1.0, 1.0]}))
    assert select(table, "loss")["lr"].to_list() == [0.01]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_nan_is_worst(metric: str) -> None:
    diverged = make_record((math.nan, 0.9), lr=0.1, columns={"loss": [0.1, math.nan]})
    table = tidy(diverged, make_record((0.1, 0.1), lr=0.01, columns={"loss": [9.0, 9.0]}))
    assert select(table, metric)["lr"].to_list() == [0.01]


def test_a_setting_with_one_diverged_seed_is_worst() -> None:
    table = tidy(
        *(make_record((value,), lr=0.1, seed=seed) for seed, value in enumerate((0.9, math.nan))),
        *(make_record((0.1,), lr=0.01, seed=seed) for seed in (0, 1)),
    )
    assert select(table)["lr"].to_list() == [0.01]


def test_one_setting_is_reported_even_if_all_diverged() -> None:
    (row,) = select(tidy(make_record((math.nan,), lr=0.1), make_record((math.nan,), lr=0.01))).to_dicts()
    assert (row["lr"], row["ties"], math.isnan(row["score"])) == (0.01, 1, True)


def test_missing_measurements_are_nan() -> None:
    table = tidy(make_record(lr=0.1), make_record(lr=0.01, columns={"loss": [9.0, 9.0]}))
    assert select(table, "loss")["lr"].to_list() == [0.01]


def test_settings_with_fewer_seeds_are_not_compared() -> None:
    table = pl.concat([grid(a=0.2, b=0.3), tidy(make_record((0.9,), lr=7.0))])
    (row,) = select(table).to_dicts()
    assert (row["lr"], row["compared"], row["incomplete"]) == (0.1, 2, 1)


def test_additional_seeds_of_one_setting_do_not_make_it_win() -> None:
    further = [make_record((0.9,), lr=1.0, seed=seed) for seed in range(2, 9)]
    (row,) = select(pl.concat([grid(a=0.2, b=0.7, c=0.5), tidy(*further)])).to_dicts()
    assert (row["lr"], row["score"], row["seeds"]) == (0.1, 0.7, 2)
    assert (row["compared"], row["incomplete"], row["shared"]) == (3, 0, 2)


def test_the_score_of_the_chosen_setting_is_over_all_of_its_seeds() -> None:
    further = tidy(*(make_record((value,), lr=0.1, seed=seed) for seed, value in ((2, 0.4), (3, 0.6))))
    (row,) = select(pl.concat([grid(a=0.2, b=0.7, c=0.5), further])).to_dicts()
    assert (row["lr"], row["score"], row["seeds"], row["shared"]) == (0.1, pytest.approx(0.6), 4, 2)
    assert row["error"] == pytest.approx(math.sqrt((0.01 + 0.01 + 0.04) / 3 / 4))


def test_ties_are_determined_on_the_compared_seeds() -> None:
    (row,) = select(pl.concat([grid(a=0.5, b=0.5), tidy(make_record((0.9,), lr=1.0, seed=2))])).to_dicts()
    assert (row["lr"], row["ties"], row["shared"]) == (0.1, 1, 2)


@pytest.mark.parametrize(
    ("seeds", "compared"),
    [
        (((0,), (1,)), 2),
        (((0, 1), (2, 3), (4,)), 2),
        (((0, 1), (1, 2), (0, 2)), 3),  # each seed occurs in most settings, but no setting has all seeds
    ],
)
def test_without_shared_seeds_settings_with_the_most_seeds_are_compared(
    seeds: tuple[tuple[int, ...], ...], compared: int
) -> None:
    settings = [(10.0**-index, index, seed) for index, some in enumerate(seeds) for seed in some]
    (row,) = select(tidy(*(make_record((index / 10,), lr=lr, seed=seed) for lr, index, seed in settings))).to_dicts()
    assert (row["score"], row["compared"], row["shared"]) == (pytest.approx((compared - 1) / 10), compared, 0)
    assert row["incomplete"] == len(seeds) - compared


def test_equal_seeds_of_all_settings_are_not_reported() -> None:
    assert select(grid(a=0.2, b=0.7))["shared"].to_list() == [None]
    assert select(tidy(make_record(seed=3), make_record(seed=5)))["shared"].to_list() == [None]


def test_ties_are_reported_and_the_smaller_setting_is_selected() -> None:
    (row,) = select(grid(a=0.5, b=0.5, c=0.1)).to_dicts()
    assert (row["lr"], row["ties"]) == (0.1, 1)


@pytest.mark.parametrize(
    ("best", "edges"),
    [
        ((1e-1, 2.0), "lr"),
        ((1e-2, 1.0), "kappa"),
        ((1e-3, 3.0), "kappa,lr"),
        ((1e-2, 2.0), ""),
        ((0.0, 2.0), ""),
        ((1e-2, math.inf), ""),
    ],
)
def test_a_selection_at_the_edge_of_the_values_tried_is_reported(best: tuple[float, float], edges: str) -> None:
    lrs = (1e-1, 1e-2, 1e-3) if best[0] else (1e-1, 1e-2, 0.0)
    kappas = (1.0, 2.0, 3.0) if best[1] < math.inf else (1.0, 2.0, math.inf)
    table = tidy(*(make_record((float((lr, kappa) == best),), lr=lr, kappa=kappa) for lr in lrs for kappa in kappas))
    (row,) = select(table).to_dicts()
    assert ((row["lr"], row["kappa"]), ",".join(sorted(row["edges"].split(",")))) == (best, edges)


@pytest.mark.parametrize("best", ["2", "graded"])
def test_a_single_number_among_range_rules_has_no_edge(best: str) -> None:
    kappas = ("2", "graded", "hidden=5,output=1")
    table = tidy(*(make_record((float(kappa == best),), method="sgd+wc", kappa=kappa) for kappa in kappas))
    (row,) = select(table).to_dicts()
    assert (row["compared"], row["edges"]) == (3, "")


def test_one_value_has_no_edge() -> None:
    assert select(tidy(make_record(), make_record(seed=1)))["edges"].to_list() == [""]


def test_each_method_and_setup_has_a_best_setting() -> None:
    table = tidy(
        make_record((0.1,), lr=0.1),
        make_record((0.2,), lr=0.01),
        make_record((0.4,), lr=0.1, method="adam"),
        make_record((0.3,), lr=0.01, method="adam"),
        make_record((0.3,), lr=1.0, hidden=[50]),
    )
    found = select(table).select("hidden", "method", "lr", "score").sort("hidden", "method").rows()
    assert found == [("300,150", "adam", 0.1, 0.4), ("300,150", "sgd", 0.01, 0.2), ("50", "sgd", 1.0, 0.3)]


def test_the_best_runs_are_all_rows_of_the_selected_settings() -> None:
    table = tidy(
        *(make_record((0.1, 0.2), lr=0.1, seed=seed) for seed in (0, 1)),
        *(make_record((0.3, 0.4), lr=0.01, seed=seed, decay=0.5) for seed in (0, 1)),
        make_record((0.0, 0.0), method="adam"),
    )
    found = best_runs(table)
    assert found.columns == table.columns
    assert found.select("method", "lr", "seed", "accuracy").rows() == [
        *[("sgd", 0.01, seed, value) for seed in (0, 1) for value in (0.3, 0.4)],
        *[("adam", 0.001, 0, 0.0)] * 2,
    ]


def test_method_names_may_be_categorical() -> None:
    table = tidy(make_record((0.1,)), make_record((0.2,), method="adam"))
    ordered = table.with_columns(pl.col("method").cast(pl.Enum(["sgd", "adam"])))
    assert select(ordered)["method"].to_list() == ["sgd", "adam"]
    assert best_runs(ordered).height == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"criterion": "area"}, r"criterion: got 'area', expected one of auc, final"),
        ({"criterion": "final", "last": 0}, "last: got 0, expected a positive number"),
        ({"metric": "acuracy"}, "metric: got 'acuracy', expected one of .*; did you mean 'accuracy'"),
        ({"metric": "weight_l2"}, "metric: got 'weight_l2', expected a metric with a direction: accuracy"),
    ],
)
def test_errors_are_reported(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(tidy(make_record(columns={"weight_l2": [1.0, 1.0]})), **arguments)  # type: ignore[arg-type]


def test_a_table_without_rows_raises_an_error() -> None:
    with pytest.raises(ValueError, match="table: got a table without rows, expected results"):
        select(tidy(make_record()).clear())
