import re
import time

import pytest

from weightclip.lab.progress import show_progress

pytestmark = pytest.mark.usefixtures("empty_directory")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def format_accuracy(score: float) -> str:
    return f"online accuracy {score:.1%}"


def output_until(capsys: pytest.CaptureFixture[str], wanted: str) -> str:
    """Return the output up to the time when the drawing thread has printed the given text."""
    out, deadline = "", time.monotonic() + 60
    while wanted not in out and time.monotonic() < deadline:
        time.sleep(0.05)
        out += capsys.readouterr().out
    return out


def test_without_a_terminal_lines_are_printed_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with show_progress(runs=2, steps=1000, unit="samples", format_score=format_accuracy, clock=clock) as display:
        display.say("data: here")
        for run in range(2):
            display.begin(f"seed {run}")
            for samples in range(100, 1001, 100):
                clock.now += 3.0
                display.update(samples, 0.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["data: here", "seed 0: 400 of 1,000 samples, online accuracy 50.0%, 33 samples/s, 0:48 left"]
    assert 5 <= len(lines) <= 7
    assert lines[-1] == "seed 1: 1,000 of 1,000 samples, online accuracy 50.0%, 33 samples/s"


def test_batched_runs_are_reported_separately_from_their_total(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with show_progress(runs=4, steps=1000, unit="steps", format_score=format_accuracy, clock=clock) as display:
        display.begin("seed 0, 1, 2, 3", runs_in_lockstep=4)
        for steps in (100, 200):
            clock.now += 10.0
            display.update(steps, 0.5)
    expected = "seed 0, 1, 2, 3: 200 of 1,000 steps each, online accuracy 50.0%, 40 steps/s together, 1:20 left"
    assert capsys.readouterr().out.splitlines()[-1] == expected


def test_time_left_excludes_earlier_progress_and_finished_runs(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with show_progress(runs=3, steps=100_000, unit="samples", format_score=format_accuracy, clock=clock) as display:
        display.begin("seed 0")  # finished earlier and reports nothing
        display.begin("seed 1")
        display.update(90_000, 0.5)  # resumes from there
        clock.now += 20
        display.update(92_000, 0.5)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("18:00 left")  # 8,000 + 100,000 samples at 100 per second


def test_a_terminal_shows_a_progress_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock = Clock()
    with show_progress(runs=1, steps=1000, unit="samples", format_score=format_accuracy, clock=clock) as display:
        display.begin("input-permuted-mnist adam+wc seed 0")
        display.update(100, 0.25)
        clock.now += 1
        display.update(600, 0.75)
        display.say("data: [here]")
        out = output_until(capsys, "0:01 left")
    assert "data: [here]" in out
    assert "input-permuted-mnist adam+wc seed 0" in out
    assert "60%" in out
    assert "accuracy 75.0%" in out
    assert "500 samples/s" in out
    assert "0:01 left" in out


def terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))


def test_in_80_columns_names_are_truncated_before_the_percentage_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(80, monkeypatch)
    clock = Clock()
    with show_progress(runs=8, steps=1000, unit="samples", format_score=format_accuracy, clock=clock) as display:
        display.begin("label-permuted-mini-imagenet adam-equal-betas+l2init+wc seed 0–7", runs_in_lockstep=8)
        display.update(100, 0.25)
        clock.now += 1
        display.update(600, 0.75)
        lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output_until(capsys, "0:01 left")))
    bars = [line for line in lines if "60%" in line]
    assert bars
    for bar in bars:
        assert len(bar) <= 80
        assert "0:01 left" in bar
        assert "━" in bar
        assert "label-permuted" in bar
        assert "…" in bar


def test_a_previously_finished_run_has_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(80, monkeypatch)
    with show_progress(runs=1, steps=1000, unit="samples", format_score=format_accuracy, clock=Clock()) as display:
        display.begin("input-permuted-mnist sgd seed 0")
        display.say("input-permuted-mnist sgd seed 0: already finished")
    assert "%" not in capsys.readouterr().out


def test_nothing_is_displayed_if_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(runs=1, steps=1000, unit="samples", format_score=format_accuracy, enabled=False) as display:
        display.begin("seed 0")
        display.update(1000, 0.5)
        display.say("data: here")
    assert capsys.readouterr().out == ""
