"""What all tests share, and the examples in docstrings too."""

import math
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hypothesis import settings

collect_ignore_glob = ["src/weightclip/integrations/*.py"]  # they need their hosts; tests/integrations tests them

# Its set-up of logging closes the handlers that are there, and that of JAX (absl) closes pytest's captured stderr then.
with suppress(ImportError):
    import_module("submitit")

# The same examples each time; no deadline, because a busy machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _set_threads_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the whole session, and for all of its workers: compiling a kernel takes seconds."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if own.name.startswith("popen-") else own) / "cache"


@pytest.fixture(autouse=True)
def _isolate_environment(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, and nothing that is on this machine by chance is read."""
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(_cache))
    monkeypatch.setenv("WEIGHTCLIP_OFFLINE", "1")
    for name in ("WEIGHTCLIP_DATA", "WEIGHTCLIP_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _checkpoint_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are saved do not depend on the speed of the machine."""
    monkeypatch.setattr("weightclip.lab.checkpoint.MAX_FRACTION", math.inf)


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command writes by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
