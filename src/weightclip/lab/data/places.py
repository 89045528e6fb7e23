"""Directories that may hold a data set: the user's, and the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from weightclip.lab.data.dataset import Kind
from weightclip.lab.data.description import Archive, Description, Split
from weightclip.lab.data.errors import DataError

DATA_VARIABLE = "WEIGHTCLIP_DATA"
CACHE_VARIABLE = "WEIGHTCLIP_CACHE"


@dataclass(frozen=True)
class Found:
    """The files of a split, in a directory.

    Args:
        kind: whose directory it is.
        directory: where they are.
        paths: of the files, in order; or of the one archive that holds them.
        archive: which archive that is.
    """

    kind: Kind
    directory: Path
    paths: tuple[Path, ...]
    archive: Archive | None = None


def cache_directory(name: str) -> Path:
    """Where a data set is kept: in WEIGHTCLIP_CACHE, or else the platform's place for caches."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser().absolute() / name
    import pooch  # type: ignore[import-untyped]  # slow to import, and not needed where the variable is set

    return Path(pooch.os_cache("weightclip")) / name


def find_in_directory(description: Description, split: Split, directory: Path) -> Found | None:
    """In a directory of the user's, or its folder named after the data set; a DataError if only a part is there."""
    for place in (directory / description.name, directory):
        found = _find(description, split, place, "directory")
        if found is not None:
            return found
        _refuse_part(description, split, place)
    return None


def find_in_cache(description: Description, split: Split) -> Found | None:
    """In the cache."""
    return _find(description, split, cache_directory(description.name), "cache")


def expected_files(description: Description, split: Split, directory: Path | str) -> str:
    """What a user can put where, for messages."""
    names = ", ".join(file.name for file in description.files[split])
    either = "" if description.arrays else " (or with .gz)"
    archives = [archive.name for archive in description.archives if archive.members is not None]
    whole = f", or the official {archives[0]}" if archives else ""
    return f"{names}{either}{whole} in {Path(directory) / description.name} or in {directory}"


def _find(description: Description, split: Split, directory: Path, kind: Kind) -> Found | None:
    present = _present(description, split, directory)
    if len(present) == len(description.files[split]):
        return Found(kind, directory, tuple(present.values()))
    for archive in description.archives:
        if archive.members is not None and (directory / archive.name).is_file():
            return Found(kind, directory, (directory / archive.name,), archive)
    return None


def _present(description: Description, split: Split, directory: Path) -> dict[str, Path]:
    """The files that are there, packed or not, by their unpacked names."""
    names = [file.name for file in description.files[split]]
    candidates = [(name, directory / f"{name}{ending}") for name in names for ending in (".gz", "")]
    return {name: path for name, path in candidates if path.is_file()}


def _refuse_part(description: Description, split: Split, directory: Path) -> None:
    present = _present(description, split, directory)
    missing = [file.name for file in description.files[split] if file.name not in present]
    if present and missing:
        raise DataError(f"{directory / missing[0]}: missing, beside {next(iter(present.values())).name}")
