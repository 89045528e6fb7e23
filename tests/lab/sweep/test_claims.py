import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from weightclip.lab.sweep import claims
from weightclip.lab.sweep.claims import FOLDER, claim, claimed, running


def hold(store: Path, channel: Connection) -> None:
    mine = claim(store, "abc", "toy/place")
    assert mine is not None
    channel.send(True)
    channel.recv()


def test_a_claim_is_one_processs_until_it_lets_go(tmp_path: Path) -> None:
    with claimed(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        assert claim(tmp_path, "abc", "toy/place") is None
        assert claim(tmp_path, "other", "toy/other") is not None
    with claimed(tmp_path, "abc", "toy/place") as again:
        assert again is not None


def test_a_claim_leaves_nothing_behind(tmp_path: Path) -> None:
    with claimed(tmp_path, "abc", "toy/place"):
        assert list((tmp_path / FOLDER).iterdir())
    assert not list((tmp_path / FOLDER).iterdir())


def test_a_claim_says_how_far_its_run_is(tmp_path: Path) -> None:
    assert running(tmp_path) == {}
    with claimed(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        assert running(tmp_path) == {"abc": None}  # it waits for a worker
        mine.begin()
        note = running(tmp_path)["abc"]
        assert note is not None
        assert (note.relative_path, note.process, note.done) == ("toy/place", os.getpid(), 0.0)
    assert running(tmp_path) == {}


def test_a_claim_remembers_what_was_done_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "SECONDS_BETWEEN_NOTES", 0.0)
    with claimed(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None
        mine.begin()
        for done in (0.6, 0.7, 0.8):
            mine.note(done)
        note = running(tmp_path)["abc"]
        assert note is not None
        assert (note.first, note.done) == (0.6, 0.8)
        assert note.since <= note.first_when
        mine.begin()  # on another worker, from its start
        mine.note(0.1)
        note = running(tmp_path)["abc"]
        assert note is not None
        assert (note.first, note.done) == (0.1, 0.1)


def test_a_claim_does_not_say_what_a_killed_process_said(tmp_path: Path) -> None:
    path = tmp_path / FOLDER / "abc"
    path.parent.mkdir()
    path.write_text('{"place": "toy/place", "node": "", "process": 1, "since": 0, "done": 0, "first": 0}')
    with claimed(tmp_path, "abc", "toy/place"):
        assert path.read_text() == ""


def test_the_claim_of_a_killed_process_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    assert ours.recv()
    assert claim(tmp_path, "abc", "toy/place") is None
    assert list(running(tmp_path)) == ["abc"]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert running(tmp_path) == {}
    with claimed(tmp_path, "abc", "toy/place") as mine:
        assert mine is not None


def test_of_many_that_want_it_at_once_only_one_gets_it(tmp_path: Path) -> None:
    """Claims are taken and let go all the time: whoever opened a file that was then removed has to notice."""
    inside = 0
    most = 0
    lock = threading.Lock()

    def want() -> None:
        nonlocal inside, most
        for _ in range(200):
            mine = claim(tmp_path, "abc", "toy/place")
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
