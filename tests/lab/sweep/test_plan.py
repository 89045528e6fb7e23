from pathlib import Path

import polars as pl
import pytest
from toy_experiment import toy_plan

from weightclip.lab.data.download import offline
from weightclip.lab.records.record import Record, write_record
from weightclip.lab.records.store import record_path
from weightclip.lab.registry import experiment_of, experiments
from weightclip.lab.sweep.plan import MISSING, Plan, Run, batches, known_costs, make_plan, make_runs, with_seeds

TABLE = pl.DataFrame({"seed": [7], "iteration": [1]})


def test_a_plan_is_ordered_by_seed_without_duplicates() -> None:
    plan = toy_plan(2, {"lr": 1.0}, {"lr": 2.0}, {"lr": 1.0})
    assert [(run.config.seed, run.config.lr) for run in plan.runs] == [(0, 1.0), (0, 2.0), (1, 1.0), (1, 2.0)]


def test_a_run_is_identified_by_content() -> None:
    few, more = toy_plan(2, {"lr": 1.0}), toy_plan(3, {"lr": 1.0}, {"lr": 2.0})
    assert {run.identity for run in few.runs} < {run.identity for run in more.runs}
    assert len({run.identity for run in more.runs}) == 6


def test_runs_are_batched_only_if_their_experiment_supports_it() -> None:
    assert [len(job) for job in batches(toy_plan(3, {"lr": 1.0}, {"lr": 2.0}).runs)] == [1] * 6
    jobs = batches(toy_plan(3, {"lr": 1.0}, {"lr": 2.0}, together=True).runs)
    assert [[(run.config.lr, run.config.seed) for run in job] for job in jobs] == [
        [(1.0, 0), (1.0, 1), (1.0, 2)],
        [(2.0, 0), (2.0, 1), (2.0, 2)],
    ]


def test_the_cost_of_a_run_is_estimated_from_finished_runs_with_other_seeds_and_settings(tmp_path: Path) -> None:
    """Fields that do not change the results, such as the scale, are not in records."""
    experiment = experiments()["policy-collapse"]
    short = {"env": "Hopper-v4", "method": "adam+wc", "steps": 4096, "scale": "laptop"}
    config = experiment.configure("policy-collapse", short)
    plan = Plan(experiment, tuple(make_runs(experiment, with_seeds(config, range(2)), None)), {})
    other = make_runs(experiment, [experiment.configure("policy-collapse", {**short, "kappa": 5.0, "seed": 7})], None)[
        0
    ]
    record = Record(experiment.schema, other.identity, other.config.facts(), TABLE, {}, seconds=12.5)
    write_record(record, record_path(tmp_path, other.relative_path, other.identity))
    costs = known_costs(plan, tmp_path)
    assert {costs[run.identity].seconds for run in plan.runs} == {12.5}
    batch = experiment.configure("policy-collapse", {**short, "num_minibatches": 16})
    assert known_costs(Plan(experiment, tuple(make_runs(experiment, [batch], None)), {}), tmp_path) == {}


def test_the_cost_is_scaled_from_runs_of_the_nearest_length(tmp_path: Path) -> None:
    experiment = experiments()["policy-collapse"]

    def runs(steps: int, seeds: range) -> list[Run]:
        config = experiment.configure("policy-collapse", {"env": "Hopper-v4", "method": "adam", "steps": steps})
        return make_runs(experiment, with_seeds(config, seeds), None)

    def expected(steps: int) -> float:
        plan = Plan(experiment, tuple(runs(steps, range(1))), {})
        (cost,) = known_costs(plan, tmp_path).values()
        return cost.seconds

    for steps, seed, seconds in ((4096, 7, 10.0), (4096, 8, 12.0), (40960, 7, 90.0)):
        (one,) = runs(steps, range(seed, seed + 1))
        record = Record(experiment.schema, one.identity, one.config.facts(), TABLE, {}, seconds=seconds)
        write_record(record, record_path(tmp_path, one.relative_path, one.identity))
    assert expected(4096) == 11.0
    assert expected(8192) == 22.0
    assert expected(2048) == 5.5
    assert expected(20480) == 45.0
    assert expected(81920) == 180.0


def test_without_fetch_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTCLIP_CACHE", str(tmp_path))
    monkeypatch.delenv("WEIGHTCLIP_DATA", raising=False)
    monkeypatch.delenv("WEIGHTCLIP_OFFLINE", raising=False)
    monkeypatch.setattr("weightclip.lab.data.download._download", lambda *_: pytest.fail("a download started"))
    experiment = experiment_of("warm-start")
    plan = make_plan(experiment, [experiment.configure("warm-start", {})], [0, 1], fetch=False)
    assert list(plan.data.values()) == [MISSING]
    assert len(plan.runs) == 2
    assert not offline()
