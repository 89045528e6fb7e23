"""A Ray cluster of several nodes on one machine: raylets on different loopback addresses, which can be killed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from processes import SECONDS, wait_for

RAY = Path(sys.executable).with_name("ray")


class Node:
    """A node with one core. Its processes form a session."""

    def __init__(self, address: str, *options: str) -> None:
        words = [str(RAY), "start", f"--node-ip-address={address}", "--num-cpus=1", "--disable-usage-stats", "--block"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [*words, *options], start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet
        )

    def is_working(self) -> bool:
        """Return whether a worker of the node runs a job; Ray names processes after their tasks."""
        return any(_command_line(process).startswith("ray::_serve") for process in _session(self._process.pid))

    def kill(self) -> None:
        """`kill -9` the raylet and all processes that it started."""
        for process in _session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(SECONDS)


class Cluster:
    """A head node for the driver, and worker nodes."""

    def __init__(self, folder: str) -> None:
        port = _free_port()
        self.address = f"127.0.0.2:{port}"
        head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        self.head = Node("127.0.0.2", *head)
        self.nodes = [self.head]
        try:
            wait_for(lambda: _is_reachable("127.0.0.2", port), "the head")
        except BaseException:
            self.end()
            raise

    def add(self) -> Node:
        node = Node(f"127.0.0.{len(self.nodes) + 2}", f"--address={self.address}")
        self.nodes.append(node)
        return node

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.kill()


@contextmanager
def cluster() -> Iterator[Cluster]:
    with short_folder() as folder:
        found = Cluster(folder)
        try:
            yield found
        finally:
            found.end()


@contextmanager
def short_folder() -> Iterator[str]:
    """A short temporary directory: socket paths have at most 107 characters, and Ray uses most of them."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _session(leader: int) -> list[int]:
    """Return the processes of a session, the leader first."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(folder.name))
    return sorted(found, key=lambda process: process != leader)


def _command_line(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text()
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


def _is_reachable(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False
