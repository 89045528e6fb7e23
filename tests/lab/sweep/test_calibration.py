from pathlib import Path

import pytest
from toy import Toy, toy_plan

from weightclip.lab.experiment import Cost
from weightclip.lab.sweep.calibration import calibrate


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The methods that were measured, in a cache of their own."""
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Toy, "alike", lambda self, config: config.method)
    found: list[str] = []

    def estimate(self: Toy, config: object, data: object) -> Cost:
        found.append(config.method)  # type: ignore[attr-defined]
        return Cost(2.0, 1000)

    monkeypatch.setattr(Toy, "estimate", estimate)
    return found


def test_runs_that_cost_the_same_are_measured_once_and_remembered(measured: list[str]) -> None:
    plan = toy_plan(3, {"lr": 1.0}, {"lr": 2.0}, {"method": "slow"})
    costs = calibrate(plan)
    assert measured == ["fast", "slow"]
    assert calibrate(plan) == costs == {run.identity: Cost(2.0, 1000) for run in plan.runs}
    assert measured == ["fast", "slow"]


def test_a_damaged_memory_is_made_anew(measured: list[str], tmp_path: Path) -> None:
    calibrate(toy_plan(1))
    (path,) = (tmp_path / "cache").rglob("*.json")
    path.write_text("[1")
    calibrate(toy_plan(1))
    assert measured == ["fast", "fast"]
