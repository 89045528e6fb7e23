"""Photographs, decoded once into a mapped file."""

import os
from dataclasses import replace
from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DataError
from weightclip.lab.data import images as module
from weightclip.lab.data.images import load_images
from weightclip.lab.data.places import cache_directory

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return data_files.write(tmp_path / "data", data_files.cifar_files())


def decoded() -> list[Path]:
    return sorted(cache_directory("cifar10").glob("decoded-*"))


def test_colours_come_last(directory: Path) -> None:
    train, test = (load_images("cifar10", split, directory) for split in ("train", "test"))
    expected = np.concatenate([data_files.photographs(10, i) for i in range(5)]).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(train.pixels, expected)
    np.testing.assert_array_equal(train.labels, np.tile(data_files.labels(10), 5))
    assert (train.classes, len(test.labels), train.source.kind) == (10, 10, "directory")


def test_they_are_decoded_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images("cifar10", "train", directory)
    assert len(decoded()) == 1

    def refused(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(module, "load_described", refused)
    again = load_images("cifar10", "train", directory)
    assert isinstance(again.pixels, np.memmap)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert first.source == again.source


def test_other_files_are_decoded_anew(directory: Path) -> None:
    load_images("cifar10", "train", directory)
    path = directory / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    os.utime(path, ns=(1, 1))
    assert load_images("cifar10", "train", directory).pixels[9, -1, -1, -1] == 0
    assert len(decoded()) == 2


def test_a_decoded_file_that_was_cut_short_is_made_again(directory: Path) -> None:
    expected = np.array(load_images("cifar10", "train", directory).pixels)
    (path,) = decoded()
    path.write_bytes(path.read_bytes()[:1000])
    np.testing.assert_array_equal(load_images("cifar10", "train", directory).pixels, expected)


def test_a_write_stays_in_the_process(directory: Path) -> None:
    one = load_images("cifar10", "train", directory)
    before = int(one.pixels[0, 0, 0, 0])
    one.pixels[0, 0, 0, 0] = before ^ 1
    assert int(load_images("cifar10", "train", directory).pixels[0, 0, 0, 0]) == before


def test_where_the_cache_cannot_be_written_they_are_held_in_memory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "file"))
    told: list[str] = []
    found = load_images("cifar10", "train", directory, told.append)
    assert len(found.labels) == 50
    assert "holding the data in memory" in told[-1]


def test_what_is_missing_or_no_photographs_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data_dir"):
        load_images("cifar10", "train", tmp_path)
    with pytest.raises(ValueError, match="name: got 'mnist', expected one of cifar10"):
        load_images("mnist", "train", tmp_path)


def test_a_directory_without_the_files_is_told_though_the_cache_has_them(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_images("cifar10", "train", directory)
    found = module.find(module.DATASETS["cifar10"], "train", directory, print)
    assert found is not None
    monkeypatch.setattr(module, "find", lambda *_: replace(found, kind="official"))
    assert len(load_images("cifar10", "train").labels) == 50
    with pytest.raises(DataError, match=r"data_dir: .*empty has no cifar10"):
        load_images("cifar10", "train", tmp_path / "empty")
