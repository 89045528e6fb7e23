import pytest
from tiny_data import tiny_dataset

from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.experiments.streaming.training import run_config

DATA = tiny_dataset()
SMALL = {"method": "sgd+wc", "steps": 40, "period": 20, "hidden": (5,), "backend": "reference"}


def test_settings_without_a_field_have_a_prefix() -> None:
    assert EXPERIMENT.settings("input-permuted-mnist", "adam+wc") == [
        "lr",
        "kappa",
        "settings.beta1",
        "settings.beta2",
        "settings.eps",
    ]
    config = EXPERIMENT.configure("input-permuted-mnist", {"method": "adam", "settings.beta1": 0.5})
    assert config.settings["beta1"] == 0.5


def test_an_unknown_field_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"settings: got 'kapa'.*did you mean 'kappa'"):
        EXPERIMENT.configure("input-permuted-mnist", {"kapa": 1.0})


def test_the_identity_matches_the_record() -> None:
    config = EXPERIMENT.configure("input-permuted-mnist", SMALL)
    assert EXPERIMENT.identify(config, DATA) == run_config(config, DATA).identity
