import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from toy_env import NAME, config, identify, path_of

from weightclip.lab.callbacks import Callbacks
from weightclip.lab.checkpoint import read_checkpoint, write_checkpoint
from weightclip.lab.experiments.ppo import training as ppo_runs
from weightclip.lab.experiments.ppo.config import Config
from weightclip.lab.experiments.ppo.metrics import METRICS
from weightclip.lab.experiments.ppo.ppo import Learners
from weightclip.lab.experiments.ppo.training import episode_table, run_configs
from weightclip.lab.records.record import Record, read_record, write_record

NO_STATE = (
    "starting new episodes, so the numbers differ from an uninterrupted run: "
    "the checkpoint has no state of the environment"
)
ROWS = ["seed", "iteration", "samples", "episodes", "return", "length"]


def numbers(record: Record) -> pl.DataFrame:
    return record.table.drop("speed")


def test_a_record_has_a_row_for_each_iteration_and_one_for_each_episode(tmp_path: Path) -> None:
    records = run_configs([config(seed=seed) for seed in (0, 1)], tmp_path)
    for seed, record in enumerate(records):
        assert record.table.columns[:6] == ROWS
        assert {*record.table.columns} == {*METRICS, "seed", "iteration", "samples", "episodes"}
        assert record.table["samples"].to_list() == [64, 128, 192, 256]
        assert record.table["seed"].unique().to_list() == [seed]
        episodes = record.tables["episodes"]
        assert episodes.columns == ["samples", "return", "length"]
        assert len(episodes) == record.table["episodes"].sum()
        assert episodes["length"].sum() == episodes["samples"][-1] <= 256
        first = episodes.filter(pl.col("samples") <= 64)["return"].mean()
        assert record.table["return"][0] == pytest.approx(first, rel=1e-5)
        assert record.data["name"] == NAME
        assert "gymnasium" in record.data["location"]
        assert "scale" not in record.config
    path = tmp_path / f"{path_of(config(seed=0))}_{identify(config(seed=0))}.parquet"
    again = read_record(path)
    assert_frame_equal(again.table, records[0].table)
    assert again.arrays["weights"].shape == (
        sum(p.numel() for p in Learners([config()]).stack.members[0].parameters()),
    )


def resuming(iterations: Mapping[int, int]) -> list[str]:
    """Return the messages of seeds that resume after the given iterations in an environment that cannot be saved."""
    return [f"{NAME} adam+wc seed {seed}: resuming after iteration {one}" for seed, one in iterations.items()]


def stop_after(steps: int) -> Callable[[int, float], None]:
    def stop(done: int, score: float) -> None:
        if done == steps:
            raise KeyboardInterrupt

    return stop


WITHOUT_STATE = f"{NAME} adam+wc: {NO_STATE}"


def test_without_the_environments_state_a_run_resumes_with_a_new_episode(tmp_path: Path) -> None:
    configs = [config(seed=seed) for seed in (0, 1)]

    def interrupted(out: Path) -> list[Record]:
        with pytest.raises(KeyboardInterrupt):
            run_configs(configs, out, callbacks=Callbacks(on_progress=stop_after(128)))
        lines: list[str] = []
        found = run_configs(configs, out, callbacks=Callbacks(on_event=lines.append))
        assert lines == [*resuming({0: 2, 1: 2}), WITHOUT_STATE]
        assert not list(out.rglob("*.checkpoint.*"))
        assert [one.resumed for one in found] == ["restarted episodes"] * 2
        assert [one.resumed for one in run_configs(configs, out)] == ["restarted episodes"] * 2  # in the records
        return found

    whole = run_configs(configs)
    assert [one.resumed for one in whole] == ["never"] * 2
    first, second = interrupted(tmp_path / "a"), interrupted(tmp_path / "b")
    for uninterrupted, one, other in zip(whole, first, second):
        assert_frame_equal(numbers(one), numbers(other), check_exact=True)  # deterministic
        assert_frame_equal(numbers(one)[:2], numbers(uninterrupted)[:2], check_exact=True)
        assert_frame_equal(one.tables["episodes"], other.tables["episodes"])
        assert one.tables["episodes"]["samples"].is_sorted()


def test_after_ctrl_c_a_run_resumes_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C itself saves nothing of the current iteration."""
    update = Learners.update

    def interrupted(self: Learners, *arguments: Any) -> Any:
        found = update(self, *arguments)
        if self.optimizers[0].state_dict()["state"][0]["step"] == 3 * 8:  # epochs x minibatches per iteration
            raise KeyboardInterrupt
        return found

    configs = [config(seed=seed) for seed in (0, 1)]
    with monkeypatch.context() as patched:
        patched.setattr(Learners, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_configs(configs, tmp_path / "a")
    assert len(list(tmp_path.rglob("*.checkpoint.npz"))) == 2
    lines: list[str] = []
    found = run_configs(configs, tmp_path / "a", callbacks=Callbacks(on_event=lines.append))
    assert lines == [*resuming({0: 2, 1: 2}), WITHOUT_STATE]

    with pytest.raises(KeyboardInterrupt):
        run_configs(configs, tmp_path / "b", callbacks=Callbacks(on_progress=stop_after(128)))
    for one, other in zip(found, run_configs(configs, tmp_path / "b")):  # nothing of the third iteration was saved
        assert_frame_equal(numbers(one), numbers(other), check_exact=True)
        assert_frame_equal(one.tables["episodes"], other.tables["episodes"])


def test_ctrl_c_in_the_first_iteration_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Learners, *arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Learners, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_configs([config()], tmp_path)
    assert not list(tmp_path.rglob("*.npz"))


def test_an_incompatible_checkpoint_is_reported_and_that_seed_restarts(tmp_path: Path) -> None:
    configs = [config(seed=seed) for seed in (0, 1)]

    with pytest.raises(KeyboardInterrupt):
        run_configs(configs, tmp_path, callbacks=Callbacks(on_progress=stop_after(128)))
    path = tmp_path / f"{path_of(config(seed=1))}_{identify(config(seed=1))}.checkpoint.npz"
    saved = read_checkpoint(path)
    write_checkpoint(replace(saved, state={**saved.state, "model/critic.0.weight": np.zeros((2, 2))}), path)
    lines: list[str] = []
    first, second = run_configs(configs, tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines[2:] == [
        WITHOUT_STATE,
        f"{NAME} adam+wc seed 1: incompatible checkpoint (RuntimeError): restarting from the first iteration",
        "seed 1 is behind; training it up to iteration 2 first",
    ]
    assert (first.resumed, second.resumed) == ("restarted episodes", "never")
    assert first.table["iteration"].to_list() == second.table["iteration"].to_list() == [1, 2, 3, 4]
    (alone,) = run_configs([config(seed=1)])
    assert second.table["return"][0] == pytest.approx(alone.table["return"][0], rel=1e-3)


def rewrite(path: Path, **changes: Any) -> None:
    write_checkpoint(replace(read_checkpoint(path), **changes), path)


@pytest.mark.parametrize("change", ["missing", "additional"])
def test_a_checkpoint_with_other_columns_is_reported_and_that_seed_restarts(change: str, tmp_path: Path) -> None:
    one = config(env="Hopper-v4")
    (expected,) = run_configs([one])
    with pytest.raises(KeyboardInterrupt):
        run_configs([one], tmp_path, callbacks=Callbacks(on_progress=stop_after(128)))
    path = tmp_path / f"{path_of(one)}_{identify(one)}.checkpoint.npz"
    rows = [{**row, "other": 0.0} for row in read_checkpoint(path).rows]
    for row in rows if change == "missing" else ():
        del row["entropy"], row["other"]
    rewrite(path, rows=rows)
    lines: list[str] = []
    (found,) = run_configs([one], tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines == [f"{path}: the checkpoint is from another version: restarting from the first iteration"]
    assert found.resumed == "never"
    assert_frame_equal(numbers(found), numbers(expected), check_exact=True)


@pytest.mark.parametrize(("backend", "name"), [("fused", "compiled code"), ("reference", "weightclip")])
def test_a_run_resumed_after_an_upgrade_is_inexact(backend: str, name: str, tmp_path: Path) -> None:
    one = config(env="Hopper-v4", backend=backend)
    with pytest.raises(KeyboardInterrupt):
        run_configs([one], tmp_path, callbacks=Callbacks(on_progress=stop_after(128)))
    path = tmp_path / f"{path_of(one)}_{identify(one)}.checkpoint.npz"
    saved = read_checkpoint(path).numerics
    assert saved is not None
    rewrite(path, numerics={**saved, name: "other"})
    lines: list[str] = []
    (found,) = run_configs([one], tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert found.resumed == "inexact"
    assert lines[1].endswith(
        f"the last digits may differ from an uninterrupted run: {name} was other, is {saved[name]}"
    )


def test_a_seed_added_later_learns_the_same(tmp_path: Path) -> None:
    (alone,) = run_configs([config(seed=1)], tmp_path)
    lines: list[str] = []
    _, found, _ = run_configs(
        [config(seed=seed) for seed in (0, 1, 2)], tmp_path, callbacks=Callbacks(on_event=lines.append)
    )
    assert lines == [f"{NAME} adam+wc seed 1: already finished"]
    assert_frame_equal(found.table, alone.table)
    assert len(list(tmp_path.rglob("*seed*.parquet"))) == 6  # three records and their episodes


def test_without_the_environments_state_runs_at_different_iterations_resume_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    for seed, steps in ((0, 64), (1, 128)):
        with pytest.raises(KeyboardInterrupt):
            run_configs([config(seed=seed)], tmp_path, callbacks=Callbacks(on_progress=stop_after(steps)))
    lines: list[str] = []
    sizes: list[int] = []
    train = ppo_runs._train
    monkeypatch.setattr(ppo_runs, "_train", lambda runs, *rest: (sizes.append(len(runs)), train(runs, *rest)))
    records = run_configs(
        [config(seed=seed) for seed in (0, 1, 2)], tmp_path, callbacks=Callbacks(on_event=lines.append)
    )
    assert lines == [
        *resuming({0: 1, 1: 2}),
        "seed 2 is behind; training it up to iteration 1 first",
        "seed 0 is behind; training it up to iteration 2 first",
        WITHOUT_STATE,
    ]
    assert [len(record.table) for record in records] == [4, 4, 4]
    assert sizes == [1, 1, 1]
    (uninterrupted,) = run_configs([config(seed=2)])
    assert_frame_equal(numbers(records[2]), numbers(uninterrupted), check_exact=True)  # independent of the other seeds


REFERENCE = {"backend": "reference", "hidden": (16, 16)}
UNALIGNED = {"hidden": (50, 30), "num_steps": 100, "num_minibatches": 10, "steps": 400}
ONE_AT_A_TIME = (
    "training one seed at a time: in lockstep, the reference backend needs hidden layers and minibatches of multiples "
    "of 16"
)


@pytest.mark.parametrize(
    ("method", "given", "lockstep"),
    [
        ("adam+wc", {}, True),
        ("adam+wc", {"kappa": "graded"}, True),
        ("adam+wc", {"env": "Humanoid-v4", "kappa": "hidden=inf,output=1"}, True),
        ("adam+wc", {"env": "Ant-v4"}, True),
        ("adam+wc", {"hidden": (10,)}, True),
        ("adam+wc", UNALIGNED, True),
        ("adam+wc", REFERENCE, True),
        ("adam+wc", {**REFERENCE, "kappa": "graded"}, True),
        ("adam+wc", {**REFERENCE, "kappa": "hidden=inf,output=1"}, True),
        ("adamw", {"hidden": (16, 16)}, True),
        ("adam+wc", {**REFERENCE, "hidden": (10,)}, False),
        ("adam+wc", {**REFERENCE, "num_steps": 80, "num_minibatches": 10, "steps": 320}, False),
        ("adam+wc", {**REFERENCE, **UNALIGNED}, False),
        ("adamw", UNALIGNED, False),
        ("adam+sp", {**UNALIGNED, "decay": 1e-3, "sigma": 1e-3}, False),
    ],
)
def test_on_mujoco_seeds_interrupted_at_different_iterations_end_as_if_uninterrupted(
    method: str, given: dict[str, Any], lockstep: bool, tmp_path: Path
) -> None:
    def make_configs(seeds: Sequence[int]) -> list[Config]:
        return [config(method, seed, **{"env": "Hopper-v4", "lr": 0.003, **given}) for seed in seeds]

    whole = run_configs(make_configs(range(4)))
    rollout = make_configs([0])[0].num_steps
    for seed, iterations in enumerate((1, 2, 2, 3)):
        callbacks = Callbacks(on_progress=stop_after(iterations * rollout))
        with pytest.raises(KeyboardInterrupt):
            run_configs(make_configs([seed]), tmp_path, callbacks=callbacks)
    lines: list[str] = []
    found = run_configs(make_configs(range(4)), tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert [record.resumed for record in found] == ["exact"] * 4
    for one, uninterrupted in zip(found, whole):
        assert_frame_equal(numbers(one), numbers(uninterrupted), check_exact=True)
        assert_frame_equal(one.tables["episodes"], uninterrupted.tables["episodes"], check_exact=True)
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array, uninterrupted.arrays[name])
    caught_up = [
        "seed 0 is behind; training it up to iteration 2 first",
        "seeds 0, 1, 2 are behind; training them up to iteration 3 first",
    ]
    assert lines[-1 if not lockstep else -2 :] == (caught_up if lockstep else [ONE_AT_A_TIME])


def test_the_time_of_all_sessions_counts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_configs([config()], tmp_path, callbacks=Callbacks(on_progress=stop_after(128)))
    path = tmp_path / f"{path_of(config())}_{identify(config())}.checkpoint.npz"
    rewrite(path, seconds=1_000.0)
    (record,) = run_configs([config()], tmp_path)
    assert record.seconds > 1_000


def test_a_record_notes_that_a_run_restarted_an_episode(tmp_path: Path) -> None:
    """Even if the run later resumes bit for bit."""
    one = config(env="Hopper-v4")
    with pytest.raises(KeyboardInterrupt):
        run_configs([one], tmp_path, callbacks=Callbacks(on_progress=stop_after(64)))
    path = tmp_path / f"{path_of(one)}_{identify(one)}.checkpoint.npz"
    saved = read_checkpoint(path)
    other = {**saved.state, "environment/version": np.array("format 1, mujoco 2.3.0")}
    write_checkpoint(replace(saved, state=other), path)
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_configs([one], tmp_path, callbacks=Callbacks(lines.append, on_progress=stop_after(128)))
    assert "environment: got a state of format 1, mujoco 2.3.0, expected format 2, mujoco" in lines[1]
    (record,) = run_configs([one], tmp_path)
    assert record.resumed == "restarted episodes"


def test_runs_at_the_same_iteration_resume_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some, more = ([config(seed=seed) for seed in range(number)] for number in (2, 4))

    with pytest.raises(KeyboardInterrupt):
        run_configs(some, tmp_path, callbacks=Callbacks(on_progress=stop_after(128)))
    sizes: list[int] = []
    train = ppo_runs._train
    monkeypatch.setattr(ppo_runs, "_train", lambda runs, *rest: (sizes.append(len(runs)), train(runs, *rest)))
    run_configs(more, tmp_path)
    assert sizes == [2, 2]


def test_a_damaged_checkpoint_is_reported_and_the_run_restarts(tmp_path: Path) -> None:
    path = tmp_path / f"{path_of(config())}_{identify(config())}.checkpoint.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no checkpoint")
    lines: list[str] = []
    (record,) = run_configs([config()], tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert lines == [f"{path}: the checkpoint is damaged (ValueError): restarting from the first iteration"]
    assert len(record.table) == 4


def test_a_diverged_seed_stops_and_its_record_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = Learners.iterate

    def broken(self: Learners, iteration: int) -> Any:
        if iteration == 2:
            self.stack.members[0].actor_mean[0].weight.data[:] = math.nan
        return iterate(self, iteration)

    monkeypatch.setattr(Learners, "iterate", broken)
    lines: list[str] = []

    def stop(done: int, score: float) -> None:
        assert math.isfinite(score)
        if done == 192 and "again" not in lines:
            lines.append("again")
            raise KeyboardInterrupt

    configs = [config(seed=seed) for seed in (0, 1)]
    callbacks = Callbacks(on_event=lines.append, on_progress=stop)
    with pytest.raises(KeyboardInterrupt):
        run_configs(configs, tmp_path, callbacks=callbacks)
    first, second = run_configs(configs, tmp_path, callbacks=callbacks)
    assert lines.count(f"{NAME} adam+wc seed 0: stopped in iteration 3: its actions are not finite") == 1
    assert first.tables["stopped"].rows() == [(3, "its actions are not finite")]
    assert first.table["return"].is_nan().to_list() == [False, False, False, True]
    assert first.table["approx_kl"].is_nan().to_list() == [False, False, True, True]
    assert first.table["iteration"].to_list() == [1, 2, 3, 4]
    assert "stopped" not in second.tables
    assert second.table["return"].is_finite().all()
    (alone,) = run_configs([config(seed=0)])
    assert alone.table["weight_l2"].is_nan().to_list() == [False, False, True, True]


def test_after_all_seeds_stop_the_remaining_rows_are_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [config("sgd", seed, lr=1e30, steps=8 * 64) for seed in (0, 1)]

    with pytest.raises(KeyboardInterrupt):
        run_configs(configs, tmp_path, callbacks=Callbacks(on_progress=stop_after(5 * 64)))
    for record in run_configs(configs, tmp_path):
        assert record.table["iteration"].to_list() == list(range(1, 9))
        assert record.table["samples"].to_list() == list(range(64, 9 * 64, 64))
        assert record.table["weight_l2"].is_nan()[-1]
        assert record.tables["stopped"]["iteration"].item() < 5


def test_progress_counts_finished_runs(tmp_path: Path) -> None:
    run_configs([config(seed=1)], tmp_path)
    steps: list[int] = []
    run_configs(
        [config(seed=seed) for seed in (0, 1)],
        tmp_path,
        callbacks=Callbacks(on_progress=lambda done, _: steps.append(done)),
    )
    assert steps == [(256 + done) // 2 for done in (64, 128, 192, 256)]


def test_there_is_no_return_before_the_first_episode_ends() -> None:
    (record,) = run_configs([config(num_steps=8, num_minibatches=2, steps=64)])
    table = record.table
    early = table["episodes"].cum_sum() == 0
    assert early.any()
    assert table["return"].is_null().to_list() == early.to_list()
    assert table["length"].is_null().to_list() == early.to_list()


def test_progress_and_rows_are_reported(tmp_path: Path) -> None:
    steps: list[int] = []
    rows: list[tuple[int, float]] = []
    configs = [config(seed=seed) for seed in (0, 1)]
    callbacks = Callbacks(
        on_progress=lambda done, _: steps.append(done), on_row=lambda one, row: rows.append((id(one), row["iteration"]))
    )
    run_configs(configs, tmp_path, callbacks=callbacks)
    assert steps == [64, 128, 192, 256]
    assert rows == [(id(one), iteration) for iteration in range(1, 5) for one in configs]


def test_records_of_twenty_million_steps_take_less_than_20_mb(tmp_path: Path) -> None:
    """With episodes as short as Humanoid's first ones and incompressible numbers."""
    (record,) = run_configs([config()])
    generator = np.random.default_rng(0)
    iterations, episodes = 20_000_000 // 2048, 20_000_000 // 25
    values = {name: generator.normal(size=iterations) for name in record.table.columns}
    whole = pl.DataFrame(values).cast(dict(record.table.schema))
    lengths = generator.integers(10, 40, episodes)
    rows = np.stack([lengths.cumsum(), generator.normal(size=episodes), lengths], axis=1)
    table = episode_table(rows.tolist())
    write_record(replace(record, table=whole, tables={"episodes": table}), tmp_path / "long.parquet")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20e6


def test_the_path_of_a_record_names_environment_method_and_settings() -> None:
    assert path_of(config(seed=3)) == f"policy-collapse/{NAME}/adam+wc/lr0.0003_kappa3_seed3"
    assert identify(config(seed=1)) != identify(config(seed=2))
