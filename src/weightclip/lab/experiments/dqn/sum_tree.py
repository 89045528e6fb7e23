"""A sum tree: samples indices in proportion to their priorities in logarithmic time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


class SumTree:
    """Priorities, initially 0.

    The tree is an array: node i is the sum of its children 2 i and 2 i + 1; the leaves are its second half.

    Args:
        size: the number of priorities.
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
        """Indices [number], by stratified sampling: one from each of `number` equal parts of the total."""
        at = (np.arange(number) + generator.random(number)) * (self.total / number)
        return _find(self.nodes, self._leaves, at)


@njit(cache=True)
def _set(nodes: Floats, leaves: int, places: Places, priorities: Floats) -> None:
    for k in range(len(places)):
        i = leaves + places[k]
        nodes[i] = priorities[k]
        while i > 1:
            i //= 2
            nodes[i] = nodes[2 * i] + nodes[2 * i + 1]  # recomputed, as differences would accumulate rounding errors


@njit(cache=True)
def _find(nodes: Floats, leaves: int, at: Floats) -> Places:
    found = np.empty(len(at), np.int64)
    for k in range(len(at)):
        i, rest = 1, at[k]
        while i < leaves:
            i *= 2
            # Right if it lies there; left if rounding leads to a subtree without priority.
            if rest >= nodes[i] and nodes[i + 1] > 0.0:
                rest -= nodes[i]
                i += 1
        found[k] = i - leaves
    return found
