from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache in tmp_path / "cache", without WEIGHTCLIP_DATA, proxy and npm."""
    (tmp_path / "no-programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("WEIGHTCLIP_DATA", raising=False)
    monkeypatch.delenv("WEIGHTCLIP_OFFLINE", raising=False)


@pytest.fixture
def offline(isolation: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTCLIP_OFFLINE", "1")
