"""Records and tables of format 2, written by version 0.1."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from weightclip._renamed import new_field
from weightclip.lab.analysis.best import best_settings, paper_setting
from weightclip.lab.analysis.setups import columns_of, remarks
from weightclip.lab.records.columns import LAST, schema_of
from weightclip.lab.records.record import read_record
from weightclip.lab.records.store import failures, find_record, relative_path
from weightclip.lab.records.table import load
from weightclip.lab.registry import experiments
from weightclip.lab.report import gather, render

ROOT = Path(__file__).parents[3]
STORE = ROOT / "tests" / "fixtures" / "records_format_2"
RESULTS = ROOT / "docs" / "results"

SMALL = {"steps": 3000, "period": 1000, "hidden": "40,20"}

EXPECTED: dict[str, tuple[str, dict[str, float] | None, dict[str, Any], float]] = {
    "7f992bfd2b89": ("streaming", {"lr": 0.01, "kappa": 4.0}, SMALL, 0.571),
    "f57d1b034fae": ("streaming", {"lr": 0.01, "kappa": 2.0}, SMALL, 0.053),
    "07ae85fea161": (
        "policy-collapse",
        None,
        {"env": "Hopper-v4", "epochs": 2, "rollout": 256, "minibatches": 4, "hidden": "8,8"},
        18.667088450090986,
    ),
    "d0c4f4a5db77": (
        "replay-ratio",
        None,
        {
            "suite": "minatar",
            "frames": 3000,
            "environments": 1,
            "sticky": 0.1,
            "warm_up": 1000,
            "epsilon_steps": 30000,
            "clip_rewards": False,
        },
        1.0,
    ),
    "7283821fc8bc": (
        "warm-start",
        None,
        {"lr": 0.02, "variant": "default", "epochs": 2, "images": 400, "test_images": 200, "width": 4},
        0.07,
    ),
}
"""Identity -> experiment, the paper's setting, deviations and the last score, with the names of version 0.1."""

TABLES = {
    "evidence/ppo_cleanrl.parquet": {"env HalfCheetah-v4", "env Hopper-v4", None},
    "evidence/streaming_20_seeds.parquet": {None},
    "policy/runs.parquet": {None},
    "policy/laptop_runs.parquet": {"lr 0.001, env Hopper-v4, anneal no"},
    "replay/atari/runs.parquet": {"frames 200,000"},
    "replay/minatar_runs.parquet": {
        "suite minatar, frames 300,000, environments 1, sticky 0.1, warm_up 1,000, epsilon_steps 30,000, "
        "clip_rewards no"
    },
    "streaming_figures/runs.parquet": {None, "steps 400,000"},
    "warm_start/laptop_runs.parquet": {
        "lr 0.02, variant default, epochs 50, images 20,000, test_images 2,000, width 16"
    },
    "warm_start/paper_runs.parquet": {"epochs 11"},
}
"""Committed tables of version 0.1 -> the deviations of their runs, with the names of version 0.1."""


def renamed(experiment: str, text: str | None) -> str | None:
    """Deviations as text, with the new names of their fields."""
    if text is None:
        return None
    parts = (part.partition(" ") for part in text.split(", "))
    return ", ".join(f"{new_field(experiment, name)} {value}" for name, _, value in parts)


def record_of(identity: str) -> Path:
    (path,) = STORE.rglob(f"*_{identity}.parquet")
    return path


@pytest.mark.parametrize("identity", EXPECTED)
def test_a_record_gets_a_schema_and_a_comparison_with_the_paper(identity: str) -> None:
    experiment, setting, deviations, score = EXPECTED[identity]
    record = read_record(record_of(identity))
    assert (record.experiment, record.identity) == (experiment, identity)
    assert record.schema == experiments()[experiment].schema
    assert set(record.config) <= set(record.schema.fields)
    assert record.paper_setting == setting
    assert record.deviations == {new_field(experiment, name): value for name, value in deviations.items()}
    assert record.resumed is None  # not contained in these records
    assert record.table[record.schema.score][-1] == pytest.approx(score)


@pytest.mark.parametrize("identity", ["7f992bfd2b89", "f57d1b034fae", "07ae85fea161"])
def test_a_finished_run_is_found_in_its_store(identity: str) -> None:
    """Streaming and PPO records stay at their paths."""
    record = read_record(record_of(identity))
    known = {name: value for name, value in record.config.items() if value is not None}
    config = experiments()[record.experiment].configure(known.pop("problem"), known)
    path = relative_path(record.schema, config)
    assert STORE / f"{path}_{identity}.parquet" == record_of(identity)
    cost = find_record(STORE, SimpleNamespace(identity=identity, relative_path=path))
    assert cost is not None
    assert cost.seconds == record.seconds


def test_the_parts_of_a_record_are_read() -> None:
    record = read_record(record_of("07ae85fea161"))
    assert record.tables["episodes"].columns == ["samples", "return", "length"]
    assert {name: array.shape for name, array in record.arrays.items()} == {
        "mean": (11,),
        "var": (11,),
        "weights": (375,),
    }
    assert len(load(STORE, table="covariance")) == 32**2


def test_a_store_becomes_one_tidy_table() -> None:
    lines: list[str] = []
    table = load(STORE, on_event=lines.append)
    assert lines == []
    assert set(table["identity"]) == set(EXPECTED)
    for part in table.partition_by("experiment"):
        experiment = part["experiment"][0]
        assert schema_of(part) == experiments()[experiment].schema
        assert part["resumed"].null_count() == len(part)
    by_identity = dict(table.unique("identity").select("identity", "paper_setting").iter_rows())
    assert {name: text and json.loads(text) for name, text in by_identity.items()} == {
        name: setting for name, (_, setting, _, _) in EXPECTED.items()
    }
    assert "not the paper's setting: steps 3,000, period 1,000, hidden 40,20" in remarks(table)


def test_a_record_equals_its_saved_table() -> None:
    """Records and tables of version 0.1 are upgraded by different functions."""
    record = read_record(record_of("d0c4f4a5db77"))
    saved = load(RESULTS / "replay" / "minatar_runs.parquet")
    assert schema_of(saved) == record.schema
    old = ["suite", "environments", "sticky", "warm_up", "epsilon_steps", "clip_rewards"]
    same = [new_field(record.experiment, name) for name in old]
    row = saved.row(0, named=True)
    assert {name: row[name] for name in same} == {name: record.deviations[name] for name in same}


def test_a_report_of_old_records_can_be_written() -> None:
    content = gather(STORE)
    assert content.facts["runs"] == str(len(EXPECTED))
    assert [part.name for part in content.parts] == sorted(experiments())
    assert "not the paper" in render(content)


@pytest.mark.parametrize("name", TABLES)
def test_a_committed_table_gets_schema_deviations_and_paper_setting(name: str) -> None:
    raw = pl.read_parquet(RESULTS / name)
    assert "schema" not in raw.columns
    lines: list[str] = []
    table = load(RESULTS / name, on_event=lines.append)
    assert lines == []
    (experiment,) = set(table["experiment"])
    assert schema_of(table) == experiments()[experiment].schema
    assert set(table["deviations"]) == {renamed(experiment, text) for text in TABLES[name]}
    assert [one for one in table.columns if one in LAST] == list(LAST)
    measured = [one for one in raw.columns[raw.columns.index("identity") + 1 :] if raw[one].count()]
    assert table.columns[table.columns.index("identity") + 1 :] == measured
    assert_frame_equal(table.select("identity", *measured), raw.select("identity", *measured))


def test_best_settings_of_an_old_table_are_compared_with_the_papers() -> None:
    table = load(RESULTS / "evidence" / "streaming_20_seeds.parquet")
    best = best_settings(table)
    assert best["same"].all()
    assert {row["method"]: paper_setting(row) for row in best.iter_rows(named=True)} == dict(
        experiments()["streaming"].presets()["best"]["input-permuted-mnist"]
    )


def write_format_2(path: Path, table: pl.DataFrame, experiment: str, config: dict[str, Any]) -> None:
    facts = {
        "format": 2,
        "experiment": experiment,
        "identity": "0123456789ab",
        "config": config,
        "data": {"name": "x", "kind": "directory", "checksum": "y", "official": True},
        "seconds": 1.0,
        "rules": None,
        "versions": {},
        "platform": "here",
    }
    table.write_parquet(path, metadata={"weightclip": json.dumps(facts)})


def test_without_its_experiment_a_record_keeps_its_columns(tmp_path: Path) -> None:
    table = pl.DataFrame({"seed": [0, 0], "samples": [1, 2], "height": [0.5, 0.75]})
    config = {"problem": "hill", "method": "plain", "depth": 2, "seed": 0}
    write_format_2(tmp_path / "x_0123456789ab.parquet", table, "gone", config)
    record = read_record(tmp_path / "x_0123456789ab.parquet")
    assert (record.paper_setting, record.deviations) == (None, {})
    assert list(record.schema.fields) == ["problem", "method", "seed", "depth"]
    loaded = load(tmp_path)
    assert loaded.select("experiment", "method", "depth", "height").rows() == [
        ("gone", "plain", 2, 0.5),
        ("gone", "plain", 2, 0.75),
    ]
    assert columns_of(loaded).setup == ("experiment", "problem", "depth", "checksum")


def test_a_configuration_that_is_no_longer_accepted_is_not_compared(tmp_path: Path) -> None:
    table = pl.DataFrame({"seed": [0], "task": [1], "samples": [10], "accuracy": [0.5]})
    config = {"problem": "input-permuted-mnist", "method": "an old method", "lr": 0.1, "seed": 0}
    write_format_2(tmp_path / "x_0123456789ab.parquet", table, "streaming", config)
    loaded = load(tmp_path)
    assert loaded.select("deviations", "paper_setting", "accuracy").rows() == [(None, None, 0.5)]
    assert schema_of(loaded) == experiments()["streaming"].schema


def test_notes_of_failed_runs_are_read(tmp_path: Path) -> None:
    note = {
        "place": "input-permuted-mnist/adam/lr0.001_seed7",
        "identity": "0123456789ab",
        "experiment": "streaming",
        "config": {"method": "adam"},
        "reason": "MemoryError: no memory",
        "traceback": "",
        "when": "2024-05-01T12:00:00+00:00",
    }
    (tmp_path / "x_0123456789ab.failed.json").write_text(json.dumps(note))
    (found,) = failures(tmp_path)
    assert (found.relative_path, found.reason) == (note["place"], note["reason"])
