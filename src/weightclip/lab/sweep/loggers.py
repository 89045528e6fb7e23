"""Log the rows of runs to TensorBoard or Weights & Biases while they are running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weightclip.lab.callbacks import OnRow, Row, ignore
from weightclip.lab.experiment import Experiment
from weightclip.lab.sweep.plan import Run


@dataclass(frozen=True)
class Loggers:
    """The services that rows are logged to.

    Args:
        tensorboard: directory for event files, with one folder per run.
        wandb: project of Weights & Biases.
    """

    tensorboard: Path | None = None
    wandb: str | None = None


NO_LOGGERS = Loggers()


def check_loggers(loggers: Loggers) -> Loggers:
    """Return the loggers; raise a ValueError if a library that they need is missing."""
    for requested, package, extra in (
        (loggers.tensorboard, "tensorboard", "weightclip[tensorboard]"),
        (loggers.wandb, "wandb", "wandb"),
    ):
        if requested is not None and find_spec(package) is None:
            raise ValueError(f'--{package}: requires {package}: pip install "{extra}"')
    if loggers.wandb == "":
        raise ValueError("--wandb: got '', expected the name of a project")
    return loggers


@contextmanager
def logging_rows(loggers: Loggers, experiment: Experiment[Any], runs: tuple[Run, ...]) -> Iterator[OnRow]:
    """A callback that logs the rows of these runs."""
    if loggers == NO_LOGGERS:
        yield ignore
        return
    with ExitStack() as stack:
        logs = {id(run.config): stack.enter_context(_RunLogger(loggers, experiment, run)) for run in runs}
        yield lambda config, row: logs[id(config)].add(row)


class _RunLogger:
    """Logs one run to each of the services."""

    def __init__(self, loggers: Loggers, experiment: Experiment[Any], run: Run) -> None:
        self._x_column = experiment.schema.x_column
        self._tensorboard = self._wandb = None
        name = f"{run.relative_path}_{run.identity}"
        if loggers.tensorboard is not None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._tensorboard = SummaryWriter(str(loggers.tensorboard / name))
        if loggers.wandb is not None:
            self._wandb = _start_wandb(loggers.wandb, run, name)

    def __enter__(self) -> _RunLogger:
        return self

    def add(self, row: Row) -> None:
        step = int(row[self._x_column])
        values = {name: value for name, value in row.items() if name != self._x_column and value is not None}
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log({**values, self._x_column: step}, step=step)

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
