import math
import time
from pathlib import Path

import pytest
from toy import Toy, toy_plan

from weightclip.lab.experiment import Cost
from weightclip.lab.sweep import calibration
from weightclip.lab.sweep.calibration import alone, calibrate
from weightclip.lab.sweep.sweep import look

STORE = Path("no such directory")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The methods that were measured, in a cache of their own."""
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Toy, "alike", lambda self, config: config.method)
    monkeypatch.setattr(calibration, "SHORTEST", math.inf)  # whatever else the machine does
    found: list[str] = []

    def estimate(self: Toy, config: object, data: object, together: int) -> Cost:
        found.append(config.method)  # type: ignore[attr-defined]
        return Cost(2.0, 1000)

    monkeypatch.setattr(Toy, "estimate", estimate)
    return found


def test_runs_that_cost_the_same_are_measured_once_and_remembered(measured: list[str]) -> None:
    plan = toy_plan(3, {"lr": 1.0}, {"lr": 2.0}, {"method": "slow"})
    costs = calibrate(plan, look(plan, STORE))
    assert measured == ["fast", "slow"]
    assert calibrate(plan, look(plan, STORE)) == costs == {run.identity: Cost(2.0, 1000) for run in plan.runs}
    assert measured == ["fast", "slow"]


def test_a_damaged_memory_is_made_anew(measured: list[str], tmp_path: Path) -> None:
    plan = toy_plan(1)
    calibrate(plan, look(plan, STORE))
    (path,) = (tmp_path / "cache").rglob("*.json")
    path.write_text("[1")
    calibrate(plan, look(plan, STORE))
    assert measured == ["fast", "fast"]


def test_what_is_done_tells_what_the_rest_takes(measured: list[str], tmp_path: Path) -> None:
    plan = toy_plan(3, {"method": "slow"})
    Toy().run([run.config for run in plan.runs[:2]], None, tmp_path)
    costs = calibrate(plan, look(plan, tmp_path))
    assert {cost.seconds for cost in costs.values()} == {0.1}  # as the toy's records have it
    assert costs[plan.runs[2].identity].bytes > 1000
    assert measured == []


def test_only_what_is_to_be_run_is_measured(measured: list[str], tmp_path: Path) -> None:
    plan = toy_plan(1, {"method": "slow"}, {"method": "fast"})
    Toy().run([plan.runs[0].config], None, tmp_path)
    calibrate(plan, look(plan, tmp_path))
    assert measured == ["fast"]


def test_time_without_a_core_does_not_count() -> None:
    def wait() -> Cost:
        time.sleep(0.2)
        return Cost(100.0, 1000)

    cost = alone(wait)
    assert cost.seconds < 50
    assert cost.bytes == 1000


def test_no_more_is_told_than_was_measured() -> None:
    def work() -> Cost:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        return Cost(100.0, 1000)

    assert 0 < alone(work).seconds <= 100
