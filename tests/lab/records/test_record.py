import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars as pl
import pyarrow.parquet
import pytest
from polars.testing import assert_frame_equal

from weightclip.lab.records.record import Record, identity, read_record, write_record
from weightclip.lab.records.schema import Metric, Schema, by_name

SCHEMA = Schema("streaming", "task", "loss", metrics=by_name(Metric("loss", "Loss", "", direction="lower")))
CONFIG = {"problem": "input-permuted-mnist", "method": "adam+wc", "kappa": math.inf, "seed": 3, "hidden": [300, 150]}


@pytest.fixture
def record() -> Record:
    table = pl.DataFrame({"seed": [3, 3], "task": [1, 2], "loss": [0.5, math.nan], "rank_1": [300, None]})
    data = {"name": "mnist", "kind": "bundled", "location": "10,000 digits", "checksum": "abc", "official": False}
    return Record(SCHEMA, "0123456789ab", CONFIG, table, data, seconds=1.5, rules="RULE = 'x'\n")


def test_a_record_is_restored(record: Record, tmp_path: Path) -> None:
    write_record(record, tmp_path / "run.parquet")
    back = read_record(tmp_path / "run.parquet")
    assert_frame_equal(back.table, record.table)
    for field in dataclasses.fields(Record):
        if field.name != "table":  # and no others
            assert getattr(back, field.name) == getattr(record, field.name)


@pytest.fixture
def with_parts(record: Record) -> Record:
    episodes = pl.DataFrame({"episode": [1, 2, 3], "return": [0.5, 1.5, 2.5]})
    return dataclasses.replace(record, tables={"episodes": episodes}, arrays={"heatmap": np.eye(3, dtype=np.float32)})


def test_additional_tables_and_arrays_are_restored(with_parts: Record, tmp_path: Path) -> None:
    path = tmp_path / "lr0.1_0123456789ab.parquet"
    write_record(with_parts, path)
    assert sorted(found.name.removeprefix("lr0.1_0123456789ab.") for found in tmp_path.iterdir()) == [
        "episodes.parquet",
        "heatmap.npy",
        "parquet",
    ]
    back = read_record(path)
    assert_frame_equal(back.tables["episodes"], with_parts.tables["episodes"])
    assert back.arrays["heatmap"].dtype == np.float32
    assert (back.arrays["heatmap"] == np.eye(3)).all()


@pytest.mark.parametrize("part", ["episodes.parquet", "heatmap.npy"])
@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_missing_or_changed_part_is_detected(with_parts: Record, tmp_path: Path, part: str, damage: str) -> None:
    path = tmp_path / "run.parquet"
    write_record(with_parts, path)
    file = tmp_path / f"run.{part}"
    if damage == "gone":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.parquet: the file is damaged"):
        read_record(path)


def test_a_record_contains_its_provenance(record: Record) -> None:
    assert {"python", "weightclip", "torch", "numpy", "numba", "polars"} == set(record.versions)
    assert record.platform


def test_other_readers_of_parquet_see_the_table_and_the_metadata(record: Record, tmp_path: Path) -> None:
    path = str(tmp_path / "run.parquet")
    write_record(record, path)
    assert pandas.read_parquet(path)["task"].tolist() == [1, 2]
    assert duckdb.sql(f"select sum(task) from '{path}'").fetchall() == [(3,)]
    assert pyarrow.parquet.read_table(path)["rank_1"].to_pylist() == [300, None]

    ((value,),) = duckdb.sql(f"select value from parquet_kv_metadata('{path}') where key = 'weightclip'").fetchall()
    seen_by = [
        json.loads(pyarrow.parquet.read_metadata(path).metadata[b"weightclip"]),
        json.loads(value),
        json.loads(pl.read_parquet_metadata(path)["weightclip"]),
    ]
    assert seen_by[0] == seen_by[1] == seen_by[2]
    assert seen_by[0]["config"] == {**CONFIG, "kappa": "inf"}  # JSON has no infinity
    assert seen_by[0]["data"]["official"] is False


@pytest.mark.parametrize("damage", ["empty", "half", "no end", "footer", "text"])
def test_a_damaged_file_raises_one_clear_error(record: Record, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run.parquet"
    write_record(record, path)
    whole = path.read_bytes()
    footer = whole[:-8] + b"\xff\xff\xff\xff" + whole[-4:]
    damaged = {"empty": b"", "half": whole[: len(whole) // 2], "no end": whole[:-3], "footer": footer, "text": b"hello"}
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"run\.parquet: the file is damaged") as raised:
        read_record(path)
    assert "\n" not in str(raised.value)


def test_a_flipped_bit_never_silently_changes_a_number(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    write_record(record, path)
    whole = path.read_bytes()
    noticed = 0
    for position in range(4, len(whole), 7):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            back = read_record(path)
        except ValueError:
            noticed += 1
        else:  # in bytes without content, such as statistics, padding and the name of the writer
            assert_frame_equal(back.table, record.table)
            assert back.config == record.config
    assert noticed > len(whole) // 7 * 0.5


def test_an_error_of_the_program_is_not_reported_as_damage(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged record is repeated and overwritten, so a bug in reading must not be reported as damage."""
    write_record(record, tmp_path / "run.parquet")

    def defective(found: object) -> Schema:
        raise TypeError("defect")

    monkeypatch.setattr(Schema, "from_dict", defective)
    with pytest.raises(TypeError, match="defect"):
        read_record(tmp_path / "run.parquet")


def test_a_foreign_parquet_file_is_not_a_record(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=r"other\.parquet: it is not a record of weightclip"):
        read_record(tmp_path / "other.parquet")


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "none.parquet")


def test_the_identity_depends_only_on_content() -> None:
    name = identity("streaming", CONFIG, "abc")
    assert len(name) == 12
    assert identity("streaming", dict(reversed(CONFIG.items())), "abc") == name
    assert identity("streaming", {**CONFIG, "hidden": (300, 150)}, "abc") == name


@pytest.mark.parametrize(
    ("config", "checksum", "rules"),
    [({"seed": 4}, "abc", None), ({"kappa": 1.0}, "abc", None), ({}, "abd", None), ({}, "abc", "RULE = 'x'\n")],
)
def test_every_option_that_changes_the_numbers_changes_the_identity(
    config: dict[str, Any], checksum: str, rules: str | None
) -> None:
    assert identity("streaming", {**CONFIG, **config}, checksum, rules) != identity("streaming", CONFIG, "abc")


def test_rules_are_identified_by_their_source_not_their_path() -> None:
    assert identity("streaming", {**CONFIG, "rules": "a.py"}, "abc", "x") == identity(
        "streaming", {**CONFIG, "rules": "b.py"}, "abc", "x"
    )
