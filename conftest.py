"""Fixtures for tests and docstring examples."""

import math
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hypothesis import settings

collect_ignore_glob = ["src/weightclip/integrations/*.py"]  # require the host libraries; see tests/integrations

# submitit's logging setup closes existing handlers; if JAX's (absl) is among them, it closes pytest's captured stderr.
with suppress(ImportError):
    import_module("submitit")

# Deterministic examples, and no deadline, so that tests do not fail on a busy machine.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def _set_threads_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache shared by the session and all its workers, because compiling a kernel takes seconds."""
    root = tmp_path_factory.getbasetemp()
    return (root.parent if root.name.startswith("popen-") else root) / "cache"


@pytest.fixture(autouse=True)
def _isolate_environment(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable downloads and ignore the user's data and environment variables."""
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(_cache))
    monkeypatch.setenv("WEIGHTCLIP_OFFLINE", "1")
    for name in ("WEIGHTCLIP_DATA", "WEIGHTCLIP_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _checkpoint_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a checkpoint after every row, so that tests do not depend on the machine's speed."""
    monkeypatch.setattr("weightclip.lab.checkpoint.MAX_FRACTION", math.inf)


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
