import json
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from weightclip.lab.sweep import locks
from weightclip.lab.sweep.locks import FOLDER, lock_run, locked, locked_runs


def hold(store: Path, channel: Connection) -> None:
    mine = lock_run(store, "abc", "toy/place")
    assert mine is not None
    channel.send(True)
    channel.recv()


def test_a_run_is_locked_until_its_lock_is_released(tmp_path: Path) -> None:
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        assert lock_run(tmp_path, "abc", "toy/place") is None
        assert lock_run(tmp_path, "other", "toy/other") is not None
    with locked(tmp_path, "abc", "toy/place") as again:
        assert again is not None


def test_a_released_lock_leaves_no_files(tmp_path: Path) -> None:
    with locked(tmp_path, "abc", "toy/place"):
        assert list((tmp_path / FOLDER).iterdir())
    assert not list((tmp_path / FOLDER).iterdir())


def test_a_note_contains_the_progress_of_a_run(tmp_path: Path) -> None:
    assert locked_runs(tmp_path) == {}
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        assert locked_runs(tmp_path) == {"abc": None}  # waits for a worker
        mine.start()
        note = locked_runs(tmp_path)["abc"]
        assert note is not None
        assert (note.relative_path, note.process, note.done) == ("toy/place", os.getpid(), 0.0)
    assert locked_runs(tmp_path) == {}


def test_a_note_contains_the_fraction_at_the_start_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_NOTES", 0.0)
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        mine.start()
        for done in (0.6, 0.7, 0.8):
            mine.update(done)
        note = locked_runs(tmp_path)["abc"]
        assert note is not None
        assert (note.first, note.done) == (0.6, 0.8)
        assert note.since <= note.first_when
        mine.start()  # on another worker, from the start
        mine.update(0.1)
        note = locked_runs(tmp_path)["abc"]
        assert note is not None
        assert (note.first, note.done) == (0.1, 0.1)


def test_the_note_of_a_killed_process_is_removed_by_the_next_lock(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    note = {"place": "toy/place", "node": "", "process": 1, "since": 0, "done": 0, "first": 0, "first_when": 0}
    (folder / "abc").touch()
    (folder / "abc.json").write_text(json.dumps(note))
    (folder / "abc.json.tmp").write_text("{")
    with locked(tmp_path, "abc", "toy/place"):
        assert locked_runs(tmp_path) == {"abc": None}
        assert [path.name for path in folder.iterdir()] == ["abc"]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name in ("abc", "abc.json", "abc.json.tmp", "abc.token", "def.json"):
        (folder / name).touch()
    assert locked_runs(tmp_path) == {}
    assert not list(folder.iterdir())


def test_progress_never_changes_the_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_NOTES", 0.0)
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        path = tmp_path / FOLDER / "abc"
        before = path.stat()
        mine.start()
        mine.update(0.5)
        assert lock_run(tmp_path, "abc", "toy/place") is None
        after = path.stat()
        assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, 0, before.st_mtime_ns)


def test_progress_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        mine.start()
        for step in range(100):
            mine.update(step / 100)
        note = locked_runs(tmp_path)["abc"]
        assert note is not None
        assert note.done == 0.0


def test_a_token_is_visible_while_its_file_contains_its_text(tmp_path: Path) -> None:
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        token = mine.token()
        assert not token.is_visible()
        token.write()
        assert token.is_visible()
        for content in (b"another token", b"\xff"):
            token.path.write_bytes(content)
            assert not token.is_visible()
        token.write()
    assert not token.is_visible()
    assert not list((tmp_path / FOLDER).iterdir())


def test_a_lock_may_be_released_by_another_thread(tmp_path: Path) -> None:
    mine = lock_run(tmp_path, "abc", "toy/place")
    assert mine is not None
    thread = threading.Thread(target=mine.release)
    thread.start()
    thread.join()
    assert locked_runs(tmp_path) == {}
    with locked(tmp_path, "abc", "toy/place") as again:
        assert again is not None


@pytest.mark.skipif(os.name != "posix", reason="earlier versions lock on POSIX alone")
def test_a_run_of_an_earlier_version_is_locked(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / FOLDER / "abc"
    path.parent.mkdir()
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write('{"place": "toy/place"}')
        file.flush()
        assert lock_run(tmp_path, "abc", "toy/place") is None
        assert locked_runs(tmp_path) == {"abc": None}
        assert path.read_text() == '{"place": "toy/place"}'


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    assert ours.recv()
    assert lock_run(tmp_path, "abc", "toy/place") is None
    assert list(locked_runs(tmp_path)) == ["abc"]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert locked_runs(tmp_path) == {}
    with locked(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None


def test_only_one_of_many_threads_holds_the_lock(tmp_path: Path) -> None:
    """A lock on a file that was removed between opening and locking is invalid."""
    inside = 0
    most = 0
    lock = threading.Lock()

    def want() -> None:
        nonlocal inside, most
        for _ in range(200):
            mine = lock_run(tmp_path, "abc", "toy/place")
            if mine is None:
                continue
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1
            mine.release()

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
