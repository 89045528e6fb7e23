"""Simulated processes: threads that run one at a time and can be killed before any file operation.

A process pauses before each operation in the store, whenever it waits, and whenever it sends a message. It continues
when `Process.step` is called. A killed process leaves its files unchanged and loses its locks, as with `kill -9`.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from weightclip.lab import files
from weightclip.lab.sweep import local, locks

EVENTS = {"open": 0, "os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.listdir": 0, "os.scandir": 0}
"""Operations before which a process pauses, and the argument with the path."""

_here = threading.local()


class Killed(BaseException):
    """Ends the thread of a killed process."""


class Machine:
    """A machine with a store.

    Attributes:
        full: number of operations that fail because the disk is full.
        lines: messages of the workers.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.full = 0
        self.processes: list[Process] = []
        self.lines: list[str] = []

    def start(self, target: Callable[[], object], parent: Process | None = None, skew: float = 0.0) -> Process:
        process = Process(self, target, parent, skew)
        self.processes.append(process)
        return process

    def live(self) -> list[Process]:
        return [process for process in self.processes if not process.ended]

    def runnable(self) -> list[Process]:
        return [process for process in self.live() if process.can_continue()]

    def kill_orphans(self) -> None:
        """Workers end after their driver."""
        for process in self.live():
            if process.parent is not None and process.parent.ended:
                process.kill()


class Process:
    def __init__(self, machine: Machine, target: Callable[[], object], parent: Process | None, skew: float) -> None:
        self.machine, self.parent, self.skew = machine, parent, skew
        self.number = 10**6 + len(machine.processes)
        self.error: BaseException | None = None
        self.killed = self.ended = False
        self.operation = self.path = ""  # where the process pauses, and the path of the last operation on a file
        self.can_continue: Callable[[], bool] = lambda: True
        self.locks: list[FileLock] = []
        self._target = target
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the process run until its next pause or its end."""
        if not self.ended:
            self._turn.release()
            self._back.acquire()

    def kill(self) -> None:
        self.killed = True
        self.step()
        self._thread.join()

    def pause(self, can_continue: Callable[[], bool] = lambda: True, operation: str = "") -> None:
        """Pause, in the thread of this process, before an operation and at least until a condition holds."""
        if not self.killed:
            self.operation = operation
            self.can_continue = can_continue
            self._back.release()
            self._turn.acquire()
        if self.killed:
            raise Killed

    def _main(self) -> None:
        _here.process = self
        self._turn.acquire()
        try:
            if not self.killed:
                self._target()
        except (Killed, SystemExit):
            pass
        except BaseException as error:
            self.error = error
        finally:
            _here.process = None
            for lock in self.locks:  # the operating system closes the files of a process
                lock.release(force=True)
            self.ended = True
            self._back.release()


def current() -> Process | None:
    return getattr(_here, "process", None)


def _before_operation(event: str, arguments: tuple[Any, ...]) -> None:
    process = current()
    if process is None or event not in EVENTS:
        return
    path = arguments[EVENTS[event]]
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).startswith(str(process.machine.store)):
        return
    process.path = os.fspath(path)
    process.pause(operation=event)
    creates = event == "os.mkdir" or (event == "open" and arguments[2] & os.O_CREAT)
    if process.machine.full and creates and not os.path.exists(path):
        process.machine.full -= 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextmanager
def simulated(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace processes, pipes and clocks in the package by simulated ones."""
    _install_hook()
    sleep, clock, is_running = time.sleep, time.time, files._is_running

    def simulated_fsync(descriptor: int) -> None:
        """A write that is interrupted or exceeds the disk space leaves a partial file."""
        process = current()
        try:
            if process is not None:
                process.pause(operation="fsync")
                if process.machine.full:
                    process.machine.full -= 1
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            with suppress(OSError):  # a directory
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise
        os.fsync(descriptor)

    def simulated_sleep(seconds: float) -> None:
        process = current()
        if process is None:
            sleep(seconds)
        else:
            process.pause()

    def make_lock(*arguments: Any, **options: Any) -> FileLock:
        lock = FileLock(*arguments, **options)
        process = current()
        if process is not None:
            process.locks.append(lock)
        return lock

    def is_alive(number: int) -> bool:
        process = current()
        known = {one.number: one for one in process.machine.processes} if process is not None else {}
        return not known[number].ended if number in known else is_running(number)

    def simulated_getpid() -> int:
        process = current()
        return os.getpid() if process is None else process.number

    def simulated_time() -> float:
        process = current()
        return clock() + (0.0 if process is None else process.skew)

    system = SimpleNamespace(**{**vars(os), "fsync": simulated_fsync, "getpid": simulated_getpid})
    patch.setattr(files, "os", system)
    patch.setattr(time, "sleep", simulated_sleep)
    patch.setattr(time, "time", simulated_time)
    patch.setattr(files, "_is_running", is_alive)
    patch.setattr(locks, "FileLock", make_lock)
    patch.setattr(locks, "SECONDS_BETWEEN_NOTES", 0.0)
    patch.setattr(local, "SECONDS_BETWEEN_REPORTS", 0.0)
    patch.setattr(local, "get_context", lambda method: SimpleNamespace(Pipe=_pipe, Process=_Child))
    patch.setattr(local, "connection", SimpleNamespace(wait=_wait))
    patch.setattr(local, "signal", SimpleNamespace(signal=lambda *_: None, SIGINT=0, SIG_IGN=0))
    patch.setattr(local, "_end_with_parent", lambda: None)  # `Machine.kill_orphans`
    yield


_installed = False


def _install_hook() -> None:
    """Install the audit hook. Hooks cannot be removed; it ignores threads that are not simulated processes."""
    global _installed
    if not _installed:
        sys.addaudithook(_before_operation)
        _installed = True


class _End:
    """One end of a pipe."""

    def __init__(self) -> None:
        self.holder, self.inbox, self.closed = current(), deque[Any](), False
        self.peer: _End

    def is_gone(self) -> bool:
        return self.closed or (self.holder is not None and self.holder.ended)

    def is_ready(self) -> bool:
        return bool(self.inbox) or self.peer.is_gone()

    def send(self, message: Any) -> None:
        process = current()
        assert process is not None
        process.pause()
        if isinstance(message, str):
            process.machine.lines.append(message)
        if self.peer.is_gone():
            raise BrokenPipeError
        self.peer.inbox.append(message)

    def recv(self) -> Any:
        _wait([self])
        if not self.inbox:
            raise EOFError
        return self.inbox.popleft()

    def close(self) -> None:
        if self.holder is current():
            self.closed = True


def _pipe() -> tuple[_End, _End]:
    one, other = _End(), _End()
    one.peer, other.peer = other, one
    return one, other


def _wait(objects: Sequence[Any]) -> list[Any]:
    """Wait for messages or the end of processes."""
    process = current()
    assert process is not None
    while not (ready := [one for one in objects if one.is_ready()]):
        process.pause(lambda: any(one.is_ready() for one in objects))
    return ready


class _Child:
    """A worker process, which is also its own sentinel."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        self._target, self._args = target, args
        self.sentinel = self

    def start(self) -> None:
        parent = current()
        assert parent is not None
        self._process = parent.machine.start(lambda: self._target(*self._args), parent, parent.skew)
        self._args[0].holder = self._process

    def is_ready(self) -> bool:
        return self._process.ended

    def is_alive(self) -> bool:
        return not self._process.ended

    def terminate(self) -> None:
        process = current()
        assert process is not None
        process.pause()
        self._process.kill()

    kill = terminate

    def join(self, timeout: float | None = None) -> None:
        assert self._process.ended
