"""A directory beside the cached files, for those that are not whole yet."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PART = ".part-"
_STALE = 24 * 3600.0


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A new directory inside `directory`, on the same disk, removed at the end; so are old ones of killed processes."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f"{_PART}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE:
                shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=_PART, dir=directory, ignore_cleanup_errors=True) as stage:
        yield Path(stage)
