"""A run under way, saved after each row: one `.npz` without pickled objects, whose zip format checks its content."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightclip.lab.files import write_whole

Arrays = dict[str, NDArray[Any]]

Row = dict[str, float]
"""A row of the table: column -> number; NaN where there is none."""

_STATE = "state/"


@dataclass(frozen=True)
class Checkpoint:
    """What a later process needs to go on.

    Args:
        identity: of the run.
        rows: of its table, so far.
        state: the learner's.
        seconds: taken so far.
    """

    identity: str
    rows: list[Row]
    state: Arrays
    seconds: float


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Replace the file whole; an OSError names it."""
    columns = list(checkpoint.rows[0])
    arrays: dict[str, Any] = {
        "identity": np.array(checkpoint.identity),
        "seconds": np.array(checkpoint.seconds),
        "columns": np.array(columns),
        "rows": np.array([[row[column] for column in columns] for row in checkpoint.rows], dtype=np.float64),
        **{_STATE + key: array for key, array in checkpoint.state.items()},
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_whole(path, buffer.getbuffer())


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file; a ValueError names a damaged one."""
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
        )
    except Exception as error:
        raise ValueError(f"{path}: the checkpoint is damaged ({type(error).__name__})") from error
