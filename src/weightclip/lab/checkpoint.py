"""Checkpoints of unfinished runs: one `.npz` file without pickled objects. The zip format detects damage."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip import __version__
from weightclip._hooks import CHECKPOINT_KEY
from weightclip.lab.callbacks import Row as Row
from weightclip.lab.files import write_whole

Arrays = dict[str, NDArray[Any]]

_STATE = "state/"


@dataclass(frozen=True)
class Checkpoint:
    """The state that a later process needs to resume a run.

    Args:
        identity: identity of the run.
        rows: rows of the table so far.
        state: state of the learner.
        seconds: run time so far.
        resumed: how the run was resumed before (`weightclip.lab.records.record.Resumed`).
        numerics: result of `numerics` where it was written; None if unknown.
    """

    identity: str
    rows: list[Row]
    state: Arrays
    seconds: float
    resumed: str = "never"
    numerics: Mapping[str, str] | None = None


MAX_FRACTION = 0.02
"""Maximum fraction of the run time that is spent on checkpoints."""


class CheckpointSchedule:
    """Decides when to write checkpoints, so that they take at most `MAX_FRACTION` of the time since it was created."""

    def __init__(self) -> None:
        self._began, self._spent = time.perf_counter(), 0.0

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint; always true before the first one."""
        return self._spent <= MAX_FRACTION * (time.perf_counter() - self._began)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure the time to write a checkpoint."""
        began = time.perf_counter()
        yield
        self._spent += time.perf_counter() - began


_NUMERICAL_PACKAGES = ("torch", "numpy", "numba", "scipy", "gymnasium", "mujoco", "ale-py", "MinAtar")


def numerics(device: str = "cpu", kernel: str | None = None) -> dict[str, str]:
    """The causes of differences in the last digits: CPU, threads and versions; a GPU's sums differ in every run.

    `kernel` is the name of the compiled code, which contains its hash; None if there is none.
    """
    found = {"device": device, "CPU": _cpu(), "threads": str(torch.get_num_threads()), "weightclip": __version__}
    found |= {package: installed_version(package) for package in _NUMERICAL_PACKAGES}
    return found if kernel is None else {**found, "compiled code": kernel}


@cache
def _cpu() -> str:
    """The kind of CPU, which selects the instructions of compiled code."""
    from llvmlite import binding  # type: ignore[import-untyped]

    return f"{platform.machine()} {binding.get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"


@cache
def installed_version(package: str) -> str:
    """The version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def inexact_reason(before: Mapping[str, str] | None, now: Mapping[str, str]) -> str | None:
    """Why a run that was interrupted with the numerics `before` does not resume bit for bit; None if it does."""
    if before is None:
        return "the checkpoint has no versions"
    if now["device"] != "cpu" or before["device"] != "cpu":
        return "sums on a GPU differ from run to run"
    changed = [name for name in now if before.get(name) != now[name]]
    return "; ".join(f"{name} was {before.get(name, 'unknown')}, is {now[name]}" for name in changed) or None


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint atomically. An OSError names the file."""
    columns = list(checkpoint.rows[0])
    arrays: dict[str, Any] = {
        "identity": np.array(checkpoint.identity),
        "seconds": np.array(checkpoint.seconds),
        "resumed": np.array(checkpoint.resumed),
        "numerics": np.array(json.dumps(checkpoint.numerics)),
        "columns": np.array(columns),
        "rows": np.array([[row[column] for column in columns] for row in checkpoint.rows], dtype=np.float64),
        **{_STATE + key: array for key, array in checkpoint.state.items()},
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_whole(path, buffer.getbuffer())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. A ValueError names a damaged file."""
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
            arrays = dict(loaded)
        columns = arrays["columns"].tolist()
        return Checkpoint(
            identity=str(arrays["identity"]),
            rows=[dict(zip(columns, row, strict=True)) for row in arrays["rows"].tolist()],
            state={key.removeprefix(_STATE): array for key, array in arrays.items() if key.startswith(_STATE)},
            seconds=float(arrays["seconds"]),
            resumed=str(arrays.get("resumed", "never")),
            numerics=json.loads(str(arrays.get("numerics", "null"))),
        )
    except Exception as error:
        raise ValueError(f"{path}: the checkpoint is damaged ({type(error).__name__})") from error


NUMBER, EMPTY, LIST = ":number", ":empty", ":list"
"""Suffixes of keys whose arrays represent a Python number or string, an empty dict, or a list (as JSON)."""


def training_state(model: nn.Module, optimizer: Optimizer) -> Arrays:
    """The parameters and buffers of the network, and the state of the optimizer and its hooks."""
    state = optimizer.state_dict()
    saved = {key: state[key] for key in ("state", CHECKPOINT_KEY) if key in state}
    return flatten({"model": model.state_dict(), "optimizer": saved})


def load_training_state(model: nn.Module, optimizer: Optimizer, state: Arrays) -> None:
    """Restore a `training_state`."""
    tree = unflatten(state)
    model.load_state_dict(tree["model"])
    optimizer.load_state_dict({**optimizer.state_dict(), **tree["optimizer"]})
    # Fused optimizers require a parameter and its state to have the same memory format.
    for p, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == p.shape and value.stride() != p.stride():
                values[name] = torch.empty_like(p).copy_(value)


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Arrays:
    """Convert nested dicts of tensors, numbers, strings and lists to arrays, which are copies named by their path.

    Keys are strings without a slash, or integers. Lists contain numbers, strings and lists.

    Examples:
        >>> list(flatten({"state": {0: {"v": torch.zeros(2), "step": 3}}, "measured": {}, "ranges": [["output", 1.0]]}))
        ['state/0/v', 'state/0/step:number', 'measured:empty', 'ranges:list']
    """
    flat: Arrays = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Tensor):
            flat[path] = value.detach().cpu().numpy().copy()
        elif isinstance(value, list):
            flat[path + LIST] = np.array(json.dumps(value))
        elif isinstance(value, (bool, int, float, str)):
            flat[path + NUMBER] = np.array(value)
        elif isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}/")
        elif isinstance(value, Mapping):
            flat[path + EMPTY] = np.empty(0)
        else:
            raise TypeError(
                f"{path}: got {type(value).__name__}, expected a tensor, a number, a string, a list or a dict"
            )
    return flat


def unflatten(flat: Arrays) -> dict[Any, Any]:
    """The inverse of `flatten`. Keys that consist of digits become integers."""
    tree: dict[Any, Any] = {}
    for path, array in flat.items():
        *parents, last = path.split("/")
        name, _, kind = last.partition(":")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(_key(parent), {})
        if kind == NUMBER[1:]:
            branch[_key(name)] = array.item()
        elif kind == EMPTY[1:]:
            branch[_key(name)] = {}
        elif kind == LIST[1:]:
            branch[_key(name)] = json.loads(str(array))
        else:
            branch[_key(name)] = torch.from_numpy(array.copy())
    return tree


def _key(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def checksum(arrays: Arrays) -> NDArray[np.uint8]:
    """The SHA-256 of the names, types, shapes and bytes of all arrays, in any order."""
    parts = [f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes() for name, array in arrays.items()]
    return np.frombuffer(hashlib.sha256(b"".join(sorted(parts))).digest(), np.uint8)


def to_array(generator: np.random.Generator) -> NDArray[np.uint8]:
    """The state of a generator as JSON bytes, which NumPy saves without pickling."""
    return np.frombuffer(json.dumps(generator.bit_generator.state).encode(), np.uint8)


def from_array(generator: np.random.Generator, state: NDArray[np.uint8]) -> None:
    """Restore the state of a generator from `to_array`."""
    generator.bit_generator.state = json.loads(state.tobytes())
