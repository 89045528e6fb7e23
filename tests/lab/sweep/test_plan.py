from toy import toy_plan

from weightclip.lab.sweep.plan import batches


def test_a_plan_is_ordered_by_seed_without_duplicates() -> None:
    plan = toy_plan(2, {"lr": 1.0}, {"lr": 2.0}, {"lr": 1.0})
    assert [(run.config.seed, run.config.lr) for run in plan.runs] == [(0, 1.0), (0, 2.0), (1, 1.0), (1, 2.0)]


def test_a_run_is_identified_by_content() -> None:
    few, more = toy_plan(2, {"lr": 1.0}), toy_plan(3, {"lr": 1.0}, {"lr": 2.0})
    assert {run.identity for run in few.runs} < {run.identity for run in more.runs}
    assert len({run.identity for run in more.runs}) == 6


def test_runs_go_alone_unless_their_experiment_takes_several_at_once() -> None:
    assert [len(job) for job in batches(toy_plan(3, {"lr": 1.0}, {"lr": 2.0}).runs)] == [1] * 6
    jobs = batches(toy_plan(3, {"lr": 1.0}, {"lr": 2.0}, together=True).runs)
    assert [[(run.config.lr, run.config.seed) for run in job] for job in jobs] == [
        [(1.0, 0), (1.0, 1), (1.0, 2)],
        [(2.0, 0), (2.0, 1), (2.0, 2)],
    ]
