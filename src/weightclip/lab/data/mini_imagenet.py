"""mini-ImageNet (Vinyals et al., 2016), each image reduced once to the features of a ResNet-50."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightclip.lab.data.checks import check_labels
from weightclip.lab.data.description import Arrays, Content, Description, File
from weightclip.lab.data.errors import DataError

CLASSES = 100
FEATURES = 2048
_BLOCK = 1024


def _decode(contents: list[Content]) -> Arrays:
    features, labels = contents.pop(0), contents.pop(0)
    _check(features, np.float16, ("n", FEATURES))
    _check(labels, np.uint8, ("n",))
    if not all_finite(features.data):
        raise DataError(f"{features.origin}: has values that are not finite")
    return features.data, check_labels(labels.origin, labels.data, CLASSES)


def _check(content: Content, dtype: type, shape: tuple[str | int, ...]) -> None:
    actual = content.data
    fits = actual.ndim == len(shape) and actual.shape[1:] == shape[1:]
    if actual.dtype != dtype or not fits:
        expected = ", ".join(map(str, shape))
        found = ", ".join(map(str, actual.shape))
        raise DataError(f"{content.origin}: is {actual.dtype} [{found}], expected {np.dtype(dtype)} [{expected}]")


def all_finite(features: NDArray[Any]) -> bool:
    """Whether no float16 is infinite or NaN: these have all bits of the exponent set."""
    codes, exponent = features.view(np.uint16), np.uint16(0x7C00)
    blocks = (codes[start : start + _BLOCK] for start in range(0, len(codes), _BLOCK))
    return not any(((block & exponent) == exponent).any() for block in blocks)


MINI_IMAGENET = Description(
    name="mini-imagenet",
    summary="ResNet-50 features of photographs",
    classes=CLASSES,
    shape=(FEATURES,),
    files={"train": (File("mini-imagenet-resnet50-features.npz"),)},
    decode=_decode,
    arrays=("features", "labels"),
    advice="there is no address to get it from: make it from the images with `weightclip data features`",
)
