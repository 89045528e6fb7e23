from pathlib import Path
from typing import Any

import pytest
from toy_experiment import Toy, toy_plan

from weightclip.lab.callbacks import Callbacks
from weightclip.lab.sweep import loggers
from weightclip.lab.sweep.local import Local
from weightclip.lab.sweep.loggers import Loggers, check_loggers, logging_rows
from weightclip.lab.sweep.worker import Shared


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_each_row_of_each_run_is_logged_to_tensorboard(tmp_path: Path) -> None:
    plan = toy_plan(2, {"lr": 0.5}, together=True)
    with logging_rows(Loggers(tensorboard=tmp_path), Toy(), plan.runs) as row:
        Toy().run([run.config for run in plan.runs], None, None, callbacks=Callbacks(on_row=row))
    for run in plan.runs:
        found = read_events(tmp_path / f"{run.relative_path}_{run.identity}")
        seed = run.config.seed
        assert found["accuracy"] == [(0, seed), (1, seed + 0.5), (2, seed + 1.0)]


def test_workers_write_events(tmp_path: Path) -> None:
    plan = toy_plan(1, {"lr": 0.5})
    shared = Shared(Toy(), tmp_path / "store", loggers=Loggers(tensorboard=tmp_path / "events"))
    list(Local(1).run(shared, [plan.runs]))
    run = plan.runs[0]
    assert len(read_events(tmp_path / "events" / f"{run.relative_path}_{run.identity}")["accuracy"]) == 3


def test_logging_is_disabled_by_default(tmp_path: Path) -> None:
    with logging_rows(Loggers(), Toy(), toy_plan(1).runs) as row:
        row(None, {})


def test_each_row_is_logged_to_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    reported: list[Any] = []

    class Session:
        def log(self, values: dict[str, float], step: int) -> None:
            reported.append((step, values["accuracy"]))

        def finish(self) -> None:
            reported.append("finished")

    def init(**options: Any) -> Session:
        reported.append((options["project"], options["group"], options["config"]["lr"]))
        return Session()

    monkeypatch.setattr(wandb, "init", init)
    plan = toy_plan(1, {"lr": 0.5})
    with logging_rows(Loggers(wandb="project"), Toy(), plan.runs) as row:
        Toy().run([plan.runs[0].config], None, None, callbacks=Callbacks(on_row=row))
    assert reported == [("project", "fast", 0.5), (0, 0.0), (1, 0.5), (2, 1.0), "finished"]


def test_a_missing_library_is_reported_immediately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r'--tensorboard: requires tensorboard: pip install "weightclip\[tensorboard\]"'
    ):
        check_loggers(Loggers(tensorboard=tmp_path))
    with pytest.raises(ValueError, match="--wandb: requires wandb"):
        check_loggers(Loggers(wandb="project"))
    assert check_loggers(Loggers()) == Loggers()


def test_an_error_of_weights_and_biases_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb")

    def init(**options: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", init)
    with (
        pytest.raises(ValueError, match="--wandb: No API key configured"),
        logging_rows(Loggers(wandb="project"), Toy(), toy_plan(1).runs),
    ):
        pass
    with pytest.raises(ValueError, match="--wandb: got '', expected the name of a project"):
        check_loggers(Loggers(wandb=""))
