import pytest

from weightclip.lab.sweep.pace import SECONDS_TO_KNOW, seconds_left, slowness


def test_what_was_done_tells_how_slow_the_rest_is() -> None:
    assert slowness([(100.0, 200.0), (50.0, 100.0)], 1000.0) == 2.0


def test_the_less_was_done_the_more_the_measurement_beforehand_counts() -> None:
    assert slowness([], 1000.0) == 1.0
    assert slowness([(0.01, 10.0)], 36_000.0) < 1.2  # a slow start, not a thousandfold time
    for thought in (1.0, 10.0, 30.0, SECONDS_TO_KNOW):
        known = thought / SECONDS_TO_KNOW
        assert slowness([(thought, 3 * thought)], 36_000.0) == pytest.approx(1 + 2 * known)


def test_of_a_short_sweep_little_has_to_be_known() -> None:
    assert slowness([(5.0, 15.0)], 100.0) == 3.0


def test_runs_that_nobody_knows_anything_of_take_no_time() -> None:
    assert slowness([(0.0, 10.0)], 0.0) == 1.0
    assert seconds_left([], 2) == 0.0


def test_no_run_is_on_two_workers() -> None:
    assert seconds_left([51.0], 2) == 51.0
    assert seconds_left([30.0, 10.0, 20.0], 2) == 30.0
    assert seconds_left([20.0, 20.0, 20.0], 2) == 30.0
