import math

import polars as pl
import pytest

from lab.records.synthetic_records import make_record, tidy
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.statistics import interval, mean_and_error

VALUES = ((0.1, 0.2, 0.3, 0.4, 0.5), (0.3, 0.3, 0.2, 0.9, 0.7), (0.0, 0.1, 0.1, 0.2, 0.6))


def three_seeds() -> pl.DataFrame:
    table = tidy(*(make_record(values, seed=seed) for seed, values in enumerate(VALUES)))
    return table.sample(fraction=1.0, shuffle=True, seed=0)


def test_a_curve_is_the_mean_over_seeds_with_its_standard_error() -> None:
    found = curves(three_seeds(), "accuracy")
    assert found["task"].to_list() == [1, 2, 3, 4, 5]
    assert found["samples"].to_list() == [10, 20, 30, 40, 50]
    assert found["seeds"].to_list() == [3] * 5
    for row, values in zip(found.to_dicts(), zip(*VALUES)):
        mean, error = mean_and_error(values)
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((mean, mean - error, mean + error))


def test_a_curve_can_have_a_confidence_interval() -> None:
    for row, values in zip(curves(three_seeds(), level=0.9).to_dicts(), zip(*VALUES)):
        expected = interval(values, 0.9)
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((expected.value, expected.low, expected.high))


def test_pairs_of_rows_are_averaged_before_seeds() -> None:
    found = curves(three_seeds(), every=2)
    assert found.select("task", "samples").rows() == [(2, 20), (4, 40), (5, 50)]
    pairs = [[(a + b) / 2 for a, b in ((v[0], v[1]), (v[2], v[3]), (v[4], v[4]))] for v in VALUES]
    for row, values in zip(found.to_dicts(), zip(*pairs)):
        mean, error = mean_and_error(values)
        assert (row["mean"], row["low"]) == pytest.approx((mean, mean - error))


def test_curves_can_be_averaged_over_equal_parts_of_each_run() -> None:
    found = curves(three_seeds(), points=2)
    assert found.select("task", "samples").rows() == [(3, 30), (5, 50)]
    parts = [(sum(v[:3]) / 3, sum(v[3:]) / 2) for v in VALUES]
    for row, values in zip(found.to_dicts(), zip(*parts)):
        mean, error = mean_and_error(values)
        assert (row["mean"], row["low"]) == pytest.approx((mean, mean - error))
    assert curves(three_seeds(), points=100).equals(curves(three_seeds()))


def test_with_one_seed_the_band_has_no_width() -> None:
    found = curves(tidy(make_record((0.1, 0.2))), level=0.9)
    assert found.select("mean", "low", "high", "seeds").rows() == [(0.1, 0.1, 0.1, 1), (0.2, 0.2, 0.2, 1)]


def test_setups_methods_and_settings_have_separate_curves() -> None:
    table = tidy(
        make_record((0.1,)),
        make_record((0.2,), method="adam"),
        make_record((0.3,), hidden=[50]),
        make_record((0.4,), lr=1.0),
        make_record((0.5,), problem="stationary-mnist"),
    )
    found = curves(table)
    assert sorted(found["mean"]) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert found.select("problem", "hidden", "method", "lr").n_unique() == 5


def test_a_diverged_seed_makes_the_mean_nan() -> None:
    table = tidy(make_record((0.1, 0.2)), make_record((0.1, math.nan), seed=1))
    first, second = curves(table)["mean"].to_list()
    assert first == 0.1
    assert math.isnan(second)


def test_errors_are_reported() -> None:
    with pytest.raises(ValueError, match="every: got 0, expected a whole number of at least 1"):
        curves(three_seeds(), every=0)
    with pytest.raises(ValueError, match="points: got 0, expected a whole number of at least 1"):
        curves(three_seeds(), points=0)
    with pytest.raises(ValueError, match="metric: got 'loss', expected one of accuracy"):
        curves(three_seeds(), "loss")
    with pytest.raises(ValueError, match="level: got 2, expected a number between 0 and 1"):
        curves(three_seeds(), level=2)


def test_points_with_a_truncated_task_are_marked() -> None:
    whole = make_record((0.1, 0.2, 0.3), columns={"cut_short": [False] * 3})
    short = make_record((0.1, 0.2, 0.3), columns={"cut_short": [False, False, True]}, seed=1)
    assert curves(tidy(whole))["cut_short"].to_list() == [False] * 3
    assert curves(tidy(whole, short))["cut_short"].to_list() == [False, False, True]
    assert curves(tidy(short), every=2)["cut_short"].to_list() == [False, True]
    assert curves(tidy(make_record()))["cut_short"].to_list() == [
        False,
        False,
    ]  # older records do not contain the column
