from dataclasses import replace

import polars as pl
import pytest

from weightclip.lab.analysis import deviations as generic
from weightclip.lab.experiments.dqn import config as replay
from weightclip.lab.experiments.ppo.config import Config, resolve
from weightclip.lab.experiments.ppo.experiment import EXPERIMENT
from weightclip.lab.experiments.warm_start import config as warm_start
from weightclip.lab.records.tidy import flat_config
from weightclip.lab.registry import find_experiment

remark = EXPERIMENT.remark


def row(**given: object) -> dict[str, object]:
    """As a tidy table has a run."""
    return flat_config(resolve(Config(**given)).facts())  # type: ignore[arg-type]


def departures(run: dict[str, object]) -> dict[str, object]:
    return generic.departures(run, EXPERIMENT.papers(run))


def warm(**given: object) -> str:
    """What is remarked of a warm-starting run."""
    config = warm_start.resolve(warm_start.Config(**given))  # type: ignore[arg-type]
    return find_experiment("warm-start").remark(flat_config(config.facts()))


def game(**given: object) -> str:
    """What is remarked of a run of DQN or Rainbow."""
    config = replay.resolve(replay.Config(**given))  # type: ignore[arg-type]
    return find_experiment("replay-ratio").remark(flat_config(config.facts()))


@pytest.mark.parametrize("method", ["adam", "adam+wc", "adam+sp", "adam-equal-betas"])
@pytest.mark.parametrize("env", ["Ant-v4", "Walker2d-v4"])
def test_the_papers_runs_depart_in_nothing(env: str, method: str) -> None:
    assert remark(row(env=env, method=method, seed=3)) == ""


def test_what_differs_is_told_however_it_was_given() -> None:
    laptop = departures(row(scale="laptop"))
    assert laptop == {"lr": 0.001, "anneal_lr": False}
    assert departures(row(steps=1_000_000, anneal_lr=False, lr=0.001)) == laptop
    assert departures(row(settings={"eps": 1e-8, "beta2": 0.9})) == {"settings.eps": 1e-8, "settings.beta2": 0.9}
    assert departures(row(hidden=(256, 256), bounds="fan_in")) == {"hidden": "256,256", "bounds": "fan_in"}
    assert remark(row(scale="laptop")) == "not the paper's setting: lr 0.001, anneal_lr no"


def test_environments_and_games_that_the_paper_does_not_have_are_told() -> None:
    assert remark(row(env="Hopper-v4", method="adam")) == "not the paper's setting: env Hopper-v4"
    assert game(game="Pong", method="adam") == "not the paper's setting: game pong"


def test_the_paper_does_not_say_how_long_its_policies_learn() -> None:
    assert remark(row(steps=5_000_000)) == ""


def test_what_searches_vary_is_left_to_them() -> None:
    assert remark(row(kappa=1.0)) == remark(row(method="adam+l2", decay=0.1)) == ""


def test_a_method_without_a_usual_step_size_is_compared_in_the_rest() -> None:
    assert remark(row(method="sgd+wc", lr=0.1, kappa=1.0)) == ""
    assert departures(row(method="sgd+wc", lr=0.1, kappa=1.0, update_epochs=3)) == {"update_epochs": 3}


def test_a_setting_that_other_methods_have_is_no_departure() -> None:
    same = flat_config(replace(resolve(Config(method="adam")), seed=1).facts())
    assert remark({**same, "settings.beta1": None}) == ""


@pytest.mark.parametrize(
    ("method", "stages"), [("sgd", 1), ("sgd", 2), ("sgd+wc", 1), ("sgd+wc@switch", 2), ("adam", 2)]
)
def test_the_papers_runs_of_warm_starting_depart_in_nothing(method: str, stages: int) -> None:
    assert warm(method=method, stages=stages, variant="paper", seed=3) == ""


def test_scale_and_variant_of_warm_starting_are_told() -> None:
    assert warm(variant="paper", epochs=11) == "not the paper's setting: epochs 11"
    assert warm(variant="paper", kappa=5.0) == ""
    assert warm() == "not the paper's setting: variant default"
    told = warm(scale="laptop")
    assert all(part in told for part in ("variant default", "lr 0.02", "epochs 50", "images 20,000", "width 16"))


def test_a_method_of_warm_starting_without_usual_settings_is_compared_in_the_rest() -> None:
    assert warm(method="rmsprop", lr=0.1, variant="paper", width=8) == "not the paper's setting: width 8"


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_the_papers_runs_of_atari_depart_in_nothing_whatever_is_looked_at(agent: str, ratio: float) -> None:
    looks = {"points": 50, "eval_episodes": 10, "covariance": 32, "covariance_at": (50, 100)}
    assert game(agent=agent, replay_ratio=ratio, game="Seaquest", method="adam", seed=1, **looks) == ""


def test_a_short_run_and_another_suite_are_told() -> None:
    assert game(frames=1_000_000) == "not the paper's setting: frames 1,000,000"
    told = game(suite="minatar", game="asterix")
    assert all(part in told for part in ("suite minatar", "frames 300,000", "num_envs 1", "clip_rewards no"))


def test_below_a_figure_stands_in_what_its_runs_depart_if_that_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def marked(*found: str) -> str:
        monkeypatch.setattr(generic, "remarks", lambda runs: list(found))
        return generic.marked("3 seeds", pl.DataFrame())

    assert marked() == "3 seeds"
    assert marked("not the paper's setting: frames 200,000") == "3 seeds\nnot the paper's setting: frames 200,000"
    assert marked("not the paper's setting: " + "x" * 50) == "3 seeds\nnot the paper's setting"
    assert marked("not the paper's setting: a", "not the paper's setting: b") == "3 seeds\nnot the paper's setting"
