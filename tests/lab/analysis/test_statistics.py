import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lab.records.synthetic_records import make_record, tidy
from weightclip.lab.analysis.statistics import FLAT, interval, iqm, mean_and_error, sensitivity, trend

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20)


@given(NUMBERS)
def test_the_error_is_scipys_standard_error(values: list[float]) -> None:
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(np.mean(values), abs=1e-9)
    assert error == pytest.approx(stats.sem(values), abs=1e-9)


@given(NUMBERS, st.floats(0.5, 0.99))
def test_the_interval_is_students(values: list[float], level: float) -> None:
    mean, error = mean_and_error(values)
    low, high = mean + error * np.array(stats.t.interval(level, len(values) - 1))
    found = interval(values, level)
    assert (found.value, found.low, found.high) == pytest.approx((mean, low, high), abs=1e-6)


def test_one_value_has_no_error_and_no_interval() -> None:
    assert mean_and_error([3.0])[0] == 3.0
    assert math.isnan(mean_and_error([3.0])[1])
    assert math.isnan(interval([3.0]).low)


def test_the_interquartile_mean_excludes_the_lowest_and_the_highest_quarter_of_all_runs() -> None:
    tasks = [[0.0, 1.0, 2.0, 100.0], [-50.0, 3.0, 4.0, 5.0]]
    assert iqm(tasks).value == pytest.approx(np.mean(sorted(np.concatenate(tasks))[2:6]))


def test_the_bootstrap_interval_contains_the_value_widens_with_the_level_and_is_deterministic() -> None:
    tasks = np.random.default_rng(0).normal(size=(4, 10))
    narrow, wide = iqm(tasks, level=0.5), iqm(tasks, level=0.99)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert iqm(tasks, level=0.5) == narrow
    assert iqm(tasks, level=0.5, seed=1) != narrow


def test_runs_are_resampled_within_each_task() -> None:
    found = iqm(
        [[0.0] * 5, [10.0] * 5]
    )  # if all runs were resampled together, the fractions of the two tasks would change
    assert (found.value, found.low, found.high) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("values", [[], [[1.0]], [[1.0, 2.0], []]])
def test_too_few_runs_for_a_bootstrap_raise_an_error(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"values_by_task: got .*, expected"):
        iqm(values)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_confidence_level_is_between_0_and_1(level: float) -> None:
    for function in (interval, lambda values, level: iqm([values], level)):
        with pytest.raises(ValueError, match=f"level: got {level}, expected a number between 0 and 1"):
            function([1.0, 2.0], level)


def searched() -> pl.DataFrame:
    """Create runs with the score 10 lr + kappa; two seeds are slightly below and above."""
    return tidy(
        *(
            make_record((10 * lr + kappa + (seed - 0.5) / 5,), method="sgd+wc", lr=lr, kappa=kappa, seed=seed)
            for lr in (0.1, 0.01)
            for kappa in (1.0, 2.0, 3.0)
            for seed in (0, 1)
        ),
        make_record((9.0,), method="sgd"),
    )


def test_sensitivity_is_the_best_score_at_each_value() -> None:
    found = sensitivity(searched(), "kappa")
    assert found["method"].unique().to_list() == ["sgd+wc"]
    assert found.select("kappa", "lr", "seeds", "compared").rows() == [(k, 0.1, 2, 2) for k in (1.0, 2.0, 3.0)]
    assert found["score"].to_list() == pytest.approx([2.0, 3.0, 4.0])
    assert found["error"].to_list() == pytest.approx([0.1, 0.1, 0.1])


def test_sensitivity_of_a_setting_that_all_methods_have() -> None:
    found = sensitivity(searched(), "lr")
    assert found.select("method", "lr", "kappa").rows() == [
        ("sgd", 0.001, None),
        ("sgd+wc", 0.01, 3.0),
        ("sgd+wc", 0.1, 3.0),
    ]


def test_sensitivity_to_an_unknown_setting_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"parameter: got 'kapa', expected one of .*; did you mean 'kappa'"):
        sensitivity(searched(), "kapa")


def curve(slopes: tuple[float, float], seed: int, noise: float = 0.0) -> list[float]:
    """Forty rows with one slope in each half."""
    random = np.random.default_rng(seed).normal(size=40)
    first, second = np.arange(20) * slopes[0], np.arange(20) * slopes[1]
    return [*(first + 5), *(second + 7 + noise * random[20:])]


def test_the_trend_is_the_least_squares_slope_of_the_last_half_per_100_rows() -> None:
    values = [curve((5.0, 0.01), seed, noise=0.02) for seed in range(3)]
    table = tidy(*(make_record(one, seed=seed) for seed, one in enumerate(values)))
    (row,) = trend(table.sample(fraction=1.0, shuffle=True, seed=0)).to_dicts()
    slopes = [100 * np.polyfit(np.arange(20), one[20:], 1)[0] for one in values]
    expected = interval(slopes)
    assert (row["slope"], row["low"], row["high"]) == pytest.approx((expected.value, expected.low, expected.high))
    assert (row["seeds"], row["verdict"]) == (3, "rising")


@pytest.mark.parametrize(
    ("slope", "noise", "verdict"),
    [(0.1, 0.01, "rising"), (-0.1, 0.01, "falling"), (0, 1, "not decided"), (0, 0.0001, "flat")],
)
def test_the_verdict_is_whether_the_interval_excludes_zero(slope: float, noise: float, verdict: str) -> None:
    table = tidy(*(make_record(curve((0.0, slope), seed, noise), seed=seed) for seed in range(5)))
    (row,) = trend(table).to_dicts()
    assert row["verdict"] == verdict
    assert (row["low"] > 0, row["high"] < 0) == (verdict == "rising", verdict == "falling")
    assert (max(-row["low"], row["high"]) <= FLAT) == (verdict == "flat")


def test_the_flat_band_is_a_percentage_point_for_fractions_and_zero_for_others() -> None:
    slopes = (-0.00005, 0.00005)  # plus and minus half a percentage point per 100 tasks
    values = [[slope * task for task in range(40)] for slope in slopes]
    table = tidy(*(make_record(one, seed=seed, columns={"loss": one}) for seed, one in enumerate(values)))
    assert trend(table, level=0.5)["verdict"].to_list() == ["flat"]
    assert trend(table, level=0.95)["verdict"].to_list() == ["not decided"]
    assert trend(table, level=0.95, band=0.1)["verdict"].to_list() == ["flat"]
    assert trend(table, "loss", level=0.5)["verdict"].to_list() == ["not decided"]
    assert trend(table, "loss", level=0.5, band=0.01)["verdict"].to_list() == ["flat"]


def test_every_slope_of_a_constant_is_flat() -> None:
    table = tidy(*(make_record([0.5] * 6, seed=seed, columns={"loss": [1.0] * 6}) for seed in (0, 1)))
    assert trend(table, "loss")["verdict"].to_list() == ["flat"]


def test_the_fraction_sets_the_number_of_rows() -> None:
    table = tidy(make_record(curve((1.0, -1.0), 0)))
    assert trend(table, fraction=0.25)["slope"].to_list() == pytest.approx([-100.0])
    assert trend(table, fraction=1)["slope"].to_list() == pytest.approx(
        [100 * np.polyfit(range(40), curve((1, -1), 0), 1)[0]]
    )
    with pytest.raises(ValueError, match="fraction: got 2, expected a number above 0 and at most 1"):
        trend(table, fraction=2)
    with pytest.warns(DeprecationWarning, match="trend: the argument share is now fraction"):
        assert trend(table, share=0.25).equals(trend(table, fraction=0.25))  # type: ignore[call-arg]


def test_one_seed_has_a_slope_but_no_verdict() -> None:
    (row,) = trend(tidy(make_record(curve((0.0, 1.0), 0)))).to_dicts()
    assert (row["slope"], row["low"], row["verdict"]) == (pytest.approx(100.0), None, None)


@pytest.mark.parametrize("values", [[0.5], [0.5, math.nan, 0.5, math.nan]])
def test_without_a_slope_there_is_no_verdict(values: list[float]) -> None:
    (row,) = trend(tidy(*(make_record(values, seed=seed) for seed in (0, 1)))).to_dicts()
    assert row["verdict"] is None


@pytest.mark.parametrize(("tasks", "verdict"), [(4, None), (5, "falling")])
def test_two_rows_have_a_slope_but_no_verdict(tasks: int, verdict: str | None) -> None:
    falling = [0.9 - task / 100 for task in range(tasks)]
    (row,) = trend(tidy(*(make_record(falling, seed=seed) for seed in (0, 1)))).to_dicts()
    assert (row["slope"], row["verdict"], row["low"] is None) == (pytest.approx(-1.0), verdict, verdict is None)


def test_any_metric_has_a_trend() -> None:
    table = tidy(make_record([0.0] * 4, columns={"weight_l2": [0.0, 0.0, 1.0, 3.0]}))
    assert trend(table, "weight_l2")["slope"].to_list() == pytest.approx([200.0])


def test_a_truncated_task_is_excluded_from_the_slope() -> None:
    steady = [0.1, 0.2, 0.3, 0.4]
    marks = {"cut_short": [False] * 4 + [True]}
    short = trend(tidy(*(make_record([*steady, 0.9], seed=seed, columns=marks) for seed in range(2))))
    whole = trend(tidy(*(make_record(steady, seed=seed) for seed in range(2))))
    assert short["slope"].to_list() == pytest.approx(whole["slope"].to_list())
