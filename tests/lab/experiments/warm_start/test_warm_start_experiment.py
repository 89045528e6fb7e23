from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
from synthetic_images import config, image_data

from weightclip.lab import run
from weightclip.lab.experiment import IncompatibleError, describe, summarize
from weightclip.lab.experiments.warm_start import training
from weightclip.lab.experiments.warm_start.experiment import EXPERIMENT
from weightclip.lab.experiments.warm_start.metrics import METRICS
from weightclip.lab.experiments.warm_start.training import run_config
from weightclip.lab.registry import experiment_of, experiments

DATA = image_data()


def test_the_experiment_is_found_by_name_and_by_problem() -> None:
    assert experiments()["warm-start"] is EXPERIMENT
    assert experiment_of("warm-start") is EXPERIMENT


def test_the_identity_matches_the_record() -> None:
    wanted = config("sgd+wc")
    assert EXPERIMENT.identify(wanted, DATA) == run_config(wanted, DATA).identity


def test_every_column_has_a_metric_of_its_experiment() -> None:
    table = run_config(config(), DATA).table
    assert table.columns == ["seed", "epoch", "stage", "samples", *METRICS]
    assert EXPERIMENT.schema.metric("gap").direction == "lower"
    assert EXPERIMENT.schema.score in METRICS


def test_clipping_at_the_switch_requires_two_stages() -> None:
    with pytest.raises(IncompatibleError, match="stages: got 1, but sgd\\+wc@switch acts when the second stage starts"):
        EXPERIMENT.configure("warm-start", {"method": "sgd+wc@switch", "stages": 1})
    for method, stages in (("sgd+wc@switch", 2), ("sgd", 1)):
        assert EXPERIMENT.configure("warm-start", {"method": method, "stages": stages}).stages == stages


def test_the_papers_setting_is_for_its_variant() -> None:
    row = {"method": "sgd+wc", "variant": "paper"}

    def setting(**changes: Any) -> Mapping[str, Any] | None:
        return EXPERIMENT.compare_with_paper(EXPERIMENT.configure("warm-start", {**row, **changes}))[0]

    assert setting() == {"lr": 0.001, "kappa": 10.0}
    assert setting(variant="default") is None
    assert setting(method="adam", lr=0.001) is None


def test_settings_without_a_field_are_read_from_tables() -> None:
    made = EXPERIMENT.configure("warm-start", {"method": "sgd", "settings.momentum": 0.9})
    assert made.settings == {"momentum": 0.9}


def test_progress_ends_at_the_length_of_the_run() -> None:
    for stages in (1, 2):
        wanted = config(stages=stages)
        assert EXPERIMENT.length(wanted) == run_config(wanted, DATA).table["samples"][-1]


def test_a_run_is_described_and_summarized() -> None:
    assert describe(EXPERIMENT, config("sgd+wc")) == "sgd+wc: lr 0.05, kappa 1; stages 2; 96 images"
    assert "variant paper" in describe(EXPERIMENT, config("sgd+wc", variant="paper"))
    table = run_config(config(), DATA).table.with_columns(test_accuracy=pl.Series([0.1, 0.2, 0.3, 0.4]))
    expected = "test accuracy 10.00% in the first epoch, 40.00% in the last of 4, 25.00% on average"
    assert summarize(EXPERIMENT.schema, [table]) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda"}, "device: got 'cuda', but PyTorch finds no GPU"),
        ({"device": "cpu", "precision": "bfloat16"}, "precision: got 'bfloat16', which takes 2.0 times as long here"),
    ],
)
def test_device_and_precision_are_checked_before_data_is_loaded(
    settings: Mapping[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("weightclip.lab.device.bfloat16_gain", lambda threads: 0.5)
    monkeypatch.setattr(training, "load", lambda *_: pytest.fail("the data was loaded"))
    with pytest.raises(ValueError, match=message):
        run("warm-start", progress=False, **settings)
