"""The example package of docs/howto/extending.md, a new experiment in four small files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from weightclip.lab import load
from weightclip.lab.callbacks import Callbacks

EXAMPLE = Path(__file__).parents[2] / "examples" / "drifting_regression"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package and its metadata, as created by an installer."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE / "drifting_regression", site / "drifting_regression")
    metadata = site / "drifting_regression-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: drifting-regression\nVersion: 1.0\n")
    entry = "[weightclip.experiments]\ndrifting-regression = drifting_regression.experiment:EXPERIMENT\n"
    (metadata / "entry_points.txt").write_text(entry)
    return site


def weightclip(site: Path, directory: Path, command: str) -> str:
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "weightclip", *command.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_experiment_is_swept_compared_drawn_and_reported(site: Path, tmp_path: Path) -> None:
    sweep = "sweep drifting-regression --tasks 3 --period 20 --kappa 1,5 --lr 0.05 --seeds 2 --workers 1"
    assert "6 runs done, 0 failed" in weightclip(site, tmp_path, sweep)
    assert "slope per 100 tasks" in weightclip(site, tmp_path, "best results")
    weightclip(site, tmp_path, "figure drifting-regression results")
    assert (tmp_path / "figures" / "drifting-regression.png").stat().st_size > 10_000
    assert "6 runs, 1 problem, 2 methods" in weightclip(site, tmp_path, "report results")
    # Records contain the schema, so they can be loaded without the package.
    table = load(tmp_path / "results")
    assert set(table["method"]) == {"sgd", "sgd+wc"}
    assert table.columns[-4:] == ["task", "samples", "loss", "weight_l2"]


def test_an_interrupted_run_resumes_bit_for_bit(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    config = import_module("drifting_regression.config")
    training = import_module("drifting_regression.training")
    run = config.resolve(config.Config(tasks=4, period=10, seed=3))
    rows: list[Mapping[str, Any]] = []

    def stop_after_two(config: Any, row: Mapping[str, Any]) -> None:
        rows.append(row)
        if len(rows) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.run_config(run, out=tmp_path, callbacks=Callbacks(on_row=stop_after_two))
    lines: list[str] = []
    resumed = training.run_config(run, out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines == ["drifting-regression sgd+wc seed 3: resuming after task 2"]
    assert resumed.resumed == "exact"
    assert_frame_equal(resumed.table, training.run_config(run).table)


def test_the_files_are_small() -> None:
    files: Sequence[Path] = [path for path in EXAMPLE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(path.name for path in files) == ["config.py", "experiment.py", "figures.py", "training.py"]
    assert pl.Series([len(path.read_text().splitlines()) for path in files]).max() < 100  # type: ignore[operator]
