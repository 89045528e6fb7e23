"""File formats: gzip, zip and tar files, IDX, `.npz` and images.

Files and archive members are read into writable memory. Nothing is unpickled, and archive members are selected by exact
name and never extracted to paths of the archive's choice.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from weightclip.lab.data.dataset import Archive, Bytes, DataError, DatasetInfo, FileContent, InputsAndLabels

_CHUNK = 1 << 20
_CORRUPT = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,  # zipfile: unknown compression
    RuntimeError,  # zipfile: encrypted
)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Convert errors of reading `path` into a DataError that names it."""
    try:
        yield
    except DataError:
        raise
    except _CORRUPT as error:
        raise DataError(f"{path}: truncated or corrupt ({error}); download it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def md5(arrays: Iterable[NDArray[Any]]) -> str:
    """Return the md5 of the concatenated bytes of `arrays`."""
    digest = hashlib.md5(usedforsecurity=False)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def file_md5(path: Path) -> str:
    """Return the md5 of a file on disk."""
    digest = hashlib.md5(usedforsecurity=False)
    with reading(path), path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_file(path: Path) -> FileContent:
    """Read a file; decompress it if its name ends in `.gz`."""
    with reading(path):
        if path.suffix != ".gz":
            return FileContent(str(path), np.fromfile(path, dtype=np.uint8))
        with gzip.open(path) as stream:
            return FileContent(str(path), _read_stream(stream))


def read_archive(path: Path, archive: Archive, names: Collection[str]) -> Iterator[tuple[str, Bytes]]:
    """Yield name and content of each of the files `names` in a downloaded archive."""
    if archive.members is None:
        yield archive.name.removesuffix(".gz"), read_file(path).data
        return
    name_of = {member: name for name, member in archive.members.items() if name in names}
    for member, data in read_members(path, name_of):
        yield name_of[member], data


def read_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, Bytes]]:
    """Yield name and content of each member of a zip or tar file; decompress members whose name ends in `.gz`."""
    missing = set(members)
    for member, stream in _zip_members(path, missing) if path.suffix == ".zip" else _tar_members(path, missing):
        with reading(f"{path}: {member}"):
            missing.remove(member)
            if member.endswith(".gz"):
                with gzip.open(stream) as decompressed:
                    data = _read_stream(decompressed)
            else:
                data = _read_stream(stream)
        yield member, data
    if missing:
        raise DataError(f"{path}: has no member {', '.join(sorted(missing))}; expected the official archive")


def _zip_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in sorted(set(members) & set(archive.namelist())):
            with archive.open(member) as stream:
                yield member, stream


def _tar_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    # One pass, because seeking back decompresses everything again; to the end, where gzip verifies its checksum.
    with reading(path), gzip.open(path) as decompressed:
        with tarfile.open(fileobj=decompressed, mode="r|") as archive:
            for info in archive:
                stream = archive.extractfile(info) if info.isfile() and info.name in members else None
                if stream is not None:
                    yield info.name, stream
        while decompressed.read(_CHUNK):
            pass


def _read_stream(stream: IO[bytes] | gzip.GzipFile) -> Bytes:
    """Read a stream into writable memory without a second copy."""
    data = bytearray()
    while chunk := stream.read(_CHUNK):
        data += chunk
    return np.frombuffer(data, dtype=np.uint8)


def decode_idx(info: DatasetInfo, contents: list[FileContent]) -> InputsAndLabels:
    """Decode an IDX file of images and one of labels: inputs uint8 [n, height * width], labels uint8 [n].

    Both share the memory of `contents`.
    """
    images = _read_idx(contents[0], "images", dimensions=3)
    labels = _read_idx(contents[1], "labels", dimensions=1)
    if images.shape[1:] != info.shape:
        found, expected = ("x".join(map(str, shape)) for shape in (images.shape[1:], info.shape))
        raise DataError(f"{contents[0].origin}: images have {found} pixels, expected {expected}")
    check_labels(contents[1].origin, labels, info.classes)
    return images.reshape(len(images), math.prod(info.shape)), labels


def _read_idx(content: FileContent, name: str, dimensions: int) -> Bytes:
    """Read the IDX format of MNIST: a magic number, the sizes of the dimensions (big-endian), then bytes."""
    data, header = content.data, 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))  # 8: unsigned bytes
    if data[:4].tobytes() != magic:
        raise DataError(f"{content.origin}: starts with {data[:4].tobytes()!r}, expected {magic!r} (IDX {name})")
    if len(data) < header:
        raise DataError(f"{content.origin}: truncated: {len(data)} bytes, expected a header of {header}")
    shape = tuple(int(size) for size in data[4:header].view(">u4"))
    if len(data) != header + math.prod(shape):
        promised = " x ".join(f"{size:,}" for size in shape)
        kind = "truncated" if len(data) < header + math.prod(shape) else "too long"
        raise DataError(f"{content.origin}: {kind}: {len(data) - header:,} bytes of {name}, the header says {promised}")
    return np.asarray(data[header:].reshape(shape))


def read_npz(path: Path, keys: tuple[str, ...]) -> list[FileContent]:
    """Read the arrays `keys` of an `.npz`, in C order."""
    expected = f"expected an .npz with the arrays {', '.join(keys)}"
    with reading(path):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                if not isinstance(arrays, NpzFile) or any(key not in arrays for key in keys):
                    raise DataError(f"{path}: arrays are missing; {expected}")
                return [FileContent(f"{path}: {key}", np.ascontiguousarray(arrays[key])) for key in keys]
        except DataError:
            raise
        # A pickle, a single array, or a header whose shape does not fit in memory.
        except (ValueError, TypeError, MemoryError) as error:
            raise DataError(f"{path}: corrupt or not numeric; {expected}") from error


def read_image(file: Path | IO[bytes], origin: str, size: tuple[int, int] | None = None) -> Bytes:
    """Read an RGB image [height, width, 3]; resize it bilinearly to `size` (width, height)."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{origin}: reading images requires Pillow: pip install 'weightclip[lab]'") from None
    try:
        with Image.open(file) as image:
            rgb = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{origin}: cannot be read as an image ({error})") from error
    if size is not None and rgb.size != size:
        rgb = rgb.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(rgb)


def check_labels(origin: str, labels: Bytes, classes: int) -> Bytes:
    """Return `labels`; raise a DataError unless all are less than `classes`."""
    if labels.size and int(labels.max()) >= classes:
        raise DataError(f"{origin}: label {labels.max()} is out of range, expected 0 to {classes - 1}")
    return labels


def check_counts(origin: str, arrays: InputsAndLabels) -> InputsAndLabels:
    """Return `arrays`; raise a DataError unless there is one label per input and at least one input."""
    inputs, labels = arrays
    if len(inputs) != len(labels) or not len(inputs):
        raise DataError(
            f"{origin}: {len(inputs):,} inputs and {len(labels):,} labels, expected the same number and at least one"
        )
    return arrays
