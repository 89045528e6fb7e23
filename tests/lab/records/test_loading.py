import dataclasses
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from lab.records.synthetic_records import digest, make_record, store, tidy
from weightclip.lab.records import record as record_module
from weightclip.lab.records.columns import LAST
from weightclip.lab.records.table import NoTableError, load

EPISODES = pl.DataFrame({"episode": [1, 2, 3], "return": [0.5, 1.5, 2.5]})


def lines_of(*paths: Path, **options: Any) -> tuple[pl.DataFrame, list[str]]:
    lines: list[str] = []
    return load(*paths, on_event=lines.append, **options), lines


def test_a_store_becomes_one_tidy_table(tmp_path: Path) -> None:
    one = make_record(settings={"beta1": 0.9}, kappa=math.inf)
    two = make_record((0.25,), method="adam", lr=0.01, official=False)
    store(tmp_path, one, two)
    table, lines = lines_of(tmp_path)
    assert lines == []
    assert table.columns[:4] == ["experiment", "problem", "method", "seed"]
    assert table.columns[-13:-3] == list(LAST)
    assert table.columns[-3:] == ["task", "samples", "accuracy"]
    assert table.select("method", "lr", "hidden", "kappa", "settings.beta1", "official", "task", "accuracy").rows() == [
        ("adam", 0.01, "300,150", None, None, False, 1, 0.25),
        ("sgd", 0.001, "300,150", math.inf, 0.9, True, 1, 0.5),
        ("sgd", 0.001, "300,150", math.inf, 0.9, True, 2, 0.75),
    ]
    assert table["identity"].to_list() == [two.identity, one.identity, one.identity]
    assert table["decay"].null_count() == 3


def test_synthetic_tables_equal_loaded_ones(tmp_path: Path) -> None:
    records = [make_record(seed=seed, columns={"rank_1": [3, None]}) for seed in range(3)]
    store(tmp_path, *records)
    assert_frame_equal(load(tmp_path), tidy(*records), check_row_order=False, check_column_order=False)


def test_runs_with_different_metrics_are_combined_in_one_table(tmp_path: Path) -> None:
    store(tmp_path, make_record(columns={"loss": [1.0, 2.0]}), make_record((0.5,), seed=1, columns={"rank_1": [7]}))
    table = load(tmp_path).sort("seed", "task")
    assert table["loss"].to_list() == [1.0, 2.0, None]
    assert table["rank_1"].to_list() == [None, None, 7]


def test_an_experiment_without_problems_is_its_own_problem(tmp_path: Path) -> None:
    record = make_record(experiment="toy")
    config = {name: value for name, value in record.config.items() if name != "problem"}
    store(tmp_path, dataclasses.replace(record, config=config))
    assert load(tmp_path)["problem"].to_list() == ["toy", "toy"]


def test_custom_rules_are_identified_by_a_hash_and_not_a_path(tmp_path: Path) -> None:
    store(tmp_path, make_record(method="lion", rules="RULE = 1\n"))
    assert set(load(tmp_path)["rules"]) == {digest("RULE = 1\n")}


def test_a_column_named_like_a_field_of_the_configuration_keeps_its_numbers(tmp_path: Path) -> None:
    store(tmp_path, make_record(columns={"period": [3, 4]}))
    assert load(tmp_path).select("period", "table.period").rows() == [(10, 3), (10, 4)]


@pytest.mark.parametrize("folder", ["with space", "a[b]*?", "100%20é#"])
def test_records_are_loaded_from_any_directory(tmp_path: Path, folder: str) -> None:
    paths = store(tmp_path / folder, make_record(), make_record(seed=1))
    assert load(tmp_path / folder).height == 4
    assert load(str(paths[0])).height == 2


def test_a_duplicate_run_counts_once(tmp_path: Path) -> None:
    store(tmp_path / "a", make_record(), make_record(seed=1))
    store(tmp_path / "b", make_record(), make_record(seed=2))
    table = load(tmp_path / "a", tmp_path / "b", tmp_path)
    assert table.select("seed", "task").sort("seed", "task").rows() == [(s, t) for s in (0, 1, 2) for t in (1, 2)]


def test_additional_tables_are_read_on_request(tmp_path: Path) -> None:
    with_table = [make_record(seed=seed, tables={"episodes": EPISODES}) for seed in (0, 1)]
    store(tmp_path, *with_table, make_record(seed=2))
    table, lines = lines_of(tmp_path)
    assert (table.height, lines) == (6, [])
    episodes, lines = lines_of(tmp_path, table="episodes")
    assert episodes.sort("seed", "episode").select("seed", "episode", "return").rows() == [
        (seed, episode, value) for seed in (0, 1) for episode, value in EPISODES.iter_rows()
    ]
    assert lines == []
    with pytest.raises(ValueError, match=r"table: got 'episode', expected one of episodes; did you mean 'episodes'"):
        load(tmp_path, table="episode")


def test_missing_additional_tables_are_reported(tmp_path: Path) -> None:
    store(tmp_path, make_record())
    with pytest.raises(ValueError, match="table: got 'episodes', but no run has additional tables"):
        load(tmp_path, table="episodes")


def test_saved_main_and_additional_tables_are_distinguished(tmp_path: Path) -> None:
    records = [make_record(seed=seed, tables={"episodes": EPISODES}) for seed in (0, 1)]
    store(tmp_path / "store", *records)
    main, further = load(tmp_path / "store"), load(tmp_path / "store", table="episodes")
    saved = tmp_path / "saved"
    saved.mkdir()
    main.write_parquet(saved / "runs.parquet")
    with pytest.raises(NoTableError, match="table: got 'episodes', but no run has additional tables"):
        load(saved, table="episodes")
    further.write_parquet(saved / "episodes.parquet")
    assert_frame_equal(load(saved), main)
    assert_frame_equal(load(saved, table="episodes"), further)
    store(tmp_path / "more", make_record(seed=2))  # without the additional table
    assert set(load(saved, tmp_path / "more")["seed"]) == {0, 1, 2}
    assert_frame_equal(load(saved, tmp_path / "more", table="episodes"), further)


def test_a_changed_additional_table_is_reported(tmp_path: Path) -> None:
    paths = store(tmp_path, *(make_record(seed=seed, tables={"episodes": EPISODES}) for seed in (0, 1)))
    part = record_module.part_path(paths[0], "episodes.parquet")
    EPISODES.with_columns(pl.col("return") + 1).write_parquet(part)
    episodes, lines = lines_of(tmp_path, table="episodes")
    assert set(episodes["seed"]) == {1}
    assert lines == [f"{part}: skipped: a part changed after it was written"]


def damaged(kind: str, whole: bytes) -> bytes:
    footer = whole[:-8] + b"\xff\xff\xff\xff" + whole[-4:]
    flipped = whole[:20] + bytes([whole[20] ^ 4]) + whole[21:]
    return {"empty": b"", "half": whole[: len(whole) // 2], "footer": footer, "text": b"hello", "flipped": flipped}[
        kind
    ]


@pytest.mark.parametrize("kind", ["empty", "half", "footer", "text", "flipped"])
def test_a_damaged_record_is_reported_and_skipped(tmp_path: Path, kind: str) -> None:
    paths = store(tmp_path, make_record(), make_record(seed=1), make_record(seed=2))
    paths[1].write_bytes(damaged(kind, paths[1].read_bytes()))
    table, lines = lines_of(tmp_path)
    assert set(table["seed"]) == {0, 2}
    assert len(lines) == 1
    assert lines[0].startswith(f"{paths[1]}: skipped: it ")
    assert "\n" not in lines[0]


def test_a_flipped_bit_never_silently_changes_a_number_or_affects_other_records(tmp_path: Path) -> None:
    _, bad = store(tmp_path, *(make_record(seed=seed, columns={"rank_1": [3, None]}) for seed in (0, 1)))
    whole, expected = bad.read_bytes(), load(tmp_path)
    noticed = 0
    for position in range(4, len(whole), 5):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        bad.write_bytes(flipped)
        table, lines = lines_of(tmp_path)
        noticed += bool(lines)
        # Undetected flips are in bytes without content, such as statistics.
        assert_frame_equal(table, expected.filter(seed=0) if lines else expected)
    assert noticed > len(whole) // 5 * 0.7


def test_a_record_of_another_format_is_reported_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "FORMAT", 1)
    (path,) = store(tmp_path, make_record(seed=1))
    monkeypatch.undo()
    store(tmp_path, make_record())
    table, lines = lines_of(tmp_path)
    assert set(table["seed"]) == {0}
    assert lines == [f"{path}: skipped: it has format 1, expected {record_module.FORMAT}"]


def test_a_foreign_file_is_reported_and_skipped(tmp_path: Path) -> None:
    store(tmp_path, make_record())
    EPISODES.write_parquet(tmp_path / "other.parquet")
    (tmp_path / "notes.txt").write_text("hello")
    table, lines = lines_of(tmp_path)
    assert table.height == 2
    assert lines == [
        f"{tmp_path / 'other.parquet'}: skipped: it is neither a record of weightclip nor a table of records"
    ]


def test_paths_without_results_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"no records were found under {tmp_path}"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no records were found under no path"):
        load()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_saved_table_is_restored(tmp_path: Path, ending: str) -> None:
    columns = {"loss": [math.nan, math.inf], "rank_1": [None, 3], "clipped": [1.0, 2.0]}
    one = dataclasses.replace(make_record(hidden=[50], kappa=math.inf, columns=columns), identity="012345678901")
    store(tmp_path / "store", one, dataclasses.replace(make_record(seed=1, hidden=[50]), identity="112345678901"))
    table = load(tmp_path / "store")
    saved = tmp_path / f"x.{ending}"
    table.write_csv(saved) if ending == "csv" else table.write_parquet(saved)
    assert_frame_equal(load(saved), table)


def test_a_saved_table_and_records_are_combined_without_duplicates(tmp_path: Path) -> None:
    store(tmp_path / "a", make_record(), make_record(seed=1))
    load(tmp_path / "a").write_csv(tmp_path / "saved.csv")
    store(tmp_path / "b", make_record(seed=1), make_record(seed=2, kappa=1.0))
    table = load(tmp_path / "b", tmp_path / "saved.csv")
    assert table.group_by("seed").len().sort("seed").rows() == [(0, 2), (1, 2), (2, 2)]
    assert table.schema["kappa"] == pl.Float64


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "", "\x00\xff"])
def test_a_csv_that_is_not_a_table_of_records_is_skipped(tmp_path: Path, content: str) -> None:
    store(tmp_path / "a", make_record())
    (tmp_path / "x.csv").write_bytes(content.encode("latin-1"))
    table, lines = lines_of(tmp_path / "a", tmp_path / "x.csv")
    assert table.height == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"{tmp_path / 'x.csv'}: skipped: ")


def test_to_pandas_returns_the_same_table(tmp_path: Path) -> None:
    store(tmp_path, make_record())
    table = load(tmp_path, kind="pandas")
    assert list(table.columns) == load(tmp_path).columns
    assert table["accuracy"].tolist() == [0.5, 0.75]
    with pytest.raises(ValueError, match=r"kind: got 'arrow', expected one of polars, pandas"):
        load(tmp_path, kind="arrow")  # type: ignore[call-overload]


def test_missing_pandas_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path, make_record())

    def to_pandas(self: pl.DataFrame) -> None:
        raise ModuleNotFoundError("pandas is not installed")

    monkeypatch.setattr(pl.DataFrame, "to_pandas", to_pandas)
    with pytest.raises(ValueError, match="kind: got 'pandas', which needs pandas and pyarrow"):
        load(tmp_path, kind="pandas")


def test_without_a_callback_skipped_files_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store(tmp_path, make_record())
    (tmp_path / "x.parquet").write_bytes(b"")
    load(tmp_path)
    assert "x.parquet: skipped" in caplog.text
