from dataclasses import replace

import pytest

from weightclip.lab.policy.config import Config, resolve
from weightclip.lab.policy.departures import departures, remark
from weightclip.lab.results.tidy import flat_config


def row(**given: object) -> dict[str, object]:
    """As a tidy table has a run."""
    return flat_config(resolve(Config(**given)).facts())  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["adam", "adam+wc", "adam+sp", "adam-equal-betas"])
@pytest.mark.parametrize("env", ["Ant-v4", "Walker2d-v4"])
def test_the_papers_runs_depart_in_nothing(env: str, method: str) -> None:
    assert remark(row(env=env, method=method, seed=3)) == ""


def test_what_differs_is_told_however_it_was_given() -> None:
    laptop = departures(row(scale="laptop"))
    assert laptop == {"lr": 0.001, "steps": 1_000_000, "anneal": False}
    assert departures(row(steps=1_000_000, anneal=False, lr=0.001)) == laptop
    assert departures(row(settings={"eps": 1e-8, "beta2": 0.9})) == {"settings.eps": 1e-8, "settings.beta2": 0.9}
    assert departures(row(hidden=(256, 256), bounds="fan_in")) == {"hidden": "256,256", "bounds": "fan_in"}
    assert remark(row(scale="laptop")) == "not the paper's setting: lr 0.001, steps 1,000,000, anneal no"


def test_what_searches_vary_is_left_to_them() -> None:
    assert remark(row(kappa=1.0)) == remark(row(method="adam+l2", decay=0.1)) == ""


def test_a_method_without_a_usual_step_size_is_compared_in_the_rest() -> None:
    assert remark(row(method="sgd+wc", lr=0.1, kappa=1.0)) == ""
    assert departures(row(method="sgd+wc", lr=0.1, kappa=1.0, epochs=3)) == {"epochs": 3}


def test_a_setting_that_other_methods_have_is_no_departure() -> None:
    same = flat_config(replace(resolve(Config(method="adam")), seed=1).facts())
    assert remark({**same, "settings.beta1": None}) == ""
