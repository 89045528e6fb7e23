"""The configuration of a run and the columns of its table."""

from dataclasses import dataclass
from typing import Annotated

from weightclip.lab.config import PROBLEM, Help, MethodConfig, check_fields, resolve_method, resolver
from weightclip.lab.constraints import AtLeast, OneOf
from weightclip.lab.experiment import config_schema
from weightclip.lab.records.schema import Metric, by_name

NAME = "drifting-regression"
BEST = {"sgd": {"lr": 0.05}, "sgd+wc": {"lr": 0.05, "kappa": 2.0}}


@dataclass(frozen=True)
class Config(MethodConfig):
    """One run: `tasks` tasks of `period` samples, each with a target drawn from N(0, drift^2)."""

    experiment = NAME

    problem: Annotated[str, OneOf(NAME), Help("the problem")] = NAME
    method: Annotated[str, Help("optimizer+regularizer+..., for example sgd, sgd+wc")] = "sgd+wc"
    tasks: Annotated[int, AtLeast(1), Help("number of tasks", PROBLEM)] = 20
    period: Annotated[int, AtLeast(1), Help("samples per task", PROBLEM)] = 200
    drift: Annotated[float, AtLeast(0), Help("standard deviation of the targets", PROBLEM)] = 1.0


@resolver
def resolve(config: Config) -> Config:
    """Check a configuration and fill in the settings of its method."""
    return resolve_method(check_fields(config), BEST)


SCHEMA = config_schema(
    Config,
    methods=tuple(BEST),
    x_column="task",
    score="loss",
    metrics=by_name(
        Metric("loss", "Loss", "squared error of each sample before its update, mean over a task", "", "lower"),
        Metric("weight_l2", "Weight l2 norm", "at the end of a task"),
    ),
    panels=("loss", "weight_l2"),
)
