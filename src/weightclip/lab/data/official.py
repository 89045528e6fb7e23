"""The checksums of official files: those that are published, and those seen in an archive that had its own."""

from __future__ import annotations

import json
from collections.abc import Mapping

from weightclip.lab.data.content import reading
from weightclip.lab.data.description import Description
from weightclip.lab.data.errors import DataError
from weightclip.lab.data.places import cache_directory
from weightclip.lab.files import writing

_RECORD = "official.json"


def official_checksums(description: Description) -> dict[str, str]:
    """The md5 of each official file, unpacked, as far as it is known."""
    published = {file.name: file.md5 for file in description.all_files if file.md5 is not None}
    if len(published) == len(description.all_files):
        return published
    record = cache_directory(description.name) / _RECORD
    if not record.is_file():
        return published
    with reading(record):
        text = record.read_bytes()
    try:
        return published | dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise DataError(f"{record}: not a record of checksums ({error}); delete it") from error


def record_checksums(description: Description, checksums: Mapping[str, str]) -> None:
    """Remember, beside the cached files, the checksums that are not published."""
    published = {file.name for file in description.all_files if file.md5 is not None}
    seen = {name: checksum for name, checksum in checksums.items() if name not in published}
    if seen:
        with writing(cache_directory(description.name) / _RECORD) as file:
            file.write(json.dumps(seen, indent=1, sort_keys=True).encode() + b"\n")
