import hashlib
from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DataError, load

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("folder", ["mnist", "."])
def test_mnist_is_read_from_a_directory(tmp_path: Path, compressed: bool, folder: str) -> None:
    data_files.write(tmp_path / "data" / folder, data_files.mnist_files(), compressed=compressed)
    data = load("mnist", data_dir=tmp_path / "data")
    np.testing.assert_array_equal(data.inputs.reshape(-1, 28, 28), data_files.images(40))
    np.testing.assert_array_equal(data.labels, data_files.labels(40))
    assert data.inputs.flags.c_contiguous
    assert data.inputs.flags.writeable  # torch.from_numpy warns otherwise
    assert (data.classes, data.shape, data.source.kind, data.source.official) == (10, (28, 28), "directory", False)
    assert len(load("mnist", split="test", data_dir=tmp_path / "data").labels) == 10


def test_checksum_is_the_md5_of_the_concatenated_decompressed_files(tmp_path: Path) -> None:
    files = data_files.mnist_files()
    expected = hashlib.md5(files["train-images-idx3-ubyte"] + files["train-labels-idx1-ubyte"]).hexdigest()
    for compressed in (False, True):
        directory = data_files.write(tmp_path / str(compressed), files, compressed=compressed)
        assert load("mnist", data_dir=directory).source.checksum == expected


def test_bundled_digits_are_mnist() -> None:
    train, test = load("mnist"), load("mnist", split="test")
    assert train.inputs.shape == (10_000, 784)
    assert test.inputs.shape == (1_000, 784)
    assert np.bincount(train.labels).tolist() == [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert str(train.source) == "mnist, bundled subset of 10,000 digits (stand-in)"
    centroids = np.stack([train.inputs[train.labels == digit].mean(0) for digit in range(10)])
    distances = ((test.inputs[:, None, :] - centroids) ** 2).sum(-1)
    assert (distances.argmin(1) == test.labels).mean() > 0.75


def test_bundled_digits_have_the_documented_checksums() -> None:
    assert load("mnist").source.checksum == "353f8c192cb200524b435fa2f47b5dee"
    assert load("mnist", split="test").source.checksum == "afc52c65d2a31031136794769e5870ec"


def test_bundled_digits_can_be_disabled() -> None:
    with pytest.raises(DataError, match="mnist: not available"):
        load("mnist", bundled=False)
