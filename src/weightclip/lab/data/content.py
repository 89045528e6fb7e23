"""Reading files and archives whole, into memory that can be written to; nothing is unpacked by a member's own name."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from weightclip.lab.data.description import Archive, Bytes, Content
from weightclip.lab.data.errors import DataError

_CHUNK = 1 << 20
_CORRUPT = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,  # zipfile's word for a compression it does not know
    RuntimeError,  # and for a password
)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Errors inside become one DataError that names `path`."""
    try:
        yield
    except DataError:
        raise
    except _CORRUPT as error:
        raise DataError(f"{path}: truncated or corrupt ({error}); get it anew") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def md5(arrays: Iterable[NDArray[Any]]) -> str:
    """Of the arrays' bytes, one after another."""
    digest = hashlib.md5(usedforsecurity=False)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def file_md5(path: Path) -> str:
    """Of a file as it is on disk."""
    digest = hashlib.md5(usedforsecurity=False)
    with reading(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_file(path: Path) -> Content:
    """A file, unpacked if its name ends in `.gz`."""
    with reading(path):
        if path.suffix != ".gz":
            return Content(str(path), np.fromfile(path, dtype=np.uint8))
        with gzip.open(path) as stream:
            return Content(str(path), read_whole(stream))


def read_archive(path: Path, archive: Archive, names: Collection[str]) -> Iterator[tuple[str, Bytes]]:
    """The files called `names` with their contents, from an archive of that kind; a DataError where one is missing."""
    if archive.members is None:
        yield archive.name.removesuffix(".gz"), read_file(path).data
        return
    name_of = {member: name for name, member in archive.members.items() if name in names}
    for member, data in read_members(path, name_of):
        yield name_of[member], data


def read_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, Bytes]]:
    """The members of a zip or tar file by their exact names, each unpacked if its name ends in `.gz`."""
    missing = set(members)
    for member, stream in _zip_members(path, missing) if path.suffix == ".zip" else _tar_members(path, missing):
        with reading(f"{path}: {member}"):
            missing.remove(member)
            if member.endswith(".gz"):
                with gzip.open(stream) as unpacked:
                    data = read_whole(unpacked)
            else:
                data = read_whole(stream)
        yield member, data
    if missing:
        raise DataError(f"{path}: has no member {', '.join(sorted(missing))}; expected the official archive")


def _zip_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in sorted(set(members) & set(archive.namelist())):
            with archive.open(member) as stream:
                yield member, stream


def _tar_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    # In one pass, because going back would unpack it all again; to the very end, where gzip compares its checksum.
    with reading(path), gzip.open(path) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as archive:
            for info in archive:
                stream = archive.extractfile(info) if info.isfile() and info.name in members else None
                if stream is not None:
                    yield info.name, stream
        while unpacked.read(_CHUNK):
            pass


def read_whole(stream: IO[bytes] | gzip.GzipFile) -> Bytes:
    """What is left of a stream, without a second copy on the way."""
    data = bytearray()
    while chunk := stream.read(_CHUNK):
        data += chunk
    return np.frombuffer(data, dtype=np.uint8)
