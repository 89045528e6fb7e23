import math
from typing import Any

import polars as pl
import pytest

from lab.records.synthetic_records import make_record, tidy, with_schema
from weightclip.lab.analysis.statistics import across_problems, iqm, is_comparable
from weightclip.lab.records.schema import FRACTION, Metric

MNIST, EMNIST = "input-permuted-mnist", "label-permuted-emnist"


def scores(method: str, problem: str, *values: float, **config: Any) -> pl.DataFrame:
    """Create a run of one task for each value, with seeds 0, 1, ..."""
    return tidy(
        *(
            make_record((value,), method=method, problem=problem, checksum=problem, seed=seed, **config)
            for seed, value in enumerate(values)
        )
    )


def both() -> list[pl.DataFrame]:
    return [
        scores("adam", MNIST, 0.1, 0.2, 0.6),
        scores("adam", EMNIST, 0.3, 0.4),
        scores("sgd", MNIST, 0.5, 0.5),
        scores("sgd", EMNIST, 0.5, 0.5),
    ]


def test_each_method_has_the_interquartile_mean_of_its_runs_on_all_problems() -> None:
    found = across_problems(pl.concat(both()))
    assert found.select("method", "problems", "runs").rows() == [("sgd", 2, 4), ("adam", 2, 5)]
    expected = iqm([[0.1, 0.2, 0.6], [0.3, 0.4]])
    assert found.select("iqm", "low", "high").row(1) == pytest.approx((expected.value, expected.low, expected.high))
    assert found.select("iqm", "low", "high").row(0) == (0.5, 0.5, 0.5)


def test_runs_are_at_the_best_setting_of_the_main_setup() -> None:
    lines: list[str] = []
    worse = scores("adam", MNIST, 0.0, 0.0, 0.0, lr=0.5)
    other = scores("adam", EMNIST, 0.9, hidden=[50])
    found = across_problems(pl.concat([*both(), worse, other]), on_event=lines.append)
    assert found.equals(across_problems(pl.concat(both())))
    assert "skipping hidden=50 (1 run)" in "".join(lines)


def test_only_problems_with_two_seeds_of_every_method_count() -> None:
    third = [scores("sgd", "third", 0.1, 0.1), scores("adam", "third", 0.9)]
    assert set(across_problems(pl.concat([*both(), *third]))["problems"]) == {2}
    more = scores("lion", MNIST, 0.1, 0.2)
    assert across_problems(pl.concat([*both(), more])).is_empty()
    assert across_problems(pl.concat([*both(), more])).columns == across_problems(pl.concat(both())).columns


def test_nan_makes_the_result_of_a_method_nan() -> None:
    table = pl.concat([*both()[:3], scores("sgd", EMNIST, 0.5, math.nan)])
    found = across_problems(table)
    assert all(map(math.isnan, found.select("iqm", "low", "high").row(0)))
    assert found["iqm"].is_finite().to_list() == [False, True]


def test_values_of_another_axis_are_separate() -> None:
    table = pl.concat([*both(), *(scores("sgd", name, 0.7, 0.7, activation="tanh") for name in (MNIST, EMNIST))])
    table = with_schema(table, axes=("method", "activation"))
    found = across_problems(table).select("activation", "method", "iqm", "runs").rows()
    assert found[1:] == [("leaky_relu", "adam", pytest.approx(0.3), 5), ("tanh", "sgd", pytest.approx(0.7), 4)]


def test_a_mean_over_problems_requires_several_problems_on_one_scale() -> None:
    accuracy, loss = Metric("accuracy", "", "", FRACTION), Metric("loss", "", "")
    table = pl.concat(both())
    assert is_comparable(table, accuracy)
    assert not is_comparable(table, loss)
    assert not is_comparable(table.filter(problem=MNIST), accuracy)
