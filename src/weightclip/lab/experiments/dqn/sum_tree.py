"""A sum tree: numbers in an array, drawn with a probability in proportion to them, in logarithmic time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


class SumTree:
    """Priorities, all 0 at first.

    The tree is an array: node i has the children 2 i and 2 i + 1 and is their sum; the leaves are its second half.

    Args:
        size: how many priorities.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << (size - 1).bit_length()
        self.nodes = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.nodes[1])

    def __getitem__(self, places: Places) -> Floats:
        return self.nodes[self._leaves + places]

    def __setitem__(self, places: Places, priorities: Floats | float) -> None:
        _set(self.nodes, self._leaves, places, np.broadcast_to(np.asarray(priorities, np.float64), places.shape))

    def draw(self, number: int, generator: np.random.Generator) -> Places:
        """Places [number], one from each of so many equal parts of the total."""
        at = (np.arange(number) + generator.random(number)) * (self.total / number)
        return _find(self.nodes, self._leaves, at)


@njit(cache=True)
def _set(nodes: Floats, leaves: int, places: Places, priorities: Floats) -> None:
    for k in range(len(places)):
        i = leaves + places[k]
        nodes[i] = priorities[k]
        while i > 1:
            i //= 2
            nodes[i] = nodes[2 * i] + nodes[2 * i + 1]  # not by differences: rounding would add up


@njit(cache=True)
def _find(nodes: Floats, leaves: int, at: Floats) -> Places:
    found = np.empty(len(at), np.int64)
    for k in range(len(at)):
        i, rest = 1, at[k]
        while i < leaves:
            i *= 2
            # To the right if that is where it lies; where rounding says so but nothing is there, to the left.
            if rest >= nodes[i] and nodes[i + 1] > 0.0:
                rest -= nodes[i]
                i += 1
        found[k] = i - leaves
    return found
