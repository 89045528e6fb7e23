import polars as pl
from photographs import config, photographs

from weightclip.lab.experiments.warm_start.experiment import EXPERIMENT
from weightclip.lab.experiments.warm_start.runs import run_config
from weightclip.lab.experiments.warm_start.schema import METRICS
from weightclip.lab.registry import experiment_of, find_experiment

DATA = photographs()


def test_it_is_found_by_its_name_and_its_problem() -> None:
    assert find_experiment("warm-start") is EXPERIMENT
    assert experiment_of("warm-start") is EXPERIMENT


def test_its_identity_is_the_records() -> None:
    wanted = config("sgd+wc")
    assert EXPERIMENT.identify(wanted, DATA) == run_config(wanted, DATA).identity


def test_every_column_has_a_metric_of_its_experiment() -> None:
    table = run_config(config(), DATA).table
    assert table.columns == ["seed", "epoch", "stage", "samples", *METRICS]
    assert EXPERIMENT.metric("gap").direction == "lower"
    assert EXPERIMENT.score in METRICS


def test_clipping_at_the_switch_needs_two_stages() -> None:
    assert not EXPERIMENT.possible({"method": "sgd+wc@switch", "stages": 1})
    assert EXPERIMENT.possible({"method": "sgd+wc@switch", "stages": 2})
    assert EXPERIMENT.possible({"method": "sgd", "stages": 1})


def test_the_papers_setting_is_of_its_variant() -> None:
    row = {"problem": "warm-start", "method": "sgd+wc", "variant": "paper"}
    assert EXPERIMENT.paper_setting(row) == {"lr": 0.001, "kappa": 10.0}
    assert EXPERIMENT.paper_setting({**row, "variant": "default"}) is None
    assert EXPERIMENT.paper_setting({**row, "method": "adam"}) is None


def test_settings_without_a_field_come_from_tables_too() -> None:
    made = EXPERIMENT.configure("warm-start", {"method": "sgd", "settings.momentum": 0.9})
    assert made.settings == {"momentum": 0.9}


def test_length_is_what_progress_reaches() -> None:
    for stages in (1, 2):
        wanted = config(stages=stages)
        assert EXPERIMENT.length(wanted) == run_config(wanted, DATA).table["samples"][-1]


def test_a_run_is_described_and_summarised() -> None:
    assert "sgd+wc (default variant): lr 0.05, kappa 1" in EXPERIMENT.describe(config("sgd+wc"))
    table = run_config(config(), DATA).table.with_columns(test_accuracy=pl.Series([0.1, 0.2, 0.3, 0.4]))
    assert "test accuracy 20.00% after the first half, 40.00% at the end" in EXPERIMENT.summarise([table])
    assert "after the first half" not in EXPERIMENT.summarise([run_config(config(stages=1), DATA).table])
