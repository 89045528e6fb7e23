"""Locks on runs: several sweeps share a store, and each run is executed by one of them.

A run is locked through the file `STORE/.running/IDENTITY`. The operating system releases the lock when its process
exits, even if it is killed. `IDENTITY.json` in the same folder contains the process and progress of the run; it is
missing while the run waits for a worker.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

FOLDER = ".running"

SECONDS_BETWEEN_NOTES = 1.0


@dataclass(frozen=True)
class Note:
    """The progress of a run that a worker executes.

    Args:
        relative_path: path of the record in the store.
        node, process: host and process that execute the run.
        since: start of this session, in seconds since the epoch.
        done: finished fraction, from 0 to 1.
        first: fraction at the first report of this session; above 0 for a run that resumed from a checkpoint.
        first_when: time of that report.
    """

    relative_path: str
    node: str
    process: int
    since: float
    done: float
    first: float
    first_when: float


@dataclass(frozen=True)
class Token:
    """Random text in the store that shows a process on another machine whether it sees the same store."""

    path: Path
    text: str

    def write(self) -> None:
        with suppress(OSError):  # without the token, other machines do not use the store
            self.path.write_text(self.text, encoding="utf-8")

    def is_visible(self) -> bool:
        try:
            return self.path.read_text(encoding="utf-8") == self.text
        except (OSError, ValueError):
            return False


class RunLock:
    """A run that this process has locked."""

    def __init__(self, lock: FileLock, relative_path: str) -> None:
        self._lock, self._path, self._relative_path = lock, Path(lock.lock_file), relative_path
        self._note: Note | None = None
        self._next = 0.0

    def start(self) -> None:
        """Record that a worker has started the run."""
        now = time.time()
        self._note = Note(self._relative_path, platform.node(), os.getpid(), now, 0.0, 0.0, now)
        self._write(self._note)

    def update(self, done: float) -> None:
        """Record the finished fraction of a started run, at most once per second."""
        assert self._note is not None
        if self._note.done == 0.0:
            self._note = replace(self._note, first=done, first_when=time.time())
        self._note = replace(self._note, done=done)
        if time.monotonic() >= self._next:
            self._write(self._note)

    def token(self) -> Token:
        """A new token, valid while the run is locked."""
        return Token(_token_path(self._path).absolute(), uuid4().hex)

    def release(self) -> None:
        """Unlock the run and remove its files."""
        _remove(self._path)
        self._lock.release()

    def _write(self, note: Note) -> None:
        self._next = time.monotonic() + SECONDS_BETWEEN_NOTES
        path, temporary = _note_path(self._path), _temporary_path(self._path)
        with suppress(OSError):  # a full disk is reported when the record is written
            # Only the holder of the lock writes, so one temporary name is enough.
            temporary.write_text(json.dumps(asdict(note)), encoding="utf-8")
            os.replace(temporary, path)


def lock_run(store: Path, identity: str, relative_path: str) -> RunLock | None:
    """Lock a run; None if another process (or another lock of this one) holds it."""
    path = store / FOLDER / identity
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _try_lock(path)
    if lock is None:
        return None
    _remove_notes(path)  # left by a holder that was killed
    return RunLock(lock, relative_path)


@contextmanager
def locked(store: Path, identity: str, relative_path: str) -> Iterator[RunLock | None]:
    """`lock_run` for the duration of a block."""
    lock = lock_run(store, identity, relative_path)
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def locked_runs(store: Path) -> dict[str, Note | None]:
    """Identity -> note of every locked run; None for a run that waits for a worker.

    Files of holders that were killed are removed.
    """
    found: dict[str, Note | None] = {}
    folder = store / FOLDER
    names = {path.name.partition(".")[0] for path in folder.iterdir()} if folder.is_dir() else set()
    for name in sorted(names):
        path = folder / name
        try:
            lock = _try_lock(path)
        except OSError:  # the store is read-only for this user
            continue
        if lock is None:
            found[name] = _read(_note_path(path))
        else:
            _remove(path)
            lock.release()
    return found


def _try_lock(path: Path) -> FileLock | None:
    """The lock on a file; None if it is held.

    On Unix, `FileLock` keeps the file on release, and discards a lock on a file that was unlinked between opening and
    locking. The holder of the lock can therefore safely unlink the file before the release.
    """
    # Not thread-local: the generator of an executor may be closed in another thread.
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def _note_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.json")


def _temporary_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.json.tmp")


def _token_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.token")


def _remove(lock: Path) -> None:
    """Remove the files of a run whose lock this process holds."""
    _remove_notes(lock)
    with suppress(OSError):  # Windows cannot remove an open file; the release removes it
        lock.unlink()


def _remove_notes(lock: Path) -> None:
    for path in (_note_path(lock), _temporary_path(lock), _token_path(lock)):
        with suppress(OSError):
            path.unlink()


def _read(path: Path) -> Note | None:
    try:
        return Note(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
