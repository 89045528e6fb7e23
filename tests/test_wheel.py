"""The wheel works in an empty environment with only PyTorch and with the lab's dependencies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_docs import blocks

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.network


def run(*command: str | Path, cwd: Path) -> str:
    names = ("PYTHONPATH", "VIRTUAL_ENV", "COV_CORE_SOURCE")
    env = {name: value for name, value in os.environ.items() if name not in names} | {"WEIGHTCLIP_OFFLINE": "1"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_installs_and_runs(tmp_path: Path) -> None:
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("weightclip-*.whl")

    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python, constraints = tmp_path / "env" / "bin" / "python", ROOT / "constraints.txt"
    run(python, *pip, "install", "--constraint", constraints, "torch", wheel, cwd=tmp_path)
    (first, *_) = (block for block in blocks(ROOT / "README.md") if block.language == "python")
    assert "Clipper(Adam, kappa=2: clips 4 of 4 tensors)" in run(python, "-c", first.text, cwd=tmp_path)

    run(python, *pip, "install", "--constraint", constraints, f"{wheel}[lab]", cwd=tmp_path)
    command = "run input-permuted-mnist --method adam+wc --steps 1000 --period 500"
    run(tmp_path / "env" / "bin" / "weightclip", *command.split(), cwd=tmp_path)
    assert len(list((tmp_path / "results").rglob("*.parquet"))) == 1
