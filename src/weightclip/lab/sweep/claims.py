"""Claims: whoever runs something holds a lock on a file named after it, so that two sweeps share a store without waste.

The operating system lets the lock go when its process ends, however it ends. The file says how far the run is; it is
empty as long as the run waits for a worker.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FOLDER = ".running"

SECONDS_BETWEEN_NOTES = 1.0

if sys.platform != "win32":
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

else:  # pragma: no cover

    def _try_lock(descriptor: int) -> bool:
        return True


@dataclass(frozen=True)
class Note:
    """What a claim says of its run, which is under way.

    Args:
        place: of its record.
        node, process: who runs it.
        since: when it was begun, or gone on with.
        done: how much of it is done, from 0 to 1.
        first: how much was done at the first sign of progress, when a run that goes on has what it did before.
        first_when: when that was.
    """

    relative_path: str
    node: str
    process: int
    since: float
    done: float
    first: float
    first_when: float


class Claim:
    """A run that is ours as long as the claim is held."""

    def __init__(self, path: Path, descriptor: int, relative_path: str) -> None:
        self._path, self._descriptor, self._relative_path = path, descriptor, relative_path
        self._note: Note | None = None
        self._next = 0.0

    def begin(self) -> None:
        """Say that a worker has the run now."""
        now = time.time()
        self._note, self._next = Note(self._relative_path, platform.node(), os.getpid(), now, 0.0, 0.0, now), 0.0
        self._write(self._note)

    def note(self, done: float) -> None:
        """Say how far the run, which was begun, is; now and then is enough."""
        assert self._note is not None
        if self._note.done == 0.0:
            self._note = replace(self._note, first=done, first_when=time.time())
        self._note = replace(self._note, done=done)
        if time.monotonic() >= self._next:
            self._write(self._note)

    def _write(self, note: Note) -> None:
        self._next = time.monotonic() + SECONDS_BETWEEN_NOTES
        with suppress(OSError):  # a full disk is told when the record is written
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(asdict(note)).encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def claim(store: Path, identity: str, relative_path: str) -> Claim | None:
    """Claim a run; None if somebody else has it."""
    path = store / FOLDER / identity
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not _try_lock(descriptor):
            os.close(descriptor)
            return None
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)  # a holder that was killed may have left its note
            return Claim(path, descriptor, relative_path)
        os.close(descriptor)  # its holder let it go, and removed it, between our opening and our locking it


@contextmanager
def claimed(store: Path, identity: str, relative_path: str) -> Iterator[Claim | None]:
    """Hold a claim for the length of a block."""
    mine = claim(store, identity, relative_path)
    try:
        yield mine
    finally:
        if mine is not None:
            mine.release()


def running(store: Path) -> dict[str, Note | None]:
    """The identities of the runs that somebody holds now, with their notes; None where a run waits for a worker."""
    found: dict[str, Note | None] = {}
    folder = store / FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            if not _try_lock(descriptor):
                found[path.name] = _read(descriptor)
            elif _is_still(path, descriptor):  # its holder was killed
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    return found


def _read(descriptor: int) -> Note | None:
    try:
        return Note(**json.loads(os.pread(descriptor, 10_000, 0)))
    except (OSError, ValueError, TypeError):
        return None


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that we hold is the one that the path names."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
