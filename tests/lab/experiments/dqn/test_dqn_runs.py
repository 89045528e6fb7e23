import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from short_runs import config

from weightclip.lab.callbacks import Callbacks
from weightclip.lab.experiments.dqn import training
from weightclip.lab.experiments.dqn.atari import Atari
from weightclip.lab.experiments.dqn.config import Config
from weightclip.lab.experiments.dqn.environments import Step
from weightclip.lab.experiments.dqn.experiment import EXPERIMENT
from weightclip.lab.experiments.dqn.metrics import METRICS
from weightclip.lab.experiments.dqn.training import Trainer, run_config
from weightclip.lab.records.record import Record
from weightclip.lab.records.store import relative_path
from weightclip.lab.records.table import load

SPEEDS = ["frames_per_second", "updates_per_second"]


def test_a_record_has_a_row_for_each_part(tmp_path: Path) -> None:
    record = run_config(config(covariance=5), out=tmp_path)
    table = record.table
    assert {*table.columns} == {*METRICS, "seed", "part", "samples"}
    assert table["samples"].to_list() == [100, 200, 300, 400]
    assert record.data["kind"] == "simulator"
    assert "MinAtar" in record.data["location"]
    covariance = load(tmp_path, table="covariance")
    assert len(covariance) == 25
    assert covariance["percent"].unique().to_list() == [100]
    assert covariance.filter(pl.col("row") == pl.col("column"))["value"].to_list() == pytest.approx([1.0] * 5, abs=1e-4)


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_atari_results_do_not_depend_on_whether_games_or_updates_are_faster(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "suite": "atari",
        "game": "Pong",
        "num_envs": 2,
        "frames": 480,
        "points": 2,
        "learning_starts": 60,
        "eval_episodes": 1,
    }
    monkeypatch.setattr(training, "MAX_EVAL_STEPS", 3)  # steps of an evaluation
    found = run_config(config(agent, **more)).table
    assert found["samples"].to_list() == [240, 480]
    assert found["updates"].to_list() == [0, 60]
    receive = Atari.receive

    def late(self: Atari) -> Step:
        time.sleep(0.005)
        return receive(self)

    monkeypatch.setattr(Atari, "receive", late)
    assert_frame_equal(run_config(config(agent, **more)).table.drop(SPEEDS), found.drop(SPEEDS), check_exact=True)


def stop_after(number: int) -> Callable[[int, float], None]:
    def stop(frames: int, score: float) -> None:
        if frames > number:
            raise KeyboardInterrupt

    return stop


def interrupted(out: Path, **more: Any) -> tuple[Record, list[str]]:
    """A run that is interrupted in its third part and resumed, and the messages of the second command."""
    with pytest.raises(KeyboardInterrupt):
        run_config(config(**more), out=out, callbacks=Callbacks(on_progress=stop_after(250)))
    lines: list[str] = []
    record = run_config(config(**more), out=out, callbacks=Callbacks(on_event=lines.append))
    assert not list(out.rglob("*.checkpoint.*"))
    assert run_config(config(**more), out=out).resumed == record.resumed  # in the record
    return record, lines


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
@pytest.mark.parametrize("kappa", [1.0, "graded", "hidden=inf,output=1"])
def test_an_interrupted_run_ends_as_if_uninterrupted(agent: str, kappa: Any, tmp_path: Path) -> None:
    more = {"agent": agent, "kappa": kappa, "covariance": 5}
    uninterrupted = run_config(config(**more))
    record, lines = interrupted(tmp_path, **more)
    assert lines == [f"breakout {agent} adam+wc seed 0: resuming after part 2"]
    assert (uninterrupted.resumed, record.resumed) == ("never", "exact")
    assert_frame_equal(record.table.drop(SPEEDS), uninterrupted.table.drop(SPEEDS), check_exact=True)
    assert_frame_equal(record.tables["covariance"], uninterrupted.tables["covariance"], check_exact=True)


def test_a_run_resumed_with_other_threads_is_not_exact(tmp_path: Path) -> None:
    """Sums of several threads round differently."""
    lines: list[str] = []
    for threads, frames in ((1, 150), (2, 300)):
        callbacks = Callbacks(on_event=lines.append, on_progress=stop_after(frames))
        with pytest.raises(KeyboardInterrupt):
            run_config(config(threads=threads, points=8), out=tmp_path, callbacks=callbacks)
    record = run_config(config(threads=2, points=8), out=tmp_path, callbacks=Callbacks(on_event=lines.append))
    assert record.resumed == "inexact"
    assert [line for line in lines if "digits" in line] == [
        "breakout dqn adam+wc seed 0: the last digits may differ from an uninterrupted run: threads was 1, is 2"
    ]


def test_a_run_that_restarted_its_games_stays_one_when_it_is_resumed_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_config(config(save_buffer=False, points=8), out=tmp_path, callbacks=Callbacks(on_progress=stop_after(150)))
    with pytest.raises(KeyboardInterrupt):
        run_config(config(points=8), out=tmp_path, callbacks=Callbacks(on_progress=stop_after(300)))
    assert run_config(config(points=8), out=tmp_path).resumed == "restarted episodes"


def test_an_interrupted_run_on_atari_ends_as_if_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_EVAL_STEPS", 3)
    more = {"suite": "atari", "num_envs": 2, "frames": 640, "replay_ratio": 0.2, "eval_episodes": 1}
    uninterrupted = run_config(config(**more))
    record, lines = interrupted(tmp_path, **more)
    assert lines == ["breakout dqn adam+wc seed 0: resuming after part 1"]
    assert record.resumed == "exact"
    assert_frame_equal(record.table.drop(SPEEDS), uninterrupted.table.drop(SPEEDS), check_exact=True)


def test_without_a_saved_replay_buffer_an_interrupted_run_starts_new_games(tmp_path: Path) -> None:
    whole = run_config(config()).table
    (first, lines), (second, _) = (interrupted(tmp_path / name, save_buffer=False) for name in "ab")
    assert lines == [
        "breakout dqn adam+wc seed 0: resuming after part 2",
        "breakout dqn adam+wc seed 0: starting new episodes, so the numbers differ from an uninterrupted run: "
        "the checkpoint has no replay buffer",
    ]
    assert first.resumed == "restarted episodes"
    assert_frame_equal(first.table.drop(SPEEDS), second.table.drop(SPEEDS), check_exact=True)
    assert_frame_equal(first.table.drop(SPEEDS)[:2], whole.drop(SPEEDS)[:2], check_exact=True)
    assert first.table["updates"][-1] == whole["updates"][-1]  # updates catch up


def test_there_is_no_loss_before_the_first_update() -> None:
    lines: list[str] = []
    table = run_config(config(learning_starts=150), callbacks=Callbacks(on_event=lines.append)).table
    for column in ("training_loss", "q", "gradient_l2"):
        assert table[column].is_null().to_list() == [True, False, False, False]
    assert not lines


def test_environments_are_closed_after_success_and_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Trainer] = []
    monkeypatch.setattr(Trainer, "close", lambda self: closed.append(self))

    def stop(frames: int, score: float) -> None:
        raise KeyboardInterrupt

    run_config(config(points=1))
    assert len(closed) == 1
    with pytest.raises(KeyboardInterrupt):
        run_config(config(), callbacks=Callbacks(on_progress=stop))
    assert len(closed) == 2


def test_the_path_of_a_record_names_game_agent_and_ratio() -> None:
    found = relative_path(EXPERIMENT.schema, config("rainbow", replay_ratio=0.25, seed=2))
    assert found == "replay-ratio/rainbow/breakout/replay_ratio0.25/adam+wc/lr6.25e-05_kappa1_seed2"


def test_identities_depend_on_options_that_change_the_numbers() -> None:
    def identify(one: Config) -> str:
        return EXPERIMENT.identify(one, None)

    assert identify(config(save_buffer=True)) == identify(config(save_buffer=False, threads=2))
    assert identify(config(replay_ratio=1.0)) != identify(config(replay_ratio=2.0))
