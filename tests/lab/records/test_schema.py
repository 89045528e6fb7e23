"""Records contain their schema: an experiment that is not installed can be analyzed, drawn and reported."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from matplotlib.image import imread
from polars.testing import assert_frame_equal

from lab.records.synthetic_records import digest, make_record, store
from weightclip.cli import main
from weightclip.lab.analysis.best import best_settings
from weightclip.lab.analysis.curves import curves
from weightclip.lab.analysis.selection import score_settings, select
from weightclip.lab.plotting.panels import draw_records
from weightclip.lab.records.columns import schema_of
from weightclip.lab.records.record import Record, read_record, write_record
from weightclip.lab.records.schema import Metric, Schema, by_name
from weightclip.lab.records.table import load
from weightclip.lab.registry import experiments
from weightclip.lab.report import gather, render

SCHEMA = Schema(
    "walk",
    x_column="step",
    score="distance",
    problems=("random-walk",),
    methods=("plain", "fancy"),
    fields={"problem": "the problem", "method": "a method", "depth": "how deep", "layers": "sizes", "seed": "seed"},
    settings=("depth",),
    text_fields=("layers",),
    metrics=by_name(
        Metric("distance", "Distance", "from the goal", direction="lower"), Metric("speed", "Speed", "steps a second")
    ),
    panels=("distance", "speed"),
)


def walk(method: str = "plain", depth: int = 1, seed: int = 0) -> Record:
    table = pl.DataFrame(
        {
            "seed": [seed] * 4,
            "step": [1, 2, 3, 4],
            "samples": [10, 20, 30, 40],
            "distance": [8.0 / depth + seed, 4.0 / depth + seed, 2.0 / depth + seed, 1.0 / depth + seed],
            "speed": [1.0, 2.0, 3.0, 4.0],
        }
    )
    return Record(
        schema=SCHEMA,
        identity=f"{digest(method)[:4]}{depth:04d}{seed:04d}",
        config={"problem": "random-walk", "method": method, "depth": depth, "layers": [50], "seed": seed},
        table=table,
        data={"name": "hill", "kind": "directory", "checksum": "abc", "official": True},
        seconds=2.0,
        paper_setting={"depth": 2} if method == "fancy" else None,
        deviations={"layers": [50]},
        resumed="exact",
    )


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    """A store with runs of an experiment that is not installed."""
    assert "walk" not in experiments()
    records = [walk(depth=depth, seed=seed) for depth in (1, 2) for seed in (0, 1)]
    store(tmp_path / "walks", *records, walk("fancy", depth=4), walk("fancy", depth=2))
    return tmp_path / "walks"


def test_a_record_is_restored_with_its_schema(tmp_path: Path) -> None:
    record = walk("fancy")
    write_record(record, tmp_path / "x.parquet")
    found = read_record(tmp_path / "x.parquet")
    assert found.schema == SCHEMA
    assert list(found.schema.fields) == list(SCHEMA.fields)  # in this order, which columns and texts use
    assert (found.paper_setting, found.deviations, found.resumed) == ({"depth": 2}, {"layers": [50]}, "exact")
    assert_frame_equal(found.table, record.table)


def test_records_are_loaded_and_scored(walks: Path) -> None:
    lines: list[str] = []
    table = load(walks, on_event=lines.append)
    assert lines == []
    assert schema_of(table) == SCHEMA
    scores = score_settings(table).filter(method="plain").select("depth", "score", "seeds")
    assert scores.rows() == [(1, 3.75 + 0.5, 2), (2, 1.875 + 0.5, 2)]
    assert dict(select(table).select("method", "depth").iter_rows()) == {"plain": 2, "fancy": 4}  # lower is better
    best = best_settings(table)
    assert best["method"].to_list() == ["plain", "fancy"]  # in the order of the schema
    assert best.select("same", "paper_score").rows() == [(None, None), (False, 1.875)]
    assert set(table["deviations"]) == {"layers 50"}


def test_records_are_drawn_as_curves(walks: Path, tmp_path: Path) -> None:
    curve = curves(load(walks).filter(method="plain", depth=1))
    assert curve.select("step", "mean", "seeds").rows() == [(1, 8.5, 2), (2, 4.5, 2), (3, 2.5, 2), (4, 1.5, 2)]
    records = [read_record(path) for path in sorted(walks.rglob("*00010*.parquet"))]
    draw_records(records, tmp_path / "walk.png")
    height, width, _ = imread(tmp_path / "walk.png").shape
    assert width > 1.5 * height  # two panels
    draw_records([replace(one, schema=replace(SCHEMA, panels=())) for one in records], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_records_are_reported(walks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = gather(walks)
    (part,) = content.parts
    assert (part.name, part.x_column, part.score.label) == ("walk", "step", "Distance")
    assert [metric.name for metric in part.curves.metrics] == ["distance", "speed"]
    assert [(row.method, row.setting, row.paper) for row in part.setups[0].best] == [
        ("plain", "depth 2", None),
        ("fancy", "depth 4", "depth 2"),
    ]
    assert "random-walk" in render(content)
    assert main(["best", str(walks)]) == 0
    assert "depth 4" in capsys.readouterr().out
    assert main(["report", str(walks), "-o", str(tmp_path / "report.html")]) == 0
    assert "Distance" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_saved_table_is_restored_with_its_schemas(walks: Path, tmp_path: Path, ending: str) -> None:
    store(walks, make_record(), make_record(seed=1, experiment="warm-start", problem="warm-start"))
    table = load(walks)
    saved = tmp_path / f"saved.{ending}"
    table.write_csv(saved) if ending == "csv" else table.write_parquet(saved)
    again = load(saved)
    assert_frame_equal(again, table, check_dtypes=False)
    assert again.schema["schema"] == table.schema["schema"]
    assert again.schema["layers"] == pl.String  # "50" is not a number
    found = {part["experiment"][0]: schema_of(part) for part in again.partition_by("experiment")}
    assert found == {
        "walk": SCHEMA,
        "streaming": experiments()["streaming"].schema,
        "warm-start": experiments()["warm-start"].schema,
    }
    assert select(again.filter(experiment="walk"))["depth"].to_list() == [4, 2]


def test_versions_of_a_schema_are_merged(tmp_path: Path) -> None:
    more = by_name(*SCHEMA.metrics.values(), Metric("height", "Height", "above the sea"))
    newer = replace(SCHEMA, metrics=more, fields={**SCHEMA.fields, "wind": "its speed"})
    other = walk(seed=1)
    table = other.table.with_columns(height=pl.lit(3.0))
    store(tmp_path, walk(), replace(other, schema=newer, config={**other.config, "wind": 0.5}, table=table))
    schema = schema_of(load(tmp_path))
    assert schema.metric("height").label == "Height"
    assert "wind" in schema.fields


def test_a_table_without_a_schema_raises_an_error() -> None:
    table = pl.DataFrame({"experiment": ["walk"], "method": ["plain"], "distance": [1.0]})
    with pytest.raises(ValueError, match="table: got a table without a schema, expected the result of"):
        select(table)
