"""Streams of tasks: a data set whose inputs or labels are permuted anew for each task.

Everything about a task is a function of the seed and the task's number, so a stream of any length takes no memory and
can go on from any task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weightclip.checks import check_name
from weightclip.lab.data import DATASETS

Permute = Literal["inputs", "labels", "nothing"]


@dataclass(frozen=True)
class Problem:
    """A data set and what changes from task to task.

    `settings_of` names the problem of the paper's table 2 whose settings are the defaults here.
    """

    name: str
    dataset: str
    permute: Permute
    period: int
    settings_of: str


def _problems() -> dict[str, Problem]:
    prefixes: dict[str, Permute] = {"input-permuted": "inputs", "label-permuted": "labels", "stationary": "nothing"}
    of_the_paper = {
        "mnist": ("input-permuted-mnist", 5000),
        "emnist": ("label-permuted-emnist", 2500),
        "mini-imagenet": ("label-permuted-mini-imagenet", 2500),
    }
    found = {}
    for dataset in DATASETS:
        settings_of, period = of_the_paper.get(dataset, ("input-permuted-mnist", 5000))
        for prefix, permute in prefixes.items():
            name = f"{prefix}-{dataset}"
            found[name] = Problem(name, dataset, permute, period, settings_of)
    return found


PROBLEMS = _problems()


def find_problem(name: str) -> Problem:
    """The problem of that name; a ValueError that suggests the nearest one."""
    return PROBLEMS[check_name("problem", name, PROBLEMS)]


@dataclass(frozen=True)
class Task:
    """One task: at step i the learner sees inputs[rows[i]][columns] and is asked for classes[labels[rows[i]]]."""

    index: int
    rows: NDArray[np.int64]  # [steps]
    columns: NDArray[np.int64]  # [d]
    classes: NDArray[np.int64]  # [number of classes]


def make_task(permute: Permute, index: int, steps: int, period: int, seed: int, n: int, d: int, classes: int) -> Task:
    """Task `index` of the stream with that seed, `steps` long (`period`, or less for the last one).

    Samples come without replacement in an order that is drawn anew for each task, and whenever the data runs out; a
    stationary stream has no change of task, so its order is drawn anew only when the data runs out. Each label
    permutation is uniform: permutations that compose, as in the authors' code, have just that distribution.
    """
    columns, labels = np.arange(d), np.arange(classes)
    if permute == "inputs":
        columns = _random(seed, "inputs", index).permutation(d)
    elif permute == "labels":
        labels = _random(seed, "labels", index).permutation(classes)
    if permute == "nothing":
        first = index * period
        epochs = range(first // n, (first + steps - 1) // n + 1)
        order = np.concatenate([_random(seed, "epoch", epoch).permutation(n) for epoch in epochs])
        rows = order[first % n : first % n + steps]
    else:
        random = _random(seed, "order", index)
        rows = np.concatenate([random.permutation(n) for _ in range(-(-steps // n))])[:steps]
    return Task(index, rows, columns, labels)


_USES = ("inputs", "labels", "epoch", "order")


def _random(seed: int, use: str, index: int) -> np.random.Generator:
    """A generator of its own for each use and number."""
    return np.random.default_rng([seed, _USES.index(use), index])
