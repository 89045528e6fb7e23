"""Configurations are validated with the annotations of their fields and resolved once."""

import pickle
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from weightclip.lab.config import Help, MethodConfig, check_fields, field_types
from weightclip.lab.constraints import AtLeast, Between, FilePath, Finite, OneOf, Positive, Seed
from weightclip.lab.experiments.streaming import config as streaming
from weightclip.lab.registry import experiments


@dataclass(frozen=True)
class Example:
    count: Annotated[int, AtLeast(2)] = 2
    percent: Annotated[int, Between(1, 100)] = 50
    fraction: Annotated[float, Between(0, 1)] = 0.5
    momentum: Annotated[float, Between(0, 1, below=True)] = 0.9
    weight: Annotated[float | None, AtLeast(0)] = None
    limit: Annotated[float, Positive(infinite=True)] = 1.0
    size: Annotated[float, Positive()] = 1.0
    value: Annotated[float, Finite()] = 0.0
    agent: Annotated[str, OneOf("dqn", "rainbow")] = "dqn"
    stages: Annotated[int, OneOf(1, 2)] = 1
    widths: Annotated[tuple[int, ...], AtLeast(1)] = (3, 4)
    flag: bool = True
    name: str = "a"
    path: Annotated[str | None, FilePath()] = None
    more: dict[str, float] = field(default_factory=dict)
    seed: Annotated[int, Seed()] = 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", 1, "a whole number of at least 2"),
        ("count", 2.5, "a whole number of at least 2"),
        ("count", True, "a whole number of at least 2"),
        ("count", None, "a whole number of at least 2"),
        ("percent", 101, "a whole number from 1 to 100"),
        ("fraction", 1.5, "a number from 0 to 1"),
        ("fraction", "half", "a number from 0 to 1"),
        ("momentum", 1.0, "a number of at least 0 and below 1"),
        ("weight", -1, "a number of at least 0"),
        ("weight", float("inf"), "a number of at least 0"),
        ("limit", 0, "a positive number"),
        ("limit", float("nan"), "a positive number"),
        ("size", float("inf"), "a positive number"),
        ("value", 10**400, "a finite number"),
        ("agent", "rainbo", "one of dqn, rainbow; did you mean 'rainbow'?"),
        ("agent", 3, "a name"),
        ("stages", 3, "1 or 2"),
        ("widths", 3, "whole numbers, such as (3, 4)"),
        ("widths", "34", "whole numbers, such as (3, 4)"),
        ("flag", 1, "True or False"),
        ("name", None, "a name"),
        ("more", [1], "names and numbers, such as {'beta1': 0.5}"),
        ("seed", -1, "a whole number from 0 to 2**63 - 1"),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_accepted(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{name}: got {value!r}, expected {expected}')}$"):
        check_fields(replace(Example(), **{name: value}))


def test_equal_values_of_different_types_make_the_same_configuration() -> None:
    plain = Example(count=4, fraction=1.0, weight=2.0, widths=(5, 6), path="rules.py", stages=2)
    other = Example(
        count=4.0,  # type: ignore[arg-type]
        fraction=1,
        weight=np.float32(2),  # type: ignore[arg-type]
        widths=np.array([5, 6]),  # type: ignore[arg-type]
        path=Path("rules.py"),  # type: ignore[arg-type]
        stages=np.int64(2),  # type: ignore[arg-type]
    )
    assert repr(check_fields(other)) == repr(check_fields(plain)) == repr(plain)


def test_help_and_choices_are_derived_from_the_annotation() -> None:
    @dataclass(frozen=True)
    class Config:
        agent: Annotated[str | None, OneOf("dqn", "rainbow"), Help("algorithm", "problem")] = None

    one = field_types(Config)["agent"]
    assert (one.help.text, one.help.group, one.choices, one.optional) == (
        "algorithm",
        "problem",
        ("dqn", "rainbow"),
        True,
    )


@pytest.mark.parametrize("name", ["streaming", "warm-start", "policy-collapse", "replay-ratio"])
def test_every_configuration_is_resolved_once_and_keeps_its_contents(name: str) -> None:
    experiment = experiments()[name]
    config = experiment.configure(experiment.schema.problems[0], {})
    assert isinstance(config, MethodConfig)
    assert config.is_resolved
    assert config.experiment == name
    again = pickle.loads(pickle.dumps(config))
    assert again.is_resolved
    assert again == config
    assert len({config, again, replace(config)}) == 1
    assert not replace(config, seed=1).is_resolved
    assert "_resolved" not in config.facts()
    assert not {*config.facts()} & {*config.execution_fields}


def test_a_resolved_configuration_is_returned_unchanged() -> None:
    config = streaming.resolve(streaming.Config("stationary-mnist", "adam+wc"))
    assert streaming.resolve(config) is config


def test_a_rules_file_is_executed_once_for_each_content(tmp_path: Path) -> None:
    log, rules = tmp_path / "log", tmp_path / "mine.py"
    text = (
        "from pathlib import Path\nfrom weightclip.lab.experiments.streaming import Rule\n"
        f"with Path({str(log)!r}).open('a') as log:\n    log.write('x')\nMINE = Rule('mine', after=lambda w: 0.5 * w)\n"
    )
    rules.write_text(text)
    config = streaming.resolve(streaming.Config("stationary-mnist", "sgd+mine", rules=str(rules)))
    config.parsed_method()
    streaming.resolve(replace(config, seed=2))
    assert log.read_text() == "x"
    rules.write_text(text.replace("0.5", "0.25"))
    streaming.resolve(streaming.Config("stationary-mnist", "sgd+mine", rules=str(rules)))
    assert log.read_text() == "xx"
