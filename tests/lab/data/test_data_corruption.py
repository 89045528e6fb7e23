"""A file that is not what it should be gives one error that names it."""

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
from data_fixtures import isolation  # noqa: F401

from weightclip.lab.data import DataError, load

FEATURES = "mini-imagenet-resnet50-features.npz"


def fails(name: str, directory: Path, file: str, reason: str) -> None:
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
        ("train-images-idx3-ubyte", IMAGES[:10], "truncated: 10 bytes, less than its header of 16"),
        ("train-images-idx3-ubyte", b"", "starts with b''"),
        ("train-images-idx3-ubyte", LABELS, "expected b'\\x00\\x00\\x08\\x03' (IDX images)"),
        ("train-images-idx3-ubyte", b"<html>not found</html>", "starts with b'<htm'"),
        ("train-images-idx3-ubyte", data_files.idx(np.zeros((40, 32, 32))), "images of 32x32 pixels, expected 28x28"),
        ("train-labels-idx1-ubyte", LABELS[:-3], "truncated: 37 bytes of labels"),
        ("train-labels-idx1-ubyte", data_files.idx(data_files.labels(39)), "40 inputs and 39 labels"),
        ("train-labels-idx1-ubyte", data_files.idx(data_files.labels(40, 11)), "has the label 10, expected 0 to 9"),
        ("train-labels-idx1-ubyte", IMAGES, "IDX labels"),
    ],
)
def test_wrong_idx_files_are_named(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    fails("mnist", data_files.write(tmp_path, data_files.mnist_files() | {file: content}), file, reason)


def test_a_data_set_of_nothing_is_refused(tmp_path: Path) -> None:
    fails("mnist", data_files.write(tmp_path, data_files.mnist_files(0)), "train-images-idx3-ubyte", "0 inputs and 0")


def damaged(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[-6] ^= 1  # in the checksum
    return bytes(changed)


@pytest.mark.parametrize(
    "spoil", [lambda b: b[: len(b) // 2], lambda b: b[:-4], damaged, lambda b: b + b"rest", lambda b: b"\x1f\x8b" + b]
)
def test_wrong_gzip_files_are_named(tmp_path: Path, spoil: Any) -> None:
    data_files.write(tmp_path, data_files.mnist_files(), packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(gzip.compress(IMAGES)))
    fails("mnist", tmp_path, str(path), "truncated or corrupt")


def test_a_missing_file_is_named_rather_than_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_files.write(tmp_path / "mnist", data_files.mnist_files())
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").unlink()
    message = "train-labels-idx1-ubyte: missing, beside train-images-idx3-ubyte"
    with pytest.raises(DataError, match=message):
        load("mnist", data_dir=tmp_path)
    monkeypatch.setenv("WEIGHTCLIP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message):
        load("mnist")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"123", "truncated or corrupt: 3 bytes"), (bytes([10]) + bytes(3072), "has the label 10, expected 0 to 9")],
)
def test_wrong_photographs_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    files = data_files.cifar_files() | {"data_batch_3.bin": content}
    fails("cifar10", data_files.write(tmp_path, files), "data_batch_3.bin", reason)


@pytest.mark.parametrize(
    ("name", "archive", "content", "reason"),
    [
        ("emnist", "gzip.zip", data_files.emnist_zip()[:-100], "truncated or corrupt"),
        ("emnist", "gzip.zip", data_files.zipped({"a": b""}), "has no member gzip/emnist-balanced-train-images"),
        ("emnist", "gzip.zip", b"", "truncated or corrupt"),
        ("cifar10", "cifar-10-binary.tar.gz", data_files.cifar_tar()[:-100], "truncated or corrupt"),
        ("cifar10", "cifar-10-binary.tar.gz", damaged(data_files.cifar_tar()), "truncated or corrupt"),
        ("cifar10", "cifar-10-binary.tar.gz", data_files.tarred({}), "has no member cifar-10-batches-bin/data_batch_1"),
    ],
    ids=str.split(
        "zip-cut zip-without-member zip-empty tar-cut tar-damaged tar-without-member"
    ),  # archives hold the time
)
def test_wrong_archives_are_named(tmp_path: Path, name: str, archive: str, content: bytes, reason: str) -> None:
    fails(name, data_files.write(tmp_path, {archive: content}), archive, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": np.zeros((30, 2048), np.float32)}, "features: is float32 [30, 2048], expected float16 [n, 2048]"),
        ({"features": np.zeros((30, 512), np.float16)}, "features: is float16 [30, 512]"),
        ({"features": np.zeros((29, 2048), np.float16)}, "29 inputs and 30 labels"),
        ({"features": np.full((30, 2048), np.nan, np.float16)}, "features: has values that are not finite"),
        ({"features": np.full((30, 2048), np.inf, np.float16)}, "features: has values that are not finite"),
        ({"labels": np.zeros(30, np.int64)}, "labels: is int64 [30], expected uint8 [n]"),
        ({"labels": np.zeros((30, 1), np.uint8)}, "labels: is uint8 [30, 1]"),
        ({"labels": np.full(30, 100, np.uint8)}, "labels: has the label 100, expected 0 to 99"),
    ],
)
def test_wrong_features_are_named(tmp_path: Path, changes: dict[str, np.ndarray], reason: str) -> None:
    data_files.write_features(tmp_path / FEATURES, **changes)
    fails("mini-imagenet", tmp_path, FEATURES, reason)


def test_an_npz_without_its_arrays_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / FEATURES, labels=np.zeros(3, np.uint8))
    fails("mini-imagenet", tmp_path, FEATURES, "has other content, expected an .npz with the arrays features, labels")


def test_a_truncated_npz_is_named(tmp_path: Path) -> None:
    path = data_files.write_features(tmp_path / FEATURES)
    path.write_bytes(path.read_bytes()[:-1000])
    fails("mini-imagenet", tmp_path, FEATURES, "truncated or corrupt")


def test_a_changed_byte_in_an_npz_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / FEATURES
    np.savez(path, features=np.zeros((30, 2048), np.float16), labels=np.zeros(30, np.uint8))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    fails("mini-imagenet", tmp_path, FEATURES, "truncated or corrupt")


class Harm:
    done = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Harm, "done", True)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / FEATURES
    np.savez(path, features=np.array([Harm()], dtype=object), labels=np.zeros(1, np.uint8))
    fails("mini-imagenet", tmp_path, FEATURES, "not whole, or not numbers")
    path.write_bytes(pickle.dumps(Harm()))
    fails("mini-imagenet", tmp_path, FEATURES, "not whole, or not numbers")
    path.write_bytes(data_files.zipped({"features.npy": pickle.dumps(Harm()), "labels.npy": b""}))
    fails("mini-imagenet", tmp_path, FEATURES, "features: is ")
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(path)
    fails("mini-imagenet", tmp_path, FEATURES, "not whole, or not numbers")
    assert not Harm.done


def test_a_header_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f2", "fortran_order": False, "shape": (1 << 40, 2048)})
    files = {FEATURES: data_files.zipped({"features.npy": buffer.getvalue(), "labels.npy": b""})}
    fails("mini-imagenet", data_files.write(tmp_path, files), FEATURES, "not whole, or not numbers")


def test_a_directory_in_place_of_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / FEATURES).mkdir()
    fails("mini-imagenet", tmp_path, FEATURES, "has no mini-imagenet")


def test_damage_in_the_cache_is_noticed(tmp_path: Path) -> None:
    """MNIST's checksums are known, so what the cache holds must have them."""
    cache = tmp_path / "cache"
    data_files.write(cache / "mnist", data_files.mnist_files())
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: damaged: its md5 is not 6bbc.*; delete it"):
        load("mnist")


def test_a_spoilt_record_of_checksums_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    data_files.write(cache / "emnist", data_files.emnist_files() | {"official.json": b"[1]"})
    with pytest.raises(DataError, match=r"official\.json: not a record of checksums"):
        load("emnist")
