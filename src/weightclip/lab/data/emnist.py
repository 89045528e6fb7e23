"""EMNIST (Cohen et al., 2017), its `balanced` split: handwritten digits and letters."""

from __future__ import annotations

from weightclip.lab.data.description import Archive, Arrays, Content, Description, File
from weightclip.lab.data.idx import SIDE, read_images, read_labels

_CLASSES = 47
_BLOCK = 4096

_TRAIN = (File("emnist-balanced-train-images-idx3-ubyte"), File("emnist-balanced-train-labels-idx1-ubyte"))
_TEST = (File("emnist-balanced-test-images-idx3-ubyte"), File("emnist-balanced-test-labels-idx1-ubyte"))


def _decode(contents: list[Content]) -> Arrays:
    images, labels = contents.pop(0), contents.pop(0)
    inputs = read_images(images)
    for start in range(0, len(inputs), _BLOCK):  # the files hold them transposed; in place, for the sake of memory
        block = inputs[start : start + _BLOCK]
        block[:] = block.transpose(0, 2, 1).copy()
    return inputs.reshape(len(inputs), SIDE * SIDE), read_labels(labels, _CLASSES)


EMNIST = Description(
    name="emnist",
    summary="handwritten digits and letters (balanced)",
    classes=_CLASSES,
    shape=(SIDE, SIDE),
    files={"train": _TRAIN, "test": _TEST},
    decode=_decode,
    archives=(
        Archive(
            url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            md5="58c8d27c78d21e728a6bc7b3cc06412e",
            size=561_753_746,
            members={file.name: f"gzip/{file.name}.gz" for file in (*_TRAIN, *_TEST)},
        ),
    ),
)
