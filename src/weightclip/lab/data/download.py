"""Getting an archive from its official address."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from weightclip.lab.data.description import Archive
from weightclip.lab.data.errors import Unavailable

# Called with the name of a file, the bytes that have arrived, and the bytes that are expected, if known.
Progress = Callable[[str, int, int | None], None]

_CONNECT, _READ = 3.05, 30.0  # seconds: a machine without a network should not wait long for the next source
_CHUNK = 1 << 14  # a broken transfer loses what has arrived of the last one
_ATTEMPTS = 10


def download(archive: Archive, directory: Path, on_progress: Progress | None = None) -> Path:
    """The archive in `directory`, with the right checksum, or Unavailable with the reason."""
    import pooch  # type: ignore[import-untyped]
    import requests

    def receive(url: str, output: str, _: Any) -> None:
        with open(output, "wb") as file:
            _receive(url, file, lambda done, total: on_progress and on_progress(archive.name, done, total))

    try:
        with _quiet(pooch.get_logger()):
            path = pooch.retrieve(
                archive.url, f"md5:{archive.md5}", fname=archive.name, path=directory, downloader=receive
            )
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "with an error"
        raise Unavailable(f"{archive.url} answered {status}") from error
    except requests.Timeout as error:
        raise Unavailable(f"{archive.url} did not answer in time") from error
    except requests.RequestException as error:
        interrupted = isinstance(error, requests.exceptions.ChunkedEncodingError)
        raise Unavailable(f"{archive.url} {'broke off' if interrupted else 'cannot be reached'}") from error
    except ValueError as error:  # pooch's word for a wrong checksum
        raise Unavailable(f"what {archive.url} sent does not have the md5 {archive.md5}") from error
    return Path(path)


def _receive(url: str, file: BinaryIO, on_progress: Callable[[int, int | None], object]) -> None:
    """Write what `url` serves; a broken transfer goes on where it stopped, as long as each attempt brings something."""
    import requests

    for attempt in range(_ATTEMPTS):
        start = file.tell()
        try:
            _receive_rest(url, file, on_progress)
            return
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if file.tell() == start or attempt == _ATTEMPTS - 1:
                raise


def _receive_rest(url: str, file: BinaryIO, on_progress: Callable[[int, int | None], object]) -> None:
    import requests

    headers = {"Accept-Encoding": "identity"}  # the checksum is of the bytes as they are stored
    if file.tell():
        headers["Range"] = f"bytes={file.tell()}-"
    with requests.get(url, headers=headers, stream=True, timeout=(_CONNECT, _READ)) as response:
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            file.seek(0)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = file.tell() + int(length) if length else None
        for chunk in response.iter_content(_CHUNK):
            file.write(chunk)
            on_progress(file.tell(), total)


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Our own events tell what happens."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
