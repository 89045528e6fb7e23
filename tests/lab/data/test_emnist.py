from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DATASETS, load

pytestmark = pytest.mark.usefixtures("offline")


def test_emnist_images_are_transposed(tmp_path: Path) -> None:
    data = load("emnist", data_dir=data_files.write(tmp_path, data_files.emnist_files()))
    np.testing.assert_array_equal(data.inputs.reshape(-1, 28, 28), data_files.images(94).transpose(0, 2, 1))
    assert data.inputs.flags.c_contiguous
    assert data.classes == 47


def test_emnist_is_read_from_the_archive(tmp_path: Path) -> None:
    archived = load("emnist", data_dir=data_files.write(tmp_path / "a", {"gzip.zip": data_files.emnist_zip()}))
    extracted = load("emnist", data_dir=data_files.write(tmp_path / "b", data_files.emnist_files()))
    np.testing.assert_array_equal(archived.inputs, extracted.inputs)
    assert archived.source.checksum == extracted.source.checksum
    assert not archived.source.official
    assert not (tmp_path / "outside").exists()


def test_archive_with_the_official_checksum_is_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = {"gzip.zip": data_files.emnist_zip()}
    info = data_files.as_official("emnist", data_files.emnist_files(), archive, "http://127.0.0.1")
    monkeypatch.setitem(DATASETS, "emnist", info)
    assert load("emnist", data_dir=data_files.write(tmp_path, archive)).source.official
