"""EMNIST (Cohen et al., 2017), `balanced` split: handwritten digits and letters."""

from __future__ import annotations

from weightclip.lab.data.dataset import Archive, DatasetInfo, File, FileContent, InputsAndLabels
from weightclip.lab.data.formats import decode_idx

_BLOCK = 4096

_TRAIN = (File("emnist-balanced-train-images-idx3-ubyte"), File("emnist-balanced-train-labels-idx1-ubyte"))
_TEST = (File("emnist-balanced-test-images-idx3-ubyte"), File("emnist-balanced-test-labels-idx1-ubyte"))


def _decode(info: DatasetInfo, contents: list[FileContent]) -> InputsAndLabels:
    """Transpose the images, which the files store transposed."""
    inputs, labels = decode_idx(info, contents)
    images = inputs.reshape(len(inputs), *info.shape)
    for start in range(0, len(images), _BLOCK):  # in place, to save memory
        block = images[start : start + _BLOCK]
        block[:] = block.transpose(0, 2, 1).copy()
    return inputs, labels


EMNIST = DatasetInfo(
    name="emnist",
    summary="handwritten digits and letters (balanced)",
    classes=47,
    shape=(28, 28),
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
