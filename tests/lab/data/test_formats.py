"""Invalid files raise an error that names the file."""

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
from data_fixtures import isolation  # noqa: F401
from PIL import Image

from weightclip.lab.data import DataError, load
from weightclip.lab.data.formats import read_image

FEATURES = "mini-imagenet-resnet50-features.npz"


def assert_load_fails(name: str, directory: Path, file: str, reason: str) -> None:
    with pytest.raises(DataError) as error:
        load(name, data_dir=directory)
    message = str(error.value)
    assert file in message
    assert reason in message
    assert "\n" not in message


IMAGES, LABELS, *_ = data_files.mnist_files().values()


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("train-images-idx3-ubyte", IMAGES[:-1], "truncated: 31,359 bytes of images, the header says 40 x 28 x 28"),
        ("train-images-idx3-ubyte", IMAGES + b"\0", "too long"),
        ("train-images-idx3-ubyte", IMAGES[:10], "truncated: 10 bytes, expected a header of 16"),
        ("train-images-idx3-ubyte", b"", "starts with b''"),
        ("train-images-idx3-ubyte", LABELS, "expected b'\\x00\\x00\\x08\\x03' (IDX images)"),
        ("train-images-idx3-ubyte", b"<html>not found</html>", "starts with b'<htm'"),
        ("train-images-idx3-ubyte", data_files.idx(np.zeros((40, 32, 32))), "images have 32x32 pixels, expected 28x28"),
        ("train-labels-idx1-ubyte", LABELS[:-3], "truncated: 37 bytes of labels"),
        ("train-labels-idx1-ubyte", data_files.idx(data_files.labels(39)), "40 inputs and 39 labels"),
        ("train-labels-idx1-ubyte", data_files.idx(data_files.labels(40, 11)), "10 is out of range, expected 0 to 9"),
        ("train-labels-idx1-ubyte", IMAGES, "IDX labels"),
    ],
)
def test_invalid_idx_file_is_named(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    directory = data_files.write(tmp_path, data_files.mnist_files() | {file: content})
    assert_load_fails("mnist", directory, file, reason)


def test_empty_data_set_is_rejected(tmp_path: Path) -> None:
    directory = data_files.write(tmp_path, data_files.mnist_files(0))
    assert_load_fails("mnist", directory, "train-images-idx3-ubyte", "0 inputs and 0")


def flip_bit(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[-6] ^= 1  # in gzip's checksum
    return bytes(changed)


@pytest.mark.parametrize(
    "corrupt",
    [lambda b: b[: len(b) // 2], lambda b: b[:-4], flip_bit, lambda b: b + b"rest", lambda b: b"\x1f\x8b" + b],
)
def test_corrupt_gzip_file_is_named(tmp_path: Path, corrupt: Any) -> None:
    data_files.write(tmp_path, data_files.mnist_files(), compressed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(corrupt(gzip.compress(IMAGES)))
    assert_load_fails("mnist", tmp_path, str(path), "truncated or corrupt")


@pytest.mark.parametrize(
    ("name", "archive", "content", "reason"),
    [
        ("emnist", "gzip.zip", data_files.emnist_zip()[:-100], "truncated or corrupt"),
        ("emnist", "gzip.zip", data_files.zipped({"a": b""}), "has no member gzip/emnist-balanced-train-images"),
        ("emnist", "gzip.zip", b"", "truncated or corrupt"),
        ("cifar10", "cifar-10-binary.tar.gz", data_files.cifar_tar()[:-100], "truncated or corrupt"),
        ("cifar10", "cifar-10-binary.tar.gz", flip_bit(data_files.cifar_tar()), "truncated or corrupt"),
        ("cifar10", "cifar-10-binary.tar.gz", data_files.tarred({}), "has no member cifar-10-batches-bin/data_batch_1"),
    ],
    # Fixed, because the archives contain the current time.
    ids=str.split("zip-cut zip-without-member zip-empty tar-cut tar-corrupt tar-without-member"),
)
def test_invalid_archive_is_named(tmp_path: Path, name: str, archive: str, content: bytes, reason: str) -> None:
    assert_load_fails(name, data_files.write(tmp_path, {archive: content}), archive, reason)


def test_npz_without_the_arrays_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / FEATURES, labels=np.zeros(3, np.uint8))
    reason = "arrays are missing; expected an .npz with the arrays features, labels"
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, reason)


def test_truncated_npz_is_named(tmp_path: Path) -> None:
    path = data_files.write_features(tmp_path / FEATURES)
    path.write_bytes(path.read_bytes()[:-1000])
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, "truncated or corrupt")


def test_flipped_bit_in_npz_is_detected(tmp_path: Path) -> None:
    path = tmp_path / FEATURES
    np.savez(path, features=np.zeros((30, 2048), np.float16), labels=np.zeros(30, np.uint8))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, "truncated or corrupt")


class Malicious:
    executed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Malicious, "executed", True)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / FEATURES
    np.savez(path, features=np.array([Malicious()], dtype=object), labels=np.zeros(1, np.uint8))
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, "corrupt or not numeric")
    path.write_bytes(pickle.dumps(Malicious()))
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, "corrupt or not numeric")
    path.write_bytes(data_files.zipped({"features.npy": pickle.dumps(Malicious()), "labels.npy": b""}))
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, "features: is ")
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(path)
    assert_load_fails("mini-imagenet", tmp_path, FEATURES, "corrupt or not numeric")
    assert not Malicious.executed


def test_npz_header_with_a_huge_shape_is_rejected(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f2", "fortran_order": False, "shape": (1 << 40, 2048)})
    files = {FEATURES: data_files.zipped({"features.npy": buffer.getvalue(), "labels.npy": b""})}
    assert_load_fails("mini-imagenet", data_files.write(tmp_path, files), FEATURES, "corrupt or not numeric")


def test_images_are_resized_and_converted_to_rgb(tmp_path: Path) -> None:
    path = tmp_path / "gray.png"
    Image.new("L", (200, 100), 128).save(path)
    assert (read_image(path, "gray.png", size=(84, 84)) == np.full((84, 84, 3), 128)).all()
    assert read_image(path, "gray.png").shape == (100, 200, 3)
