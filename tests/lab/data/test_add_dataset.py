"""The section "Add a data set" of docs/howto/data.md, followed step by step in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import data_files
import pytest
from data_fixtures import isolation, offline  # noqa: F401

import weightclip
from weightclip.lab import data
from weightclip.lab.data import DatasetInfo

pytestmark = pytest.mark.usefixtures("offline")

DOCS = Path(__file__).parents[3] / "docs" / "howto" / "data.md"


def test_documented_steps_add_a_data_set(tmp_path: Path) -> None:
    section = DOCS.read_text().partition("## Add a data set\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (diff,) = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)

    package = tmp_path / "src" / "weightclip"
    shutil.copytree(Path(weightclip.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "lab" / "data" / "fashion_mnist.py").write_text(code)
    registry = package / "lab" / "data" / "__init__.py"
    for hunk in diff.split("...\n"):
        old, new = ("".join(line[1:] for line in hunk.splitlines(True) if line[0] in kept) for kept in (" -", " +"))
        assert registry.read_text().count(old) == 1
        registry.write_text(registry.read_text().replace(old, new))

    files = data_files.write(tmp_path / "data" / "fashion-mnist", data_files.mnist_files())
    command = [sys.executable, "-m", "weightclip", "data", "get", "fashion-mnist", "--data-dir", str(tmp_path / "data")]
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == (f"fashion-mnist from {files} (unofficial)\n", "")

    script = "from weightclip.lab.experiments.streaming.problem import PROBLEMS; print(*PROBLEMS)"
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert "label-permuted-fashion-mnist" in result.stdout.split()


def test_old_name_of_dataset_info_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="Description is now weightclip.lab.data.DatasetInfo"):
        assert data.Description is DatasetInfo  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'Descriptions'"):
        data.Descriptions  # type: ignore[attr-defined]  # noqa: B018
