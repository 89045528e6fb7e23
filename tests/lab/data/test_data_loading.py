"""Finding data sets in directories, and what they hold then."""

import hashlib
from pathlib import Path

import data_files
import numpy as np
import pytest
from data_fixtures import isolation, offline  # noqa: F401

from weightclip.lab.data import DATASETS, DataError, load

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["mnist", "."])
def test_mnist_is_read_from_a_directory(tmp_path: Path, packed: bool, folder: str) -> None:
    data_files.write(tmp_path / "data" / folder, data_files.mnist_files(), packed=packed)
    data = load("mnist", data_dir=tmp_path / "data")
    np.testing.assert_array_equal(data.inputs.reshape(-1, 28, 28), data_files.images(40))
    np.testing.assert_array_equal(data.labels, data_files.labels(40))
    assert data.inputs.flags.c_contiguous
    assert data.inputs.flags.writeable  # torch.from_numpy warns otherwise
    assert (data.classes, data.shape, data.source.kind, data.source.official) == (10, (28, 28), "directory", False)
    assert len(load("mnist", split="test", data_dir=tmp_path / "data").labels) == 10


def test_the_checksum_is_of_the_unpacked_files_one_after_another(tmp_path: Path) -> None:
    files = data_files.mnist_files()
    expected = hashlib.md5(files["train-images-idx3-ubyte"] + files["train-labels-idx1-ubyte"]).hexdigest()
    for packed in (False, True):
        directory = data_files.write(tmp_path / str(packed), files, packed=packed)
        assert load("mnist", data_dir=directory).source.checksum == expected


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    data = load("emnist", data_dir=data_files.write(tmp_path, data_files.emnist_files()))
    np.testing.assert_array_equal(data.inputs.reshape(-1, 28, 28), data_files.images(94).transpose(0, 2, 1))
    assert data.inputs.flags.c_contiguous
    assert data.classes == 47


@pytest.mark.parametrize("archived", [False, True])
def test_cifar10_is_read_as_planes_of_colour(tmp_path: Path, archived: bool) -> None:
    files = {"cifar-10-binary.tar.gz": data_files.cifar_tar()} if archived else data_files.cifar_files()
    data = load("cifar10", data_dir=data_files.write(tmp_path, files))
    expected = np.concatenate([data_files.photographs(10, i) for i in range(5)])
    np.testing.assert_array_equal(data.inputs.reshape(-1, *data.shape), expected)
    np.testing.assert_array_equal(data.labels, np.tile(data_files.labels(10), 5))
    assert data.shape == (3, 32, 32)


def test_emnist_is_read_from_the_archive_itself(tmp_path: Path) -> None:
    packed = load("emnist", data_dir=data_files.write(tmp_path / "a", {"gzip.zip": data_files.emnist_zip()}))
    unpacked = load("emnist", data_dir=data_files.write(tmp_path / "b", data_files.emnist_files()))
    np.testing.assert_array_equal(packed.inputs, unpacked.inputs)
    assert packed.source.checksum == unpacked.source.checksum
    assert not packed.source.official
    assert not (tmp_path / "outside").exists()


def test_an_archive_with_the_official_checksum_is_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = {"gzip.zip": data_files.emnist_zip()}
    described = data_files.as_official("emnist", data_files.emnist_files(), archive, "http://127.0.0.1")
    monkeypatch.setitem(DATASETS, "emnist", described)
    assert load("emnist", data_dir=data_files.write(tmp_path, archive)).source.official


@pytest.mark.parametrize("order", ["C", "F"])
def test_features_are_read_from_an_npz(tmp_path: Path, order: str) -> None:
    features = np.asarray(np.random.default_rng(1).random((30, 2048)), dtype=np.float16, order=order)  # type: ignore[call-overload]
    path = data_files.write_features(tmp_path / "mini-imagenet-resnet50-features.npz", features=features)
    data = load("mini-imagenet", data_dir=path.parent)
    np.testing.assert_array_equal(data.inputs, features)
    assert data.inputs.flags.c_contiguous
    assert data.source.checksum == hashlib.md5(features.tobytes() + data_files.labels(30, 100).tobytes()).hexdigest()
    assert not data.source.official


def test_the_named_directory_comes_first_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    for place, count in ((tmp_path / "named", 11), (tmp_path / "variable", 12)):
        data_files.write(place, data_files.mnist_files(count))
    data_files.write_features(cache / "mini-imagenet" / "mini-imagenet-resnet50-features.npz")
    monkeypatch.setenv("WEIGHTCLIP_DATA", str(tmp_path / "variable"))
    assert len(load("mnist", data_dir=tmp_path / "named").labels) == 11
    assert len(load("mnist").labels) == 12
    assert load("mini-imagenet").source.kind == "cache"


def test_a_named_directory_must_have_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_dir: .*empty has no mnist: expected train-images-idx3-ubyte, train-l"):
        load("mnist", data_dir=tmp_path / "empty")


def test_a_directory_in_the_variable_need_not_have_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setenv("WEIGHTCLIP_DATA", str(tmp_path / "empty"))
    assert load("mnist", on_event=events.append).source.kind == "bundled"
    assert events == [
        f"mnist: not in WEIGHTCLIP_DATA={tmp_path / 'empty'}",
        "mnist: WEIGHTCLIP_OFFLINE is set",
        "mnist: using the bundled subset of 10,000 digits",
    ]


def test_the_bundled_digits_are_mnist() -> None:
    train, test = load("mnist"), load("mnist", split="test")
    assert train.inputs.shape == (10_000, 784)
    assert test.inputs.shape == (1_000, 784)
    assert np.bincount(train.labels).tolist() == [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert str(train.source) == "mnist, bundled subset of 10,000 digits (stand-in)"
    centroids = np.stack([train.inputs[train.labels == digit].mean(0) for digit in range(10)])
    distances = ((test.inputs[:, None, :] - centroids) ** 2).sum(-1)
    assert (distances.argmin(1) == test.labels).mean() > 0.75


def test_the_bundled_digits_can_be_refused() -> None:
    with pytest.raises(DataError, match="mnist: cannot be had"):
        load("mnist", bundled=False)


def test_where_nothing_works_one_error_says_what_to_do(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(DataError) as error:
        load("emnist")
    assert str(error.value) == (
        f"emnist: cannot be had: not in {cache / 'emnist'}; WEIGHTCLIP_OFFLINE is set. "
        "WEIGHTCLIP_DATA or --data-dir can name a directory DIR with emnist-balanced-train-images-idx3-ubyte, "
        "emnist-balanced-train-labels-idx1-ubyte (or with .gz), or the official gzip.zip in DIR/emnist or in DIR"
    )


def test_features_have_no_address() -> None:
    with pytest.raises(DataError, match="make it from the images with `weightclip data features`"):
        load("mini-imagenet")


def test_wrong_names_are_told() -> None:
    with pytest.raises(ValueError, match=r"name: got 'emnits', expected one of mnist, .*; did you mean 'emnist'"):
        load("emnits")
    with pytest.raises(ValueError, match="split: got 'test', expected one of"):
        load("mini-imagenet", split="test")
