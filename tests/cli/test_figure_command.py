import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from synthetic_runs import EMNIST, runs
from weightclip.cli import main
from weightclip.lab.experiments.streaming.config import PAPER_METHODS

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.fixture
def results(tmp_path: Path) -> str:
    """A saved table of nine methods on input-permuted MNIST."""
    runs(PAPER_METHODS).write_csv(tmp_path / "table.csv")
    return "table.csv"


@pytest.mark.parametrize("name", ["streaming", "3"])
def test_a_figure_by_name_or_number_prints_the_paths_of_three_files(
    name: str, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", name, results]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"figures/streaming.{ending}" for ending in ("pdf", "png", "csv")]
    assert shown.err == ""
    assert sorted(path.name for path in Path("figures").iterdir()) == [
        "streaming.csv",
        "streaming.pdf",
        "streaming.png",
    ]
    table = pl.read_csv("figures/streaming.csv")
    assert table.columns == ["problem", "method", "metric", "task", "mean", "low", "high", "seeds", "cut_short"]
    assert table["method"].unique(maintain_order=True).to_list() == list(PAPER_METHODS)


def test_the_directory_and_the_runs_can_be_chosen(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--where", "method=sgd,adam+wc", "--where", "seed=1"]
    assert main(["figure", "4", results, "-o", "my/pictures", *chosen]) == 0
    assert "no results for adam, sgd+l2init, adam+l2init, sgd+sp, adam+sp, sgd+wc, madam" in capsys.readouterr().out
    table = pl.read_csv("my/pictures/streaming-diagnostics.csv")
    assert set(table["method"]) == {"sgd", "adam+wc"}
    assert set(table["seeds"]) == {1}


def test_the_best_setting_by_the_criterion_is_drawn_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    early = runs(["sgd+wc"], kappa=1.0, value=lambda *a: 0.9 if a[-1] < 6 else 0.1)
    late = runs(["sgd+wc"], kappa=2.0, value=lambda *a: 0.9 if a[-1] == 6 else 0.1)
    pl.concat([early, late]).write_parquet("both.parquet")
    for criterion, kappa in (("auc", 1), ("final", 2)):
        assert main(["figure", "3", "both.parquet", "--criterion", criterion]) == 0
        reported = f"input-permuted-mnist: best of several settings by {criterion}: sgd+wc (lr 0.001, kappa {kappa})\n"
        assert reported in capsys.readouterr().out


def test_all_draws_the_available_figures_and_reports_the_others(
    results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", "all", results]) == 0
    shown = capsys.readouterr().out
    assert "label-permuted-diagnostics: not drawn: results: got input-permuted-mnist, expected runs of label-" in shown
    assert "streaming-sensitivity: not drawn: results: got one value of each setting" in shown
    drawn = {"diagram", "streaming", "streaming-diagnostics", "loss-of-plasticity"}
    assert {path.stem for path in Path("figures").iterdir()} == drawn


def test_the_diagram_does_not_require_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "diagram"]) == 0
    assert Path("figures/diagram.png").exists()


def test_the_list_has_every_name_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "--list"]) == 0
    rows = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows["diagram"] == "1"
    assert rows["streaming"] == "3"
    assert rows["streaming-sensitivity"] == "-"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["streming", "table.csv"], "did you mean 'streaming'?"),
        (["16", "table.csv"], "figure: got '16', expected one of diagram"),
        (["streaming"], "RESULTS: got none, expected directories with records, for example results"),
        (["streaming", "nowhere"], "nowhere: No such file or directory; check the path"),
        (["streaming", "empty"], "no records were found under empty"),
        (["10", "table.csv"], "results: got input-permuted-mnist, expected runs of label-permuted-emnist or"),
        (["3", "table.csv", "--where", "method"], "--where: got 'method', expected NAME=VALUE"),
        (["3", "table.csv", "--where", "mehtod=sgd"], "did you mean 'method'?"),
        (["3", "table.csv", "--where", "steps=1M"], "where: got steps=1M, expected one of 6000"),
        (["3", "table.csv", "--criterion", "best"], "--criterion: invalid choice: 'best' (choose from "),
        (["3", "table.csv", "-o", "table.csv"], "choose a directory, not a file"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_code_2_without_a_file(
    arguments: list[str], message: str, results: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["figure", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("weightclip: error: ")
    assert shown.err.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["table.csv"]


def test_tables_of_several_files_are_drawn_together(results: str) -> None:
    runs(["adam"], problem=EMNIST, official=False).write_csv("other.csv")
    assert main(["figure", "3", results, "other.csv"]) == 0
    assert set(pl.read_csv("figures/streaming.csv")["problem"]) == {"input-permuted-mnist", EMNIST}


def test_drawing_a_figure_does_not_import_training_code(tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "docs" / "results" / "streaming_figures" / "runs.parquet"
    program = (
        "import sys; from weightclip.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch._C', 'numba', 'gymnasium'} | {name for name in sys.modules if name.endswith('.training')};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "figure", "streaming", str(results), "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
