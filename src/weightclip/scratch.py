"""Memory that is kept from step to step: on a CPU, asking for it anew can cost more than what is done in it."""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """One piece of memory for each device and dtype, as large as the largest tensor that needed it."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of that shape whose values do not matter; the next call may give out the same memory."""
        kind = (tensor.device, tensor.dtype)
        if kind not in self._memory or self._memory[kind].numel() < tensor.numel():
            self._memory[kind] = torch.empty(tensor.numel(), device=tensor.device, dtype=tensor.dtype)
        return self._memory[kind][: tensor.numel()].view(tensor.shape)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()  # a copy asks for its own memory when it needs it


def add_scaled_(tensor: Tensor, other: Tensor, scale: float | Tensor) -> None:
    """Add scale * other to the tensor in place; `scale` may be a tensor, as step sizes may."""
    if isinstance(scale, Tensor):
        tensor.add_(other * scale)
    else:
        tensor.add_(other, alpha=scale)
