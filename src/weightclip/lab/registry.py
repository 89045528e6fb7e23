"""Experiments, problems and methods of this and other packages by name, found through entry points.

A package adds one in its `pyproject.toml`:

    [project.entry-points."weightclip.experiments"]
    my-experiment = "my_package:EXPERIMENT"      # an instance of `weightclip.lab.experiment.Experiment`

    [project.entry-points."weightclip.problems"]
    my-problem = "my_package:PROBLEM"            # a `weightclip.lab.experiments.streaming.Problem`

    [project.entry-points."weightclip.methods"]
    lion = "my_package:LION"  # a `weightclip.lab.experiments.streaming.Rule`: an optimizer or a regularizer
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from weightclip._validation import check_name
from weightclip.lab.experiment import Experiment

log = logging.getLogger(__name__)

EXPERIMENTS = "weightclip.experiments"
PROBLEMS = "weightclip.problems"
METHODS = "weightclip.methods"


def plugins(group: str, kind: type[Any]) -> dict[str, Any]:
    """The objects of a group of entry points by name. Invalid ones are skipped with a warning.

    A broken package should not prevent the others from running.
    """
    found = {}
    for point in entry_points(group=group):
        try:
            found[point.name] = _load(point, kind)
        except ValueError as error:
            log.warning("%s: skipped", error)
    return found


@cache
def experiments() -> dict[str, Experiment[Any]]:
    """Every experiment by name."""
    return plugins(EXPERIMENTS, Experiment)


def problems() -> dict[str, Experiment[Any]]:
    """Problem -> its experiment."""
    return {name: experiment for experiment in experiments().values() for name in experiment.schema.problems}


def experiment_of(problem: str) -> Experiment[Any]:
    """The experiment of a problem. An unknown problem raises a ValueError that suggests the nearest one."""
    return problems()[check_name("problem", problem, problems())]


def _load(point: EntryPoint, kind: type[Any]) -> Any:
    try:
        found = point.load()
    except Exception as error:
        raise ValueError(f"entry point {point.name} = {point.value}: {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"entry point {point.name} = {point.value}: got {found!r}, expected a {kind.__name__}")
    return found
