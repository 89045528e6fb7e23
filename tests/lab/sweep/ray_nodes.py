"""A Ray cluster of several nodes on one machine: a raylet on each of some loopback addresses, which can be killed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RAY = Path(sys.executable).with_name("ray")
SECONDS = 240.0
"""What no wait exceeds."""


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


class Node:
    """A node of one core. Its processes are those of a session."""

    def __init__(self, address: str, *options: str) -> None:
        words = [str(RAY), "start", f"--node-ip-address={address}", "--num-cpus=1", "--disable-usage-stats", "--block"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [*words, *options], start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet
        )

    def kill(self) -> None:
        """`kill -9` of the raylet and of all that it started."""
        for process in _session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(SECONDS)


class Cluster:
    """A head, where a driver runs, and other nodes."""

    def __init__(self, folder: str) -> None:
        port = _free_port()
        self.address = f"127.0.0.2:{port}"
        head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        self._nodes = [Node("127.0.0.2", *head)]
        try:
            wait_for(lambda: _answers("127.0.0.2", port), "the head")
        except BaseException:
            self.end()
            raise

    def add(self) -> Node:
        node = Node(f"127.0.0.{len(self._nodes) + 2}", f"--address={self.address}")
        self._nodes.append(node)
        return node

    def end(self) -> None:
        for node in reversed(self._nodes):
            node.kill()


@contextmanager
def cluster() -> Iterator[Cluster]:
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short: the path of a socket has at most 107 characters
    try:
        found = Cluster(folder)
        try:
            yield found
        finally:
            found.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _session(leader: int) -> list[int]:
    """The processes of a session, the leader first."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(folder.name))
    return sorted(found, key=lambda process: process != leader)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


def _answers(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False
