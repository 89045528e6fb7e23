import sys
from pathlib import Path

import polars as pl
import pytest

from weightclip.cli import report
from weightclip.lab.records.record import Record, write_record
from weightclip.lab.records.store import Failure, write_failure
from weightclip.lab.registry import experiments

pytestmark = pytest.mark.usefixtures("empty_directory")


def run(*words: object) -> int:
    arguments = report.make_parser().parse_args([*map(str, words)])
    code: int = arguments.action(arguments)
    return code


@pytest.fixture
def results(tmp_path: Path) -> Path:
    config = {"problem": "input-permuted-mnist", "method": "sgd", "lr": 0.001, "seed": 0, "steps": 600}
    table = pl.DataFrame({"task": [1, 2], "samples": [300, 600], "accuracy": [0.5, 0.6]})
    data = {"name": "mnist", "kind": "directory", "checksum": "abc", "official": True}
    store = tmp_path / "results"
    write_record(
        Record(experiments()["streaming"].schema, "0123456789ab", config, table, data, 1.0),
        store / "run_0123456789ab.parquet",
    )
    return store


def test_the_command_writes_the_report_and_prints_a_summary(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, "-o", "new/it.html", "--title", "My results") == 0
    assert "<h1>My results</h1>" in Path("new/it.html").read_text()
    reported = capsys.readouterr().out
    assert reported.startswith("new/it.html: 1 run, 1 problem, 1 method, seed 0, ")


def test_skipped_files_are_reported(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "damaged.parquet").write_bytes(b"")
    assert run(results) == 0
    assert "damaged.parquet" in capsys.readouterr().out
    assert Path("report.html").exists()


def test_missing_results_raise_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no records were found under empty"):
        run("empty")
    assert not Path("report.html").exists()


def test_a_store_with_only_failed_runs_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure("place", "0" * 12, "streaming", {}, "MemoryError: no memory", "Traceback", "2024-05-01T12:00:00")
    write_failure(tmp_path / "failed", failure)
    assert run("failed", "--where", "steps=600") == 0
    assert capsys.readouterr().out.startswith("report.html: 0 runs, 1 failed (")
    assert "MemoryError: no memory" in Path("report.html").read_text()


def test_the_criterion_can_be_chosen(results: Path) -> None:
    assert run(results, "--criterion", "final") == 0
    assert "mean over the last tenth" in Path("report.html").read_text()
    with pytest.raises(ValueError, match="--criterion: invalid choice: 'area'"):
        run(results, "--criterion", "area")


def test_an_invalid_choice_suggests_a_valid_one(results: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'steps'"):
        run(results, "--where", "stepz=600")


def test_missing_libraries_suggest_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("weightclip.lab.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ValueError, match=r'this command requires altair: pip install "weightclip\[report\]"'):
        run("results")
