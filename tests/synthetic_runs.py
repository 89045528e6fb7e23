"""Tidy tables of synthetic streaming runs."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl

from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.records.columns import SCHEMA_TYPE

MEASURED = ("accuracy", "loss", "plasticity", "gradient_l2", "weight_l2")

MNIST, EMNIST, IMAGENET = "input-permuted-mnist", "label-permuted-emnist", "label-permuted-mini-imagenet"

SCHEMA = json.dumps(EXPERIMENT.schema.as_dict())


def some_value(metric: str, method: str, seed: int, task: int) -> float:
    """Return a value between 0.2 and 0.8 that differs for all arguments."""
    return float(np.random.default_rng([len(metric), *method.encode(), seed, task]).uniform(0.2, 0.8))


def runs(
    methods: Iterable[str],
    seeds: int = 2,
    tasks: int = 6,
    problem: str = MNIST,
    value: Callable[[str, str, int, int], float] = some_value,
    official: bool = True,
    **config: Any,
) -> pl.DataFrame:
    """Create a row per method, seed and task, with the metrics `value(metric, method, seed, task)`."""
    given = {"lr": 0.001, "kappa": None, "decay": None, "steps": 1000 * tasks, **config}
    return pl.DataFrame(
        [
            {
                "experiment": "streaming",
                "problem": problem,
                "method": method,
                "seed": seed,
                **given,
                "data": problem.rpartition("-")[2],
                "data_kind": "directory",
                "checksum": f"{problem}'s",
                "official": official,
                "seconds": 1.0,
                "resumed": "never",
                "deviations": None,
                "paper_setting": None,
                "schema": SCHEMA,
                "identity": f"{problem} {method} {seed} {given}",
                "task": task,
                "samples": 1000 * task,
                **{metric: value(metric, method, seed, task) for metric in MEASURED},
            }
            for method in methods
            for seed in range(seeds)
            for task in range(1, tasks + 1)
        ],
        schema_overrides={
            **dict.fromkeys(("lr", "kappa", "decay"), pl.Float64),
            **dict.fromkeys(("deviations", "paper_setting"), pl.String),
            "schema": SCHEMA_TYPE,
        },
        infer_schema_length=None,
    )
