import re
import textwrap
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import weightclip as wc
from weightclip.lab.records.record import read_record

STREAM = {"method": "sgd", "steps": 90, "period": 30, "hidden": (8,), "backend": "reference"}
GAME = {
    **{"suite": "minatar", "game": "asterix", "frames": 200, "points": 2, "learning_starts": 60, "buffer_size": 300},
    **{"eval_episodes": 1, "covariance": 0},
}
POLICY = {"steps": 32, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "hidden": (4,)}


@pytest.mark.parametrize(
    ("problem", "settings", "rows"),
    [
        ("input-permuted-mnist", STREAM, 3),
        ("policy-collapse", {"env": "Pendulum-v1", **POLICY}, 2),
        ("replay-ratio", GAME, 2),
    ],
)
def test_every_experiment_runs_from_python_and_returns_its_table(
    problem: str, settings: dict[str, object], rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = wc.lab.run(problem, seeds=2, out=tmp_path, **settings)
    assert table["seed"].to_list() == [0] * rows + [1] * rows
    shown = capsys.readouterr().out
    assert "method: " in shown
    assert "seeds: 0–1" in shown
    paths = sorted(path for path in tmp_path.rglob("*.parquet") if re.search(r"_[0-9a-f]{12}$", path.stem))
    assert_frame_equal(pl.concat([read_record(path).table for path in paths]), table)


def test_progress_can_be_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    wc.lab.run("input-permuted-mnist", progress=False, **STREAM)
    assert capsys.readouterr().out == ""


def test_an_error_of_run_names_the_setting() -> None:
    with pytest.raises(ValueError, match=r"envs: unknown argument of run, expected one of .*did you mean 'env'"):
        wc.lab.run("policy-collapse", envs="Hopper-v4")
    with pytest.raises(ValueError, match=r"problem: got 'policy-colapse'.*did you mean 'policy-collapse'"):
        wc.lab.run("policy-colapse")


def test_in_a_notebook_progress_replaces_one_line(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    code = """
    import weightclip as wc
    table = wc.lab.run("input-permuted-mnist", method="sgd", steps=90, period=30, hidden=(8,), backend="reference")
    len(table)
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(code))])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    (bar,) = (one for one in outputs if one.output_type == "display_data")
    assert "100%  sgd seed 0: 90 of 90 samples" in bar["data"]["text/plain"]
    assert outputs[-1]["data"]["text/plain"] == "3"
