"""A small experiment without data, whose runs can wait, fail or kill their process."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from weightclip._validation import check_name
from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks
from weightclip.lab.experiment import Experiment, IncompatibleError, config_fields
from weightclip.lab.records.record import Record, identity, read_record, write_record
from weightclip.lab.records.schema import Schema
from weightclip.lab.records.store import record_path, relative_path
from weightclip.lab.sweep.plan import Plan, make_plan

METHODS = ("fast", "slow")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class ToyConfig:
    problem: str = field(default="toy", metadata=_help("toy"))
    method: str = field(default="fast", metadata=_help("fast or slow"))
    lr: float = field(default=0.1, metadata=_help("step size"))
    rows: int = field(default=3, metadata=_help("rows of the table"))
    stages: int = field(default=1, metadata=_help("1 or 2"))
    seed: int = field(default=0, metadata=_help("fixes nothing"))
    fault: str = field(default="", metadata=_help("fail, die, die once, hang once"))
    notes: str = field(default="", metadata=_help("a directory where each run leaves its process id"))


class Toy(Experiment[ToyConfig]):
    name = "toy"
    config = ToyConfig
    schema = Schema(
        "toy",
        "row",
        "accuracy",
        problems=("toy",),
        methods=METHODS,
        axes=("method", "stages"),
        settings=("lr",),
        fields=config_fields(ToyConfig),
    )

    def __init__(self, together: bool = False) -> None:
        self.lockstep = 100 if together else 1

    def presets(self, options: Mapping[str, Any] = {}) -> Mapping[str, Any]:
        return {"axes": {"method": METHODS, "stages": (1, 2)}}

    def configure(self, problem: str, settings: Mapping[str, Any]) -> ToyConfig:
        config = ToyConfig(problem, **settings)
        if (config.method, config.stages) == ("slow", 2):
            raise IncompatibleError("stages: got 2, but slow has one stage")
        check_name("method", config.method, METHODS)
        if config.stages not in (1, 2):
            raise ValueError(f"stages: got {config.stages!r}, expected 1 or 2")
        return config

    def settings(self, problem: str, method: str, options: Mapping[str, Any] = {}) -> Sequence[str]:
        return ("lr",)

    def identify(self, config: ToyConfig, data: Any) -> str:
        return identity(self.name, {**asdict(config), "notes": "", "fault": ""}, None)

    def length(self, config: ToyConfig) -> int:
        return config.rows

    def run(
        self,
        configs: Sequence[ToyConfig],
        data: Any,
        out: Path | None,
        overwrite: bool = False,
        callbacks: Callbacks = NO_CALLBACKS,
    ) -> list[Record]:
        return [self._run(config, out, callbacks, len(configs)) for config in configs]

    def _run(self, config: ToyConfig, out: Path | None, callbacks: Callbacks, together: int) -> Record:
        name = self.identify(config, None)
        path = None if out is None else record_path(out, relative_path(self.schema, config), name)
        if path is not None and path.exists():
            return read_record(path)
        before = _leave_note(config, name)
        if config.fault == "fail":
            raise RuntimeError("it went\nwrong")
        if config.fault == "die" or (config.fault == "die once" and not before):
            os.kill(os.getpid(), signal.SIGKILL)
        if config.fault == "hang once" and not before:
            time.sleep(600)  # ended by a signal
        rows = []
        for row in range(config.rows):
            if config.method == "slow":
                time.sleep(0.1)
            rows.append({"seed": config.seed, "row": row, "accuracy": config.lr * row + config.seed})
            callbacks.on_row(config, rows[-1])
            callbacks.on_progress(row + 1, 0.5)
        table = pl.DataFrame(rows).with_columns(together=pl.lit(together), stored=pl.lit(path is not None))
        record = Record(self.schema, name, asdict(config), table, {}, seconds=0.1)
        if path is not None:
            write_record(record, path)
        return record


def _leave_note(config: ToyConfig, name: str) -> int:
    """Write a file for this attempt of a run; return the number of earlier attempts."""
    if not config.notes:
        return 0
    before = list(Path(config.notes).glob(f"{name}-*"))
    (Path(config.notes) / f"{name}-{len(before)}-{os.getpid()}").touch()
    return len(before)


def toy_plan(seeds: int = 3, *choices: Mapping[str, Any], together: bool = False) -> Plan:
    toy = Toy(together)
    return make_plan(toy, [toy.configure("toy", choice) for choice in choices or [{}]], range(seeds))


def attempts(notes: Path) -> dict[str, int]:
    """Return how often each run was started."""
    found: dict[str, int] = {}
    for note in notes.iterdir():
        name = note.name.split("-")[0]
        found[name] = found.get(name, 0) + 1
    return found
