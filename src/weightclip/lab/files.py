"""Atomic file writes: after a crash, a file has its old or its new content, never a part of it."""

from __future__ import annotations

import errno
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

_numbers = count()


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces `path` at the end of the block: write, fsync, rename, fsync of the directory.

    If the block raises, `path` is unchanged and the temporary file is removed. An OSError names `path`. Missing
    directories are created.
    """
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.{next(_numbers)}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.filename in (None, str(temporary), str(path.parent)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace the content of `path` atomically."""
    with writing(path) as file:
        file.write(content)


def make_directory(directory: Path) -> None:
    """Create a directory if it is missing and check that it is writable. An OSError names it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(directory)) from error


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files in a directory from processes of this machine that were killed while writing."""
    name = re.compile(rf"\..+\.{re.escape(platform.node())}\.(\d+)\.\d+\.tmp")
    for path in directory.glob(".*.tmp"):
        found = name.fullmatch(path.name)
        if found is not None and not _is_running(int(found[1])):
            _remove(path)


def _is_running(process: int) -> bool:
    if os.name != "posix":  # on Windows, signal 0 ends the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # a process of another user
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Whether the process has ended but its parent has not waited for it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state == "Z"


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power failure."""
    if os.name != "posix":  # Windows cannot open a directory
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
