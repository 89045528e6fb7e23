import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from lab.records.synthetic_records import make_record, store
from weightclip.cli import best

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def run(*words: object) -> int:
    arguments = best.make_parser().parse_args([*map(str, words)])
    code: int = arguments.action(arguments)
    return code


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three step sizes of sgd, a fourth with one seed, and two other methods, one of them on stand-in data."""
    store(
        tmp_path / "results",
        *(make_record((0.5, 0.51 + seed / 50), lr=lr, seed=seed) for lr in (0.001, 0.01) for seed in (0, 1)),
        *(make_record((0.7, 0.7), lr=0.1, seed=seed) for seed in (0, 1)),
        make_record((0.9, 0.9), lr=1.0),
        make_record((0.6, 0.6), method="sgd+wc", kappa=2.0),
        make_record((0.6, 0.6), method="adam", problem="label-permuted-emnist", checksum="e", official=False),
    )
    return tmp_path / "results"


def test_the_best_setting_is_compared_with_the_papers(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    first = lines.index("input-permuted-mnist: accuracy, area under the curve, mean over seeds")
    assert lines[first + 1].split("  ")[0] == "method"
    sgd, clipped = lines[first + 2], lines[first + 3]
    assert [part.strip() for part in sgd.split("  ") if part] == [
        "sgd",
        "lr 0.1",
        "70.00% ± 0.00%",
        "2",
        "3",
        "≠ lr 0.001 (here 51.00%)",
        "–",
    ]
    assert [part.strip() for part in clipped.split("  ") if part][:6] == [
        *("sgd+wc", "lr 0.001, kappa 2", "60.00%", "1", "1", "the same"),
    ]
    assert "  sgd: lr at the edge of the values tried" in lines
    assert "  sgd: 1 setting with fewer seeds excluded" in lines
    second = lines.index("label-permuted-emnist (stand-in data): accuracy, area under the curve, mean over seeds")
    assert "≠ lr 0.0001 (not run)" in lines[second + 2]


def test_the_slope_is_printed_with_its_interval_and_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rising = ([number / 100 + seed / 50 * (number % 2) for number in range(8)] for seed in (0, 1))
    store(tmp_path, *(make_record(values, seed=seed) for seed, values in enumerate(rising)))
    run(tmp_path)
    out = capsys.readouterr().out
    assert "slope per 100 tasks" in out
    assert "+120.00 [−134.12, +374.12] not decided" in out


def test_the_criterion_and_the_metric_can_be_chosen(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(results, "--criterion", "final", "--metric", "accuracy", "--where", "method=sgd")
    out = capsys.readouterr().out
    assert "input-permuted-mnist: accuracy, mean over the last tenth, mean over seeds" in out
    assert "sgd+wc" not in out
    with pytest.raises(ValueError, match="metric: got 'loss', expected one of accuracy"):
        run(results, "--metric", "loss")


def test_other_setups_are_reported(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(results, make_record((0.1, 0.2, 0.3)))
    run(results, "--where", "method=sgd")
    assert (
        "using steps=20 (7 runs), skipping steps=30 (1 run); select another with --where steps=30"
        in capsys.readouterr().out
    )


def test_seeds_missing_from_some_settings_are_reported(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(results, *(make_record((0.9, 0.9), lr=0.001, seed=seed) for seed in range(2, 9)))
    run(results, "--where", "method=sgd")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2].startswith("sgd     lr 0.1 ")
    assert "≠ lr 0.001 (here 81.33%)" in lines[2]
    assert "  sgd: compared on 2 seeds common to its settings" in lines


def test_settings_without_shared_seeds_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, make_record(lr=0.1), make_record(lr=0.2, seed=1))
    run(tmp_path)
    assert "  sgd: compared on different seeds, because the settings have too few in common" in capsys.readouterr().out


def test_each_value_of_another_axis_has_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [make_record(activation=name, method=method) for name in ("relu", "tanh") for method in ("sgd", "adam")]
    store(tmp_path, *(replace(one, schema=replace(one.schema, axes=("method", "activation"))) for one in records))
    run(tmp_path)
    lines = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line] == [
        "input-permuted-mnist, activation relu: accuracy, area under the curve, mean over seeds",
        *("method", "sgd", "adam"),
        "input-permuted-mnist, activation tanh: accuracy, area under the curve, mean over seeds",
        *("method", "sgd", "adam"),
    ]


def test_several_problems_have_an_interquartile_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for problem, official in (("input-permuted-mnist", True), ("label-permuted-emnist", False)):
        runs = [
            make_record((0.4 + seed / 10, 0.5), problem=problem, method=method, seed=seed, official=official)
            for method in ("adam", "sgd")
            for seed in (0, 1)
        ]
        store(tmp_path, *runs)
    run(tmp_path)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    first = lines.index("over 2 problems (stand-in data): accuracy, area under the curve, interquartile mean over runs")
    assert [line.split() for line in lines[first + 1 : first + 4]] == [
        ["method", "accuracy", "95%", "interval", "runs"],
        ["sgd", "47.50%", "45.00%", "to", "50.00%", "4"],
        ["adam", "47.50%", "45.00%", "to", "50.00%", "4"],
    ]


def test_missing_common_problems_are_reported(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(results)
    assert "over problems: fewer than two problems have two seeds of every method" in capsys.readouterr().out
    run(results, "--where", "problem=input-permuted-mnist")
    assert "over problems" not in capsys.readouterr().out


def test_the_best_settings_are_written_as_presets(results: Path, tmp_path: Path) -> None:
    run(results, "-o", tmp_path / "best.toml")
    assert tomllib.loads((tmp_path / "best.toml").read_text()) == {
        "best": {
            "input-permuted-mnist": {"sgd": {"lr": 0.1}, "sgd+wc": {"lr": 0.001, "kappa": 2.0}},
            "label-permuted-emnist": {"adam": {"lr": 0.001}},
        }
    }


def test_the_best_settings_are_written_as_a_table(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(results, "-o", tmp_path / "best.csv")
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'best.csv'}\n")
    table = pl.read_csv(tmp_path / "best.csv")
    assert table.select("problem", "method", "lr", "score", "same").rows()[0] == (
        *("input-permuted-mnist", "sgd", 0.1, 0.7, False),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "best.txt"], r"-o: got 'best\.txt', expected a file that ends in \.toml or \.csv"),
        (["--criterion", "area"], "--criterion: invalid choice: 'area'"),
        (["--where", "steps"], "--where: got 'steps', expected NAME=VALUE"),
    ],
)
def test_errors_are_reported(results: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(results, *words)
