import re

import pytest

from weightclip.lab.experiments.ppo.config import Config, presets, resolve


def test_missing_fields_default_to_the_paper() -> None:
    walker, ant = (resolve(Config(env=env)) for env in ("Walker2d-v4", "Ant-v4"))
    assert (walker.lr, walker.kappa, walker.settings) == (0.0003, 3.0, {"eps": 1e-5})
    assert ant.kappa == 5.0
    assert (walker.steps, walker.update_epochs, walker.anneal_lr, walker.iterations) == (4882 * 2048, 10, True, 4882)
    assert resolve(Config(method="adam")).kappa is None


def test_the_laptop_scale_has_a_separate_schedule() -> None:
    config = resolve(Config(env="Hopper-v4", scale="laptop"))
    assert (config.anneal_lr, config.step_size(3)) == (False, config.lr)
    assert config.steps < 10_000_000


@pytest.mark.parametrize(("scale", "kappas"), [("paper", [5.0, 5.0, 3.0]), ("laptop", [1.0, 1.0, 1.0])])
def test_a_scale_has_separate_settings_and_the_papers_environments(scale: str, kappas: list[float]) -> None:
    environments = ("Ant-v4", "Ant-v5", "Walker2d-v4")
    assert [resolve(Config(env=env, scale=scale)).kappa for env in environments] == kappas


def test_settings_match_the_papers_tables() -> None:
    assert presets()["grid"] == {"seeds": 30, "lr": [0.0003], "kappa": [1.0, 3.0, 5.0]}
    assert presets("Ant-v4")["best"]["policy-collapse"]["adam+wc"]["kappa"] == 5.0
    assert presets("Humanoid-v4")["best"]["policy-collapse"]["adam+wc"]["kappa"] == 3.0


def test_equal_betas_are_a_method() -> None:
    config = resolve(Config(method="adam-equal-betas+wc", settings={"beta1": 0.95}))
    assert config.method == "adam-equal-betas+wc"
    assert config.settings == {"eps": 1e-5, "beta1": 0.95, "beta2": 0.95}
    second = resolve(Config(method="adam-equal-betas", settings={"beta2": 0.9}))
    assert second.settings == {"eps": 1e-5, "beta1": 0.9, "beta2": 0.9}


def test_equal_betas_match_dohare_et_al() -> None:
    assert resolve(Config(method="adam-equal-betas")).settings == {"eps": 1e-5, "beta1": 0.99, "beta2": 0.99}


def test_only_clipping_has_a_bounds_setting() -> None:
    assert resolve(Config()).bounds == "paper"
    assert resolve(Config(bounds="fan_in")).bounds == "fan_in"
    plain, same = resolve(Config(method="adam")), resolve(Config(method="adam", bounds="fan_in"))
    assert plain.facts() == same.facts()


def test_other_methods_have_settings() -> None:
    config = resolve(Config(method="adam+l2init+wc"))
    assert (config.decay, config.kappa) == (0.0001, 5.0)
    assert resolve(Config(method="madam")).settings == {}


@pytest.mark.parametrize("method", ["adam-equal-beta", "adam-equalbetas+wc"])
def test_a_misspelled_method_suggests_the_nearest_one(method: str) -> None:
    with pytest.raises(ValueError, match="did you mean 'adam-equal-betas'"):
        resolve(Config(method=method))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"method": "adam-equal-betas", "settings": {"beta1": 0.9, "beta2": 0.5}},
            "settings: got beta1=0.9 and beta2=0.5, but with adam-equal-betas they are equal",
        ),
        ({"method": "adamm"}, "method: got 'adamm'"),
        ({"method": "adam", "kappa": 1.0}, "kappa: got 1.0, but adam has no such setting"),
        ({"settings": {"momentum": 1}}, "momentum: got 1, but adam+wc has no such setting; it has lr, kappa, beta1"),
        ({"bounds": "default"}, "bounds: got 'default', expected one of paper, fan_in"),
        ({"steps": 100}, "steps: got 100, expected at least the 2048 of a rollout"),
        ({"num_minibatches": 30}, "num_minibatches: got 30, expected a divisor of the rollout's 2048 steps"),
        ({"num_minibatches": 2048}, "num_minibatches: got 2048, expected a divisor"),
        ({"gamma": 1.5}, "gamma: got 1.5, expected a number from 0 to 1"),
        ({"clip_coef": 0.0}, "clip_coef: got 0.0"),
        ({"hidden": (64, 0)}, "hidden: got 0"),
        ({"env": 3}, "env: got 3, expected a name"),
        ({"hidden": 64}, "hidden: got 64, expected whole numbers, such as (64, 64)"),
        ({"anneal_lr": "no"}, "anneal_lr: got 'no', expected True or False"),
        ({"problem": "x"}, "problem: got 'x'"),
        ({"scale": "huge"}, "scale: got 'huge'"),
    ],
)
def test_errors_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(Config(**given))  # type: ignore[arg-type]
