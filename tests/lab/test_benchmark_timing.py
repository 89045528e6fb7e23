"""The time limit of the scripts in benchmarks/."""

import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import timing

Clock = Callable[[float], None]


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that advances only when called, by the given number of seconds."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(timing, "elapsed", lambda: now)
    return advance


@pytest.mark.parametrize(
    ("seconds", "number"), [(1.0, 5), (3.0, 3), (4.0, 2), (6.0, 1), (100.0, 1)], ids=lambda value: f"{value:g}"
)
def test_rounds_end_before_the_deadline_except_the_first(seconds: float, number: int, advance: Clock) -> None:
    found = []
    for turn in timing.rounds(5, until=10.0):
        found.append(turn)
        advance(seconds)
    assert found == list(range(number))


def test_without_quick_only_the_number_of_rounds_is_limited(advance: Clock) -> None:
    assert timing.deadline(quick=False) == math.inf
    assert timing.deadline(quick=True) < timing.CUT < 45
    found = []
    for turn in timing.rounds(3, timing.deadline(quick=False)):
        found.append(turn)
        advance(1e6)
    assert found == [0, 1, 2]


def test_the_time_limit_interrupts_the_block_and_keeps_its_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "CUT", timing.elapsed() + 0.05)
    found = ["before"]
    with timing.time_limit(quick=True):
        try:
            time.sleep(30)
        except Exception:
            found.append("caught by a library")
        found.append("after")
    assert found == ["before"]
    assert "cut after" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report when a process started")
def test_times_count_from_the_start_of_the_process() -> None:
    code = "import time; time.sleep(0.3); import timing; print(timing.elapsed())"
    directory = Path(timing.__file__).parent
    result = subprocess.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=True)
    assert float(result.stdout) >= 0.29  # the resolution is a hundredth of a second


def test_a_claim_prints_one_line_even_if_the_time_was_up(capsys: pytest.CaptureFixture[str]) -> None:
    timing.print_claim("ours / theirs", timing.median_ratio([3.0, 9.0, 8.0], [1.0, 2.0]))
    timing.print_claim("not reached", timing.median_ratio([], []))
    assert capsys.readouterr().out == "ours / theirs: 3.75\nnot reached: not measured in time\n"
