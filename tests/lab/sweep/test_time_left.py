import pytest

from weightclip.lab.sweep.plan import seconds_left, seconds_per_run


def test_the_time_of_a_kind_is_the_mean_over_its_runs() -> None:
    pieces = [("a", 1.0, 10.0), ("a", 0.5, 8.0), ("b", 2.0, 3.0)]
    assert seconds_per_run(pieces, {}) == pytest.approx({"a": 12.0, "b": 1.5})


def test_earlier_times_count_until_more_runs_are_done() -> None:
    assert seconds_per_run([], {"a": 100.0}) == pytest.approx({"a": 100.0})
    assert seconds_per_run([("a", 0.1, 20.0)], {"a": 100.0})["a"] == pytest.approx(150.0)
    assert seconds_per_run([("a", 100.0, 20_000.0)], {"a": 100.0})["a"] == pytest.approx(200.0, rel=0.01)


def test_runs_without_progress_do_not_affect_the_estimate() -> None:
    assert seconds_per_run([("a", 0.0, 5.0)], {}) == {}


def test_the_time_left_is_unknown_without_any_finished_run() -> None:
    assert seconds_left([("a", 1.0)], {}, 2) is None
    assert seconds_left([], {}, 2) == 0.0


def test_a_job_uses_one_worker() -> None:
    each = {"a": 10.0}
    assert seconds_left([("a", 1.0)] * 4, each, 2) == 20.0
    assert seconds_left([("a", 1.0)], each, 2) == 10.0
    assert seconds_left([("a", 1.0), ("b", 1.0)], each, 1) == 20.0  # nothing is known about b, so it counts like a
