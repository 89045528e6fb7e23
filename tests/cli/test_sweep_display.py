import pytest

from weightclip.cli.sweep_display import Tally, display
from weightclip.lab.streaming.plugin import EXPERIMENT
from weightclip.lab.sweep.executor import Advanced, Ended, Said, Started
from weightclip.lab.sweep.plan import Run
from weightclip.lab.sweep.sweep import Inventory
from weightclip.lab.sweep.work import Outcome


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def runs(method: str, count: int) -> tuple[Run, ...]:
    return tuple(
        Run("streaming", config, f"{method}-{config.seed}", EXPERIMENT.place(config), "mnist")
        for config in (
            EXPERIMENT.configure("input-permuted-mnist", {"method": method, "seed": seed}) for seed in range(count)
        )
    )


DONE, LEFT = runs("sgd", 2), runs("adam", 4)
INVENTORY = Inventory(DONE, (), LEFT)
SECONDS = {run.identity: 100.0 for run in LEFT}


def test_runs_are_counted_by_method() -> None:
    tally = Tally(INVENTORY, SECONDS, 2, Clock())
    assert (tally.done["sgd"], tally.left["adam"]) == (2, 4)
    tally.add(Started("1", LEFT[:1]))
    tally.add(Started("2", LEFT[1:2]))
    assert tally.running["adam"] == 2
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "done"),)))
    tally.add(Ended("2", LEFT[1:2], (Outcome("adam-1", "failed", reason="x"),)))
    assert (tally.done["adam"], tally.failed["adam"], tally.left["adam"], tally.ended) == (1, 1, 2, 2)


def test_what_somebody_else_has_stays_left() -> None:
    tally = Tally(INVENTORY, SECONDS, 2, Clock())
    tally.add(Started("1", LEFT[:1]))
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "claimed"),)))
    assert (tally.left["adam"], tally.ended) == (4, 0)


def test_the_time_left_follows_the_speed_so_far() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, SECONDS, 2, clock)
    assert tally.seconds_left == 200.0  # 400 s of work for two workers
    tally.add(Started("1", LEFT[:1]))
    tally.add(Started("2", LEFT[1:2]))
    clock.now = 50.0
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "done"),)))
    tally.add(Advanced("2", 0.5))
    assert tally.seconds_left == pytest.approx(250 * 50 / 150)  # 150 s of work took 50


def test_without_a_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with display(INVENTORY, SECONDS, 2, clock) as shown:
        shown.report(Started("1", LEFT[:1]))
        shown.report(Said("a worker died"))
        clock.now = 60.0
        shown.report(Ended("1", LEFT[:1], (Outcome("adam-0", "failed", reason="ValueError: no"),)))
    assert capsys.readouterr().out.splitlines() == [
        "a worker died",
        "failed: input-permuted-mnist/adam/lr0.0001_seed0: ValueError: no",
        "2 done, 1 failed, 0 running, 3 left, 1 runs/min, 3:00 to go",
    ]


def test_on_a_terminal_there_is_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with display(INVENTORY, SECONDS, 2, Clock()) as shown:
        shown.report(Started("1", LEFT[:1]))
        shown.say("a [bold] line")
    out = capsys.readouterr().out
    for part in ("method", "done", "running", "failed", "left", "adam", "to go", "a [bold] line", "lr0.0001_seed0"):
        assert part in out
