"""Counting the entries that a clip changes, of many tensors in a few operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from weightclip.scratch import Scratch

SMALL = 2**14
"""Tensors of at most this many entries are counted together: one by one, the calls cost more than the counting."""
CHUNK = 2**20
"""Entries at most in one chunk of small tensors, which are copied to be counted."""


class CutCounter:
    """Counts, for each tensor, the entries outside [-limit, limit]; NaN for a tensor that holds a NaN.

    The counts of a chunk are one tensor of shape (tensors in the chunk,). Nothing is read from the device.
    """

    def __init__(self, tensors: Sequence[Tensor], limits: Sequence[float | Tensor], scratch: Scratch) -> None:
        self._scratch = scratch
        self._chunks = [_Chunk(tensors, limits, indices) for indices in _chunks(tensors)]
        self.order = [i for chunk in self._chunks for i in chunk.indices]

    def count(self) -> list[Tensor]:
        """The counts of all chunks; flattened, they belong to the tensors in `order`."""
        return [chunk.count(self._scratch) for chunk in self._chunks]


class _Chunk:
    def __init__(self, tensors: Sequence[Tensor], limits: Sequence[float | Tensor], indices: list[int]) -> None:
        self.indices = indices
        self._parts = [tensors[i] for i in indices]
        self._limit = limits[indices[0]]
        if len(indices) > 1:
            self._parts = [part.view(-1) for part in self._parts]
            first = self._parts[0]
            sizes = torch.tensor([part.numel() for part in self._parts], device=first.device)
            each = [torch.as_tensor(limits[i], device=first.device, dtype=first.dtype) for i in indices]
            whole = (limit.expand_as(tensors[i]).reshape(-1) for i, limit in zip(indices, each, strict=True))
            self._limits = torch.cat([*whole])
            self._ends = sizes.cumsum(0) - 1

    def count(self, scratch: Scratch) -> Tensor:
        if len(self.indices) == 1:
            return _count_outside(self._parts[0], self._limit, scratch.like(self._parts[0])).reshape(1)
        size = torch.cat(self._parts, out=scratch.like(self._limits)).abs_()
        if size.element_size() < 4:
            size = size.float()  # half precision cannot count
        nan = self._sums(torch.ne(size, size, out=torch.empty_like(size)))
        outside = self._sums(size.gt_(self._limits))
        return torch.where(nan > 0, math.nan, outside).float()

    def _sums(self, flags: Tensor) -> Tensor:
        """The sum of `flags` over the entries of each tensor; exact, because a chunk has few enough entries."""
        return torch.diff(flags.cumsum(0)[self._ends], prepend=flags.new_zeros(1))


def _chunks(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The positions of the tensors, those of one chunk together: small, contiguous, of one device and dtype."""
    chunks: list[list[int]] = []
    unfinished: dict[tuple[torch.device, torch.dtype], tuple[list[int], int]] = {}
    for i, tensor in enumerate(tensors):
        if not 0 < tensor.numel() <= SMALL or not tensor.is_contiguous():
            chunks.append([i])
            continue
        kind = (tensor.device, tensor.dtype)
        chunk, entries = unfinished.get(kind, ([], CHUNK))
        if entries + tensor.numel() > CHUNK:
            chunk, entries = [], 0
            chunks.append(chunk)
        chunk.append(i)
        unfinished[kind] = chunk, entries + tensor.numel()
    return chunks


def _count_outside(tensor: Tensor, limit: float | Tensor, scratch: Tensor) -> Tensor:
    size = torch.abs(tensor, out=scratch)
    if size.numel() == 0:
        return size.sum(dtype=torch.float32)
    nan = torch.where(size.amax().isnan(), math.nan, 0.0)
    # In place, the comparison stays in floating point: several times faster than a tensor of booleans.
    return size.gt_(limit).sum(dtype=torch.float32) + nan
