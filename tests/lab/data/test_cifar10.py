from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DataError, load

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("archived", [False, True])
def test_cifar10_inputs_are_color_planes(tmp_path: Path, archived: bool) -> None:
    files = {"cifar-10-binary.tar.gz": data_files.cifar_tar()} if archived else data_files.cifar_files()
    data = load("cifar10", data_dir=data_files.write(tmp_path, files))
    expected = np.concatenate([data_files.color_images(10, i) for i in range(5)])
    np.testing.assert_array_equal(data.inputs.reshape(-1, *data.shape), expected)
    np.testing.assert_array_equal(data.labels, np.tile(data_files.labels(10), 5))
    assert data.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"123", "truncated or corrupt: 3 bytes"),
        (bytes([10]) + bytes(3072), "label 10 is out of range, expected 0 to 9"),
    ],
)
def test_invalid_file_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    directory = data_files.write(tmp_path, data_files.cifar_files() | {"data_batch_3.bin": content})
    with pytest.raises(DataError, match=rf"data_batch_3\.bin: {reason}"):
        load("cifar10", data_dir=directory)
