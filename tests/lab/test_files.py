import errno
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weightclip.lab.files import make_directory, remove_leftovers, write_whole


def test_a_file_is_replaced_and_its_directories_are_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, moment, full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_whole(path, b"new")
    assert raised.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interruption_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file/inside"):
        make_directory(tmp_path / "file" / "inside")
    make_directory(tmp_path / "new" / "inside")
    assert list((tmp_path / "new" / "inside").iterdir()) == []


def test_only_leftovers_of_killed_local_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        "killed": f".run.parquet.{platform.node()}.{ended.pid}.0.tmp",
        "alive": f".run.parquet.{platform.node()}.{os.getpid()}.0.tmp",
        "elsewhere": f".run.parquet.another-machine.{ended.pid}.0.tmp",
        "another file": f".run2.parquet.{platform.node()}.{ended.pid}.0.tmp",
        "strange": ".run.parquet.tmp",
    }
    for name in names.values():
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {kind for kind, name in names.items() if (tmp_path / name).exists()} == {"alive", "elsewhere", "strange"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_leftovers_of_a_zombie_process_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout is not None
        ended.stdout.read()  # returns when the process ends; the process has not been reaped yet
        leftover = tmp_path / f".file.{platform.node()}.{ended.pid}.0.tmp"
        leftover.touch()
        deadline = time.monotonic() + 30
        while leftover.exists() and time.monotonic() < deadline:
            remove_leftovers(tmp_path)
    assert not leftover.exists()
