"""From the files of a split, in a directory, to a data set in memory."""

from __future__ import annotations

from collections.abc import Mapping

from weightclip.lab.data.checks import check_counts
from weightclip.lab.data.content import file_md5, md5, read_archive, read_file
from weightclip.lab.data.dataset import Dataset, Source
from weightclip.lab.data.description import Content, Description, File, Split
from weightclip.lab.data.errors import DataError
from weightclip.lab.data.npz import read_npz
from weightclip.lab.data.official import official_checksums
from weightclip.lab.data.places import Found


def read(description: Description, split: Split, found: Found) -> Dataset:
    """Load and check; a DataError names the file that is not what it should be."""
    contents, official = read_contents(description, split, found)
    checksum = md5(content.data for content in contents)
    origins = " and ".join(content.origin for content in contents)
    inputs, labels = check_counts(origins, description.decode(contents))
    source = Source(found.kind, str(found.directory), checksum, official, description.name)
    return Dataset(description.name, inputs, labels, description.classes, source, description.shape)


def read_contents(description: Description, split: Split, found: Found) -> tuple[list[Content], bool]:
    """The files' contents, and whether they are the official ones."""
    files = description.files[split]
    if description.arrays:
        return read_npz(found.paths[0], description.arrays), False
    if found.archive is None:
        contents = [read_file(path) for path in found.paths]
    else:
        path, names = found.paths[0], [file.name for file in files]
        members = dict(read_archive(path, found.archive, names))
        contents = [Content(f"{path}: {name}", members.pop(name)) for name in names]
    known = official_checksums(description)
    if found.archive is not None and any(file.name not in known for file in files):
        return contents, file_md5(found.paths[0]) == found.archive.md5
    same = [md5([content.data]) == known.get(file.name) for file, content in zip(files, contents, strict=True)]
    if found.kind == "cache":
        _check_cache(files, contents, same, known)
    return contents, all(same)


def _check_cache(files: tuple[File, ...], contents: list[Content], same: list[bool], known: Mapping[str, str]) -> None:
    """What we stored ourselves had its known checksum."""
    for file, content, fine in zip(files, contents, same, strict=True):
        if file.name in known and not fine:
            raise DataError(f"{content.origin}: damaged: its md5 is not {known[file.name]}; delete it to get it anew")
