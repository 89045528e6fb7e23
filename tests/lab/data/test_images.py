"""Images are decoded once into a memory-mapped file."""

import os
from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DATASETS, DataError, cache_directory
from weightclip.lab.data.images import load_images

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return data_files.write(tmp_path / "data", data_files.cifar_files())


def decoded_files() -> list[Path]:
    return sorted(cache_directory("cifar10").glob("decoded-*"))


def test_channels_are_last(directory: Path) -> None:
    train, test = (load_images("cifar10", split, directory) for split in ("train", "test"))
    expected = np.concatenate([data_files.color_images(10, i) for i in range(5)]).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(train.pixels, expected)
    np.testing.assert_array_equal(train.labels, np.tile(data_files.labels(10), 5))
    assert (train.classes, len(test.labels), train.source.kind) == (10, 10, "directory")


def test_images_are_decoded_once(directory: Path) -> None:
    first = load_images("cifar10", "train", directory)
    assert len(decoded_files()) == 1
    path = directory / "data_batch_1.bin"
    before = path.stat()
    path.write_bytes(bytes(before.st_size))  # only the content changes, which is not read again
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = load_images("cifar10", "train", directory)
    assert isinstance(second.pixels, np.memmap)
    np.testing.assert_array_equal(first.pixels, second.pixels)
    assert first.source == second.source


def test_modified_files_are_decoded_again(directory: Path) -> None:
    load_images("cifar10", "train", directory)
    path = directory / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    os.utime(path, ns=(1, 1))
    assert load_images("cifar10", "train", directory).pixels[9, -1, -1, -1] == 0
    assert len(decoded_files()) == 2


def test_truncated_decoded_file_is_replaced(directory: Path) -> None:
    expected = np.array(load_images("cifar10", "train", directory).pixels)
    (path,) = decoded_files()
    path.write_bytes(path.read_bytes()[:1000])
    np.testing.assert_array_equal(load_images("cifar10", "train", directory).pixels, expected)


def test_writes_are_private_to_the_process(directory: Path) -> None:
    images = load_images("cifar10", "train", directory)
    before = int(images.pixels[0, 0, 0, 0])
    images.pixels[0, 0, 0, 0] = before ^ 1
    assert int(load_images("cifar10", "train", directory).pixels[0, 0, 0, 0]) == before


def test_images_are_kept_in_memory_if_the_cache_is_not_writable(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "file"))
    events: list[str] = []
    images = load_images("cifar10", "train", directory, events.append)
    assert len(images.labels) == 50
    assert "kept in memory" in events[-1]


def test_missing_files_and_data_sets_without_images_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data_dir"):
        load_images("cifar10", "train", tmp_path)
    with pytest.raises(ValueError, match="name: got 'mnist', expected one of cifar10"):
        load_images("mnist", "train", tmp_path)


def test_data_dir_must_contain_the_files_even_if_the_cache_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = data_files.cifar_files()
    served = {"cifar-10-binary.tar.gz": b""}
    monkeypatch.setitem(DATASETS, "cifar10", data_files.as_official("cifar10", contents, served, "http://127.0.0.1"))
    data_files.write(tmp_path / "cache" / "cifar10", contents)
    for _ in range(2):  # decoded, then memory-mapped
        assert len(load_images("cifar10", "train").labels) == 50
    with pytest.raises(DataError, match=r"data_dir: .*empty has no cifar10"):
        load_images("cifar10", "train", tmp_path / "empty")
