import math

import pytest

from lab.records.synthetic_records import make_record, tidy
from weightclip.lab.analysis.curves import peaks

FALLING = (0.1, 0.3, 0.8, 0.6, 0.5, 0.1)


def test_the_fall_is_from_the_best_part_of_a_run_to_the_last() -> None:
    (row,) = peaks(tidy(make_record(FALLING)), parts=3).to_dicts()
    assert (row["peak"], row["at"], row["end"], row["fall"]) == pytest.approx((0.7, 40, 0.3, 0.4))


def test_with_more_parts_than_rows_each_row_is_a_part() -> None:
    (row,) = peaks(tidy(make_record(FALLING)), parts=50).to_dicts()
    assert (row["peak"], row["at"], row["end"]) == pytest.approx((0.8, 30, 0.1))


def test_a_rising_run_does_not_fall() -> None:
    (row,) = peaks(tidy(make_record((0.1, 0.2, 0.3)))).to_dicts()
    assert (row["at"], row["fall"]) == (30, 0.0)


def test_rows_of_runs_are_separate_in_any_order() -> None:
    table = tidy(*(make_record(FALLING[seed:], seed=seed) for seed in (0, 1)), make_record((0.9,), method="adam"))
    found = peaks(table.sample(fraction=1.0, shuffle=True, seed=0), "accuracy", parts=50)
    assert sorted(found.select("method", "seed", "peak", "at").rows()) == [
        ("adam", 0, 0.9, 10),
        ("sgd", 0, 0.8, 30),
        ("sgd", 1, 0.8, 20),
    ]


def test_a_stopped_run_has_a_peak_and_no_fall() -> None:
    (row,) = peaks(tidy(make_record((0.1, 0.5, math.nan, math.nan))), parts=2).to_dicts()
    assert (row["peak"], row["at"], row["end"], row["fall"]) == (0.3, 20, None, None)


def test_parts_are_counted() -> None:
    with pytest.raises(ValueError, match=r"parts: got 0, expected"):
        peaks(tidy(make_record()), parts=0)
