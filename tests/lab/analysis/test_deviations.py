from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from lab.records.synthetic_records import make_record, tidy
from weightclip.lab.plotting.captions import caption
from weightclip.lab.registry import experiments
from weightclip.lab.text import settings_text


def deviations(experiment: str, problem: str = "", **given: Any) -> Mapping[str, Any]:
    """Return the settings of a run that differ from the paper's."""
    found = experiments()[experiment]
    return found.compare_with_paper(found.configure(problem or found.schema.problems[0], given))[1]


def ppo(**given: Any) -> Mapping[str, Any]:
    return deviations("policy-collapse", **given)


def warm(**given: Any) -> str:
    return settings_text(deviations("warm-start", **given))


def game(**given: Any) -> str:
    return settings_text(deviations("replay-ratio", **given))


@pytest.mark.parametrize("method", ["adam", "adam+wc", "adam+sp", "adam-equal-betas"])
@pytest.mark.parametrize("env", ["Ant-v4", "Walker2d-v4"])
def test_the_papers_runs_do_not_deviate(env: str, method: str) -> None:
    assert ppo(env=env, method=method, seed=3) == {}


def test_deviations_do_not_depend_on_how_settings_are_given() -> None:
    assert ppo(scale="laptop") == {"lr": 0.001, "anneal_lr": False}
    assert ppo(steps=1_000_000, anneal_lr=False, lr=0.001) == ppo(scale="laptop")
    assert ppo(settings={"eps": 1e-8, "beta2": 0.9}) == {"settings.eps": 1e-8, "settings.beta2": 0.9}
    assert ppo(hidden=(256, 256), bounds="fan_in") == {"hidden": "256,256", "bounds": "fan_in"}


def test_environments_and_games_missing_from_the_paper_deviate() -> None:
    assert ppo(env="Hopper-v4", method="adam") == {"env": "Hopper-v4"}
    assert game(game="Pong", method="adam") == "game pong"


def test_the_length_of_ppo_runs_is_not_compared() -> None:
    assert ppo(steps=5_000_000) == {}


def test_searched_settings_are_not_compared() -> None:
    assert ppo(kappa=1.0) == ppo(method="adam+l2", decay=0.1) == {}


def test_only_the_other_settings_of_a_method_missing_from_the_paper_are_compared() -> None:
    assert ppo(method="sgd+wc", lr=0.1, kappa=1.0) == {}
    assert ppo(method="sgd+wc", lr=0.1, kappa=1.0, update_epochs=3) == {"update_epochs": 3}


def test_short_streaming_runs_deviate_only_on_the_papers_problems() -> None:
    assert deviations("streaming", "input-permuted-mnist", method="adam+wc") == {}
    assert deviations("streaming", "input-permuted-mnist", method="adam+wc", backend="reference") == {}
    short = deviations("streaming", "label-permuted-emnist", method="sgd+l2+wc", decay=0.1, steps=400_000, hidden=(50,))
    assert short == {"steps": 400_000, "hidden": "50"}
    assert deviations("streaming", "stationary-mnist", method="sgd", lr=0.1, steps=5) == {}


@pytest.mark.parametrize(
    ("method", "stages"), [("sgd", 1), ("sgd", 2), ("sgd+wc", 1), ("sgd+wc@switch", 2), ("adam", 2)]
)
def test_the_papers_runs_of_warm_starting_do_not_deviate(method: str, stages: int) -> None:
    assert warm(method=method, stages=stages, variant="paper", seed=3) == ""


def test_scale_and_variant_of_warm_starting_are_reported() -> None:
    assert warm(variant="paper", epochs=11) == "epochs 11"
    assert warm(variant="paper", kappa=5.0) == ""
    assert warm() == "variant default"
    reported = warm(scale="laptop")
    assert all(part in reported for part in ("variant default", "lr 0.02", "epochs 50", "images 20,000", "width 16"))


def test_only_the_other_settings_of_a_warm_start_method_without_defaults_are_compared() -> None:
    assert warm(method="rmsprop", lr=0.1, variant="paper", width=8) == "width 8"


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_the_papers_atari_runs_have_no_deviations(agent: str, ratio: float) -> None:
    looks = {"points": 50, "eval_episodes": 10, "covariance": 32, "covariance_at": (50, 100)}
    assert game(agent=agent, replay_ratio=ratio, game="Seaquest", method="adam", seed=1, **looks) == ""


def test_a_short_run_and_another_suite_are_reported() -> None:
    assert game(frames=1_000_000) == "frames 1,000,000"
    reported = game(suite="minatar", game="asterix")
    assert all(part in reported for part in ("suite minatar", "frames 300,000", "num_envs 1", "clip_rewards no"))


def test_a_figure_names_the_deviations_of_its_runs() -> None:
    def text(*found: str | None) -> str:
        runs = tidy(*(make_record(seed=seed) for seed in range(len(found))))
        names = dict(zip(runs["identity"].unique(maintain_order=True), found))
        deviations = pl.Series("deviations", [names[one] for one in runs["identity"]], dtype=pl.String)
        return caption("3 seeds", runs=runs.with_columns(deviations))

    assert text(None, None) == "3 seeds"
    assert text(None, "frames 200,000") == "3 seeds\nnot the paper's setting: frames 200,000"
    assert text("x" * 80) == f"3 seeds\nnot the paper's setting: {'x' * 80}"
    assert text("a", "b") == "3 seeds\nnot the paper's setting: a; b"
