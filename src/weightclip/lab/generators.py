"""The state of NumPy's generators as arrays, for checkpoints."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray


def to_array(generator: np.random.Generator) -> NDArray[np.uint8]:
    """The generator's state as bytes of JSON: NumPy saves that without pickling."""
    return np.frombuffer(json.dumps(generator.bit_generator.state).encode(), np.uint8)


def from_array(generator: np.random.Generator, state: NDArray[np.uint8]) -> None:
    """Go on where `to_array` was taken."""
    generator.bit_generator.state = json.loads(state.tobytes())
