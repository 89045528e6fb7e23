"""Looking on: rows of running runs in TensorBoard, or at Weights & Biases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weightclip.lab.experiment import Experiment, OnRow, Row, ignore
from weightclip.lab.sweep.plan import Run


@dataclass(frozen=True)
class Live:
    """Where rows are shown as they come.

    Args:
        tensorboard: a directory for event files; a folder in it for each run.
        wandb: a project of Weights & Biases.
    """

    tensorboard: Path | None = None
    wandb: str | None = None


NOWHERE = Live()


def check_live(live: Live) -> Live:
    """The same; a ValueError if a library is missing that it needs."""
    for wanted, package, extra in (
        (live.tensorboard, "tensorboard", "weightclip[watch]"),
        (live.wandb, "wandb", "wandb"),
    ):
        if wanted is not None and find_spec(package) is None:
            raise ValueError(f'--{package}: needs {package}: pip install "{extra}"')
    if live.wandb == "":
        raise ValueError("--wandb: got '', expected the name of a project")
    return live


@contextmanager
def showing(live: Live, experiment: Experiment[Any], runs: tuple[Run, ...]) -> Iterator[OnRow]:
    """What shows the rows of these runs."""
    if live == NOWHERE:
        yield ignore
        return
    with ExitStack() as open_:
        shown = {id(run.config): open_.enter_context(_Shown(live, experiment, run)) for run in runs}
        yield lambda config, row: shown[id(config)].add(row)


class _Shown:
    """One run, in each of the places."""

    def __init__(self, live: Live, experiment: Experiment[Any], run: Run) -> None:
        self._along = experiment.schema.x_column
        self._tensorboard = self._wandb = None
        name = f"{run.relative_path}_{run.identity}"
        if live.tensorboard is not None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._tensorboard = SummaryWriter(str(live.tensorboard / name))
        if live.wandb is not None:
            self._wandb = _start_wandb(live.wandb, run, name)

    def __enter__(self) -> _Shown:
        return self

    def add(self, row: Row) -> None:
        step = int(row[self._along])
        values = {name: value for name, value in row.items() if name != self._along and value is not None}
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log({**values, self._along: step}, step=step)

    def __exit__(self, *_: object) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _start_wandb(project: str, run: Run, name: str) -> Any:
    wandb: Any = import_module("wandb")
    options = {"project": project, "id": run.identity, "name": name, "group": run.method, "config": vars(run.config)}
    try:
        return wandb.init(**options, resume="allow")
    except wandb.errors.Error as error:
        raise ValueError(f"--wandb: {error}") from error
