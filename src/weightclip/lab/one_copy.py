"""Arrays that go to a device together: one copy, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED = 16
"""Bytes: each array begins at a multiple of it, as views of other types need."""


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays on a device; on the CPU they are not copied at all."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cpu":
        return tensors
    packed = pack(tensors, pinned=device.type == "cuda")
    return unpack(packed.to(device, non_blocking=True), tensors)


def pack(tensors: Sequence[Tensor], pinned: bool = False) -> Tensor:
    """Their bytes one after the other; pinned memory is what a GPU reads without another copy."""
    size = sum(end - begin for begin, end in _places(tensors))
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for one, own in zip(unpack(packed, tensors), tensors, strict=True):
        one.copy_(own)
    return packed


def unpack(packed: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of packed bytes, with the types and shapes of these tensors."""
    return [
        packed[begin : begin + own.nbytes].view(own.dtype).view(own.shape)
        for own, (begin, _) in zip(tensors, _places(tensors), strict=True)
    ]


def _places(tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Where each begins, and where the next one does."""
    begin = 0
    for own in tensors:
        end = begin + -(-own.nbytes // _ALIGNED) * _ALIGNED
        yield begin, end
        begin = end
