"""Streams of tasks: a data set whose inputs or labels are permuted differently in each task.

A task is a function of the seed and the task's index, so a stream of any length takes no memory and can resume at any
task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weightclip._validation import check_name
from weightclip.lab import registry
from weightclip.lab.callbacks import Event, ignore
from weightclip.lab.data import DATASETS, Dataset, load

Permute = Literal["inputs", "labels", "nothing"]


@dataclass(frozen=True)
class Problem:
    """A data set and what each task permutes.

    Args:
        name: name of the problem.
        dataset: name of the data set.
        permute: what each task permutes.
        period: samples per task.
        settings_of: problem of the paper's Table 2 whose settings are the defaults.
        own_data: loads a data set that is not in `weightclip.lab.data.DATASETS`, given the user's data directory or
            None.
    """

    name: str
    dataset: str
    permute: Permute
    period: int
    settings_of: str = "input-permuted-mnist"
    own_data: Callable[[Path | None], Dataset] | None = None

    @property
    def summary(self) -> str:
        """What the problem is, in one line."""
        change = "without changes" if self.permute == "nothing" else f"each task permutes the {self.permute}"
        return f"a stream of {self.dataset}, {change}"

    def load(self, data_dir: str | Path | None = None, on_event: Event = ignore) -> Dataset:
        """Load the data that the tasks are drawn from."""
        if self.own_data is not None:
            return self.own_data(None if data_dir is None else Path(data_dir))
        return load(self.dataset, data_dir=data_dir, on_event=on_event)


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


@cache
def all_problems() -> dict[str, Problem]:
    """All problems of this and other packages, by name."""
    return {**registry.plugins(registry.PROBLEMS, Problem), **PROBLEMS}


def find_problem(name: str) -> Problem:
    """The problem with a name. An unknown name raises a ValueError that suggests the nearest one."""
    return all_problems()[check_name("problem", name, all_problems())]


@dataclass(frozen=True)
class Task:
    """One task: at step i the input is inputs[rows[i]][columns] and the target is classes[labels[rows[i]]]."""

    index: int
    rows: NDArray[np.int64]  # [steps]
    columns: NDArray[np.int64]  # [d]
    classes: NDArray[np.int64]  # [number of classes]


def make_task(permute: Permute, index: int, steps: int, period: int, seed: int, n: int, d: int, classes: int) -> Task:
    """Task `index` of the stream with a seed, of length `steps` (`period`, or less for the last task).

    Samples are drawn without replacement, reshuffled at each task and whenever the data runs out. A stationary stream
    has no task changes and is reshuffled only when the data runs out. Each label permutation is uniform; composed
    permutations, as in the authors' code, have the same distribution.
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
    """An independent generator for each use and index."""
    return np.random.default_rng([seed, _USES.index(use), index])
