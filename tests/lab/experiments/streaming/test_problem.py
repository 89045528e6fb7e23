import numpy as np
import pytest

from weightclip.lab.data import DATASETS
from weightclip.lab.experiments.streaming.problem import PROBLEMS, Permute, Task, find_problem, make_task

PERMUTES: tuple[Permute, ...] = ("inputs", "labels", "nothing")


def task(permute: Permute, index: int, *, steps: int = 50, period: int = 50, seed: int = 0, n: int = 200) -> Task:
    return make_task(permute, index, steps, period, seed, n, 30, 10)


def test_each_data_set_has_its_three_problems() -> None:
    assert {problem.dataset for problem in PROBLEMS.values()} == set(DATASETS)
    assert len(PROBLEMS) == 3 * len(DATASETS)


@pytest.mark.parametrize(
    ("name", "permute", "period"),
    [
        ("input-permuted-mnist", "inputs", 5000),
        ("label-permuted-emnist", "labels", 2500),
        ("label-permuted-mini-imagenet", "labels", 2500),
        ("label-permuted-mnist", "labels", 5000),
        ("stationary-mnist", "nothing", 5000),
    ],
)
def test_the_papers_problems_have_the_papers_period_and_permutation(name: str, permute: Permute, period: int) -> None:
    assert (find_problem(name).permute, find_problem(name).period) == (permute, period)


def test_an_unknown_problem_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean 'input-permuted-mnist'"):
        find_problem("input-permuted-mnits")


def test_input_permutation_permutes_pixels_from_the_first_task_on_and_keeps_labels() -> None:
    tasks = [task("inputs", index) for index in range(3)]
    for one in tasks:
        assert sorted(one.columns) == list(range(30))
        assert not np.array_equal(one.columns, np.arange(30))
        assert np.array_equal(one.classes, np.arange(10))
    assert not np.array_equal(tasks[0].columns, tasks[1].columns)


def test_label_permutation_permutes_labels_and_keeps_pixels() -> None:
    tasks = [task("labels", index) for index in range(3)]
    for one in tasks:
        assert sorted(one.classes) == list(range(10))
        assert np.array_equal(one.columns, np.arange(30))
    assert not np.array_equal(tasks[0].classes, tasks[1].classes)


def test_a_stationary_problem_has_no_permutation() -> None:
    one = task("nothing", 3)
    assert np.array_equal(one.columns, np.arange(30))
    assert np.array_equal(one.classes, np.arange(10))


@pytest.mark.parametrize("permute", PERMUTES)
def test_a_task_is_a_function_of_seed_and_number(permute: Permute) -> None:
    for name in ("rows", "columns", "classes"):
        assert np.array_equal(getattr(task(permute, 4), name), getattr(task(permute, 4), name))
    assert not np.array_equal(task(permute, 4).rows, task(permute, 5).rows)
    assert not np.array_equal(task(permute, 4).rows, task(permute, 4, seed=1).rows)


@pytest.mark.parametrize("permute", PERMUTES)
def test_a_shorter_last_task_is_a_prefix_of_the_full_task(permute: Permute) -> None:
    assert np.array_equal(task(permute, 2, steps=20).rows, task(permute, 2).rows[:20])


@pytest.mark.parametrize("permute", ["inputs", "labels"])
def test_each_sample_is_drawn_once_per_pass_through_the_data(permute: Permute) -> None:
    rows = task(permute, 1, steps=25, period=25, n=10).rows
    assert sorted(rows[:10]) == sorted(rows[10:20]) == list(range(10))
    assert not np.array_equal(rows[:10], rows[10:20])
    assert len(set(rows[20:])) == 5


def test_a_stationary_stream_passes_through_the_data_across_tasks() -> None:
    rows = np.concatenate([task("nothing", index, steps=7, period=7, n=20).rows for index in range(9)])
    epochs = [rows[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
