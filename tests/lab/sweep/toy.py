"""A small experiment without data, whose runs can wait, fail, or kill their process."""

import os
import signal
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from weightclip.checks import check_name
from weightclip.lab.experiment import NOBODY, Experiment, Watch
from weightclip.lab.records.record import Record, identity, read_record, write_record
from weightclip.lab.records.store import record_path
from weightclip.lab.sweep.plan import Plan, make_plan

METHODS = ("fast", "slow")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class ToyConfig:
    method: str = field(default="fast", metadata=_help("fast or slow"))
    lr: float = field(default=0.1, metadata=_help("step size"))
    rows: int = field(default=3, metadata=_help("rows of the table"))
    stages: int = field(default=1, metadata=_help("1 or 2"))
    seed: int = field(default=0, metadata=_help("fixes nothing"))
    trouble: str = field(default="", metadata=_help("fail, die, die once"))
    notes: str = field(default="", metadata=_help("a directory where each run leaves its process id"))


class Toy(Experiment[ToyConfig]):
    name = "toy"
    config = ToyConfig
    axes = ("method", "stages")
    setting_fields = ("lr",)
    along = "row"

    def __init__(self, together: bool = False) -> None:
        self._together = together

    def problems(self) -> Sequence[str]:
        return ("toy",)

    def methods(self) -> Sequence[str]:
        return METHODS

    def values(self, axis: str) -> Sequence[Any]:
        return (1, 2) if axis == "stages" else METHODS

    def possible(self, settings: Mapping[str, Any]) -> bool:
        return (settings["method"], settings["stages"]) != ("slow", 2)

    def configure(self, problem: str, settings: Mapping[str, Any]) -> ToyConfig:
        config = ToyConfig(**settings)
        check_name("method", config.method, METHODS)
        if config.stages not in (1, 2):
            raise ValueError(f"stages: got {config.stages!r}, expected 1 or 2")
        return config

    def settings(self, problem: str, method: str, options: Mapping[str, Any] = {}) -> Sequence[str]:
        return ("lr",)

    def identify(self, config: ToyConfig, data: Any) -> str:
        return identity(self.name, {**asdict(config), "notes": "", "trouble": ""}, None)

    def place(self, config: ToyConfig) -> str:
        return f"toy/{config.method}/stages{config.stages}_lr{config.lr:g}_seed{config.seed}"

    def batch(self, config: ToyConfig) -> Hashable | None:
        return (config.method, config.lr) if self._together else None

    def length(self, config: ToyConfig) -> int:
        return config.rows

    def run(
        self,
        configs: Sequence[ToyConfig],
        data: Any,
        out: Path | None,
        overwrite: bool = False,
        watch: Watch = NOBODY,
    ) -> list[Record]:
        return [self._run(config, out, watch, len(configs)) for config in configs]

    def _run(self, config: ToyConfig, out: Path | None, watch: Watch, together: int) -> Record:
        name = self.identify(config, None)
        path = None if out is None else record_path(out, self.place(config), name)
        if path is not None and path.exists():
            return read_record(path)
        before = _leave_note(config, name)
        if config.trouble == "fail":
            raise RuntimeError("it went\nwrong")
        if config.trouble == "die" or (config.trouble == "die once" and not before):
            os.kill(os.getpid(), signal.SIGKILL)
        rows = []
        for row in range(config.rows):
            if config.method == "slow":
                time.sleep(0.1)
            rows.append({"seed": config.seed, "row": row, "accuracy": config.lr * row + config.seed})
            watch.row(config, rows[-1])
            watch.progress(row + 1, 0.5)
        table = pl.DataFrame(rows).with_columns(together=pl.lit(together), stored=pl.lit(path is not None))
        record = Record(self.name, name, asdict(config), table, {}, seconds=0.1)
        if path is not None:
            write_record(record, path)
        return record


def _leave_note(config: ToyConfig, name: str) -> int:
    """Leave a file for this run; how many it had before."""
    if not config.notes:
        return 0
    before = list(Path(config.notes).glob(f"{name}-*"))
    (Path(config.notes) / f"{name}-{len(before)}-{os.getpid()}").touch()
    return len(before)


def toy_plan(seeds: int = 3, *choices: Mapping[str, Any], together: bool = False) -> Plan:
    toy = Toy(together)
    return make_plan(toy, [toy.configure("toy", choice) for choice in choices or [{}]], range(seeds))


def attempts(notes: Path) -> dict[str, int]:
    """How often each run was begun."""
    found: dict[str, int] = {}
    for note in notes.iterdir():
        name = note.name.split("-")[0]
        found[name] = found.get(name, 0) + 1
    return found
