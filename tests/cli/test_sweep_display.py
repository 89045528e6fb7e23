import time

import pytest

from weightclip.cli.sweep_display import Tally, show_sweep
from weightclip.lab.experiments.streaming.experiment import EXPERIMENT
from weightclip.lab.records.store import relative_path
from weightclip.lab.sweep.executor import Advanced, Ended, Message, Started
from weightclip.lab.sweep.plan import Inventory, Run
from weightclip.lab.sweep.worker import Outcome


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def runs(method: str, count: int) -> tuple[Run, ...]:
    return tuple(
        Run("streaming", config, f"{method}-{config.seed}", relative_path(EXPERIMENT.schema, config), "mnist")
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
    assert (tally.running["adam"], tally.left["adam"]) == (2, 2)
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "done"),)))
    tally.add(Ended("2", LEFT[1:2], (Outcome("adam-1", "failed", reason="x"),)))
    assert (tally.done["adam"], tally.failed["adam"], tally.left["adam"], tally.ended) == (1, 1, 2, 2)


def test_runs_of_another_process_do_not_count_as_left() -> None:
    tally = Tally(INVENTORY, SECONDS, 2, Clock())
    tally.add(Started("1", LEFT[:1]))
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "locked"),)))
    assert (tally.left["adam"], tally.ended) == (4, 0)


def test_the_time_left_is_unknown_before_the_first_progress() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, {}, 2, clock)
    assert tally.seconds_left is None
    assert "to go" not in tally.line()
    tally.add(Started("1", LEFT[:1]))
    tally.add(Advanced("1", 0.1))
    clock.now = 10.0
    tally.add(Advanced("1", 0.2))  # a run takes 100 s
    assert tally.seconds_left == pytest.approx((80 + 300) / 2)


def test_the_time_left_is_estimated_from_the_speed_so_far() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, SECONDS, 2, clock)
    assert tally.seconds_left == 200.0  # 400 s of work for two workers
    tally.add(Started("1", LEFT[:1]))
    tally.add(Started("2", LEFT[1:2]))
    tally.add(Advanced("2", 1e-9))
    clock.now = 50.0
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "done", seconds=50.0),)))
    tally.add(Advanced("2", 0.5))
    each = (50 + 50 + 0.1 * 100) / (1 + 0.5 + 0.1)  # the earlier estimate has the weight of a tenth of a run
    assert tally.seconds_left == pytest.approx(2.5 * each / 2)


def test_runs_in_lockstep_share_their_workers_time() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, {}, 1, clock)
    tally.add(Started("1", LEFT[:2]))
    assert tally.line() == "2 done, 2 running, 2 left"
    clock.now = 60.0
    outcomes = tuple(Outcome(f"adam-{number}", "done", seconds=30.0) for number in range(2))
    tally.add(Ended("1", LEFT[:2], outcomes))
    assert tally.seconds_left == 60.0


def test_earlier_progress_does_not_count_as_speed() -> None:
    """Ten runs of 600 s, one of which resumes at 60 %."""
    ten = runs("adam", 10)
    clock = Clock()
    tally = Tally(Inventory((), (), ten), {run.identity: 600.0 for run in ten}, 1, clock)
    tally.add(Started("1", ten[:1]))
    tally.add(Advanced("1", 0.6))
    clock.now = 10.0
    tally.add(Advanced("1", 0.6 + 10 / 600))
    assert tally.seconds_left == pytest.approx(9 * 600 + 230)
    clock.now = 240.0
    tally.add(Ended("1", ten[:1], (Outcome("adam-0", "done", seconds=600.0),)))
    assert tally.seconds_left == pytest.approx(9 * 600)


def test_a_slow_start_does_not_inflate_the_time_left() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, SECONDS, 2, clock)
    tally.add(Started("1", LEFT[:1]))
    clock.now = 20.0  # the time in which a cluster starts and its workers import and compile
    assert tally.seconds_left == pytest.approx(200)
    tally.add(Advanced("1", 0.001))
    clock.now = 25.0
    tally.add(Advanced("1", 0.002))
    assert 200 < tally.seconds_left < 300


def test_failed_runs_and_runs_of_other_processes_do_not_count_as_speed() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, SECONDS, 2, clock)
    for number, outcome in enumerate((Outcome("adam-0", "done"), Outcome("adam-1", "failed", reason="x"))):
        tally.add(Started(str(number), LEFT[number : number + 1]))
        clock.now += 0.1
        tally.add(Ended(str(number), LEFT[number : number + 1], (outcome,)))
    assert tally.seconds_left == 100.0  # two of four runs on two workers


def test_fewer_workers_than_requested_increase_the_time_left() -> None:
    clock = Clock()
    tally = Tally(INVENTORY, SECONDS, 100, clock)
    assert tally.seconds_left == 100.0
    tally.add(Started("1", LEFT[:1]))
    clock.now = 100.0
    tally.add(Ended("1", LEFT[:1], (Outcome("adam-0", "done", seconds=100.0),)))
    assert tally.seconds_left == pytest.approx(300.0)


def test_additional_workers_do_not_speed_up_the_last_run() -> None:
    assert Tally(Inventory(DONE, (), LEFT[:1]), SECONDS, 2, Clock()).seconds_left == 100.0


def test_without_a_terminal_lines_are_printed_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with show_sweep(INVENTORY, SECONDS, 2, clock) as shown:
        shown.report(Started("1", LEFT[:1]))
        shown.report(Message("a worker died"))
        clock.now = 60.0
        shown.report(Ended("1", LEFT[:1], (Outcome("adam-0", "failed", reason="ValueError: no"),)))
    assert capsys.readouterr().out.splitlines() == [
        "a worker died",
        "failed: input-permuted-mnist/adam/lr0.0001_seed0: ValueError: no",
        "2 done, 1 failed, 0 running, 3 left, 1 runs/min, 2:30 to go",
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with show_sweep(INVENTORY, SECONDS, 2, Clock()) as shown:
        shown.report(Started("1", LEFT[:1]))
        shown.say("a [bold] line")
        out = ""
        deadline = time.monotonic() + 60
        while "lr0.0001_seed0" not in out and time.monotonic() < deadline:  # a thread draws it periodically
            time.sleep(0.05)
            out += capsys.readouterr().out
    for part in ("method", "done", "running", "failed", "left", "adam", "to go", "a [bold] line", "lr0.0001_seed0"):
        assert part in out


def stop() -> None:
    with show_sweep(INVENTORY, SECONDS, 2, Clock()) as shown:
        shown.report(Started("1", LEFT[:1]))
        raise KeyboardInterrupt


@pytest.mark.usefixtures("terminal")
def test_the_final_table_after_ctrl_c_shows_no_running_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        stop()
    pictures = capsys.readouterr().out.split("method")
    assert "to go" in pictures[1]
    assert "to go" not in pictures[-1]
    assert "lr0.0001_seed0" not in pictures[-1]
    assert "2 done, 0 running, 4 left" in pictures[-1]
