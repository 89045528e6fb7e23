"""The IDX format of MNIST and EMNIST: a magic number, the sizes of the dimensions, then bytes."""

from __future__ import annotations

import math

import numpy as np

from weightclip.lab.data.checks import check_labels
from weightclip.lab.data.description import Bytes, Content
from weightclip.lab.data.errors import DataError

SIDE = 28


def read_images(content: Content) -> Bytes:
    """[n, 28, 28], sharing the content's memory."""
    images = _read(content, "images", 3)
    if images.shape[1:] != (SIDE, SIDE):
        found = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{content.origin}: has images of {found} pixels, expected {SIDE}x{SIDE}")
    return images


def read_labels(content: Content, classes: int) -> Bytes:
    """[n], sharing the content's memory."""
    return check_labels(content.origin, _read(content, "labels", 1), classes)


def _read(content: Content, what: str, dimensions: int) -> Bytes:
    data, header = content.data, 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))  # 8: unsigned bytes
    if data[:4].tobytes() != magic:
        raise DataError(f"{content.origin}: starts with {data[:4].tobytes()!r}, expected {magic!r} (IDX {what})")
    if len(data) < header:
        raise DataError(f"{content.origin}: truncated: {len(data)} bytes, less than its header of {header}")
    shape = tuple(int(size) for size in data[4:header].view(">u4"))
    if len(data) != header + math.prod(shape):
        promised = " x ".join(f"{size:,}" for size in shape)
        kind = "truncated" if len(data) < header + math.prod(shape) else "too long"
        raise DataError(f"{content.origin}: {kind}: {len(data) - header:,} bytes of {what}, the header says {promised}")
    return np.asarray(data[header:].reshape(shape))
