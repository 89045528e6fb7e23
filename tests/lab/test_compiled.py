import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from weightclip.lab.compiled import call, is_compiled, load_kernel

SOURCE = """
from numba import njit


@njit(cache=True)
def learn(x, out):
    out[0] = x[0]


@njit(cache=True)
def total(x, out):
    found = 0.0
    for i in range(x.shape[0]):
        found += x[i]
    out[0] = found
"""
X = np.random.default_rng(0).normal(size=10_000)


def load(directory: Path, source: str = SOURCE) -> ModuleType:
    """Load the kernel as in a new process."""
    kernel = load_kernel(source, directory)
    del sys.modules[kernel.__name__]
    return load_kernel(source, directory)


def total(kernel: ModuleType) -> float:
    out = np.zeros(1)
    call(kernel, X, out, function="total")
    return float(out[0])


def test_a_kernel_is_compiled_with_learn(tmp_path: Path) -> None:
    kernel = load(tmp_path)
    total(kernel)
    assert not is_compiled(load(tmp_path))
    call(kernel, X, np.zeros(1))
    assert is_compiled(load(tmp_path))


def test_a_kernel_of_another_cpu_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that share a cache may have different CPUs."""
    call(load(tmp_path), X, np.zeros(1))
    monkeypatch.setattr("numba.config.CPU_NAME", "x86-64")
    monkeypatch.setattr("numba.config.CPU_FEATURES", "")
    assert not is_compiled(load(tmp_path))


@pytest.mark.parametrize(
    ("variable", "compiled"), [("NUMBA_CACHE_DIR={}", "False True"), ("NUMBA_DISABLE_JIT=1", "True True")]
)
def test_settings_of_numba_are_followed(variable: str, compiled: str, tmp_path: Path) -> None:
    name, _, value = variable.partition("=")
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path}
import numpy as np
from test_compiled import SOURCE, X, call, is_compiled, load
before = is_compiled(load(Path({str(tmp_path)!r})))
call(load(Path({str(tmp_path)!r})), X, np.zeros(1))
print(before, is_compiled(load(Path({str(tmp_path)!r}))))
"""
    environment = {**os.environ, name: value.format(tmp_path / "numba")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == compiled


@pytest.mark.parametrize("flags", ["", "fastmath=True, "])
def test_a_damaged_cache_is_not_used_and_changes_no_number(flags: str, tmp_path: Path) -> None:
    """With fast math, the order of additions would differ."""
    source = SOURCE.replace("cache", f"{flags}cache")
    expected = total(load(tmp_path, source))
    assert (expected == X.cumsum()[-1]) == (not flags)
    (index,) = tmp_path.rglob("*.nbi")
    index.write_bytes(b"damaged")
    assert total(load(tmp_path, source)) == expected
