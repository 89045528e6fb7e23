"""The box of a parameter group: its clipped tensors, and the limits kappa * s_l in their own precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightclip._counting import CutCounter
from weightclip.bounds import Bound
from weightclip.checks import check_number
from weightclip.scratch import Scratch


@dataclass(frozen=True)
class Entry:
    """A tensor of the optimizer, its bound, the position of its group, and the layers that have it."""

    name: str
    tensor: Tensor
    bound: Bound
    group: int
    layers: tuple[nn.Module, ...] = ()


class Box:
    """The clipped tensors of one group and their limits, as long as kappa and the parameters' memory stay the same."""

    def __init__(self, group: dict[str, Any], entries: list[Entry]) -> None:
        self.entries = entries
        self.sharded = any(is_sharded(p) for p in group["params"])
        self.addresses = self.addresses_of(group)
        self.parts = [local(entry.tensor.detach()) for entry in entries]  # outside of autograd, in the same memory
        self.on_cpu = all(part.is_cpu for part in self.parts)
        self.simple = self.on_cpu and not self.sharded
        self.counter: CutCounter | None = None
        self._by_dtype: dict[torch.dtype, list[int]] = {}
        for i, entry in enumerate(entries):
            self._by_dtype.setdefault(entry.tensor.dtype, []).append(i)
        self._s = {
            dtype: torch.tensor([entries[i].bound.s for i in positions], dtype=torch.float64)
            for dtype, positions in self._by_dtype.items()
        }
        self.set_kappa(group)

    def set_kappa(self, group: dict[str, Any]) -> None:
        """Compute the limits anew, for the kappa of the group."""
        self.kappa = check_number("kappa", group.get("kappa"), infinite=True)
        self.limits = [math.inf] * len(self.entries)
        for dtype, positions in self._by_dtype.items():
            for i, limit in zip(positions, _round_down(self.kappa * self._s[dtype], dtype), strict=True):
                self.limits[i] = limit
        self.plan = [(part, -limit, limit) for part, limit in zip(self.parts, self.limits, strict=True)]
        if self.kappa == math.inf:
            self.plan = []
        self.counter = None

    def addresses_of(self, group: dict[str, Any]) -> list[int]:
        """They change when a parameter is added, replaced, frozen or moved to another device or dtype."""
        trained = [p for p in group["params"] if p.requires_grad]
        return [(local(p.detach()) if self.sharded else p).data_ptr() for p in trained]

    def clip(self) -> None:
        if self.on_cpu:
            for part, low, high in self.plan:
                torch.clamp_(part, low, high)
        elif self.plan:
            clamp_all_(self.parts, self.limits)

    def count(self, scratch: Scratch) -> list[Tensor]:
        if self.counter is None:
            self.counter = CutCounter(self.parts, self.limits, scratch)
        return self.counter.count()


def clamp_all_(tensors: list[Tensor], limits: list[float]) -> None:
    """Clip each tensor to [-limit, limit] in place, with two launches for all of them; NaN stays NaN."""
    torch._foreach_clamp_min_(tensors, [-bound for bound in limits])
    torch._foreach_clamp_max_(tensors, limits)


def limit(kappa: float, bound: Bound, dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is not above kappa * s, so that no entry ends outside the box."""
    exact = torch.tensor([kappa * (math.inf if bound.s is None else bound.s)], dtype=torch.float64)
    return _round_down(exact, dtype)[0]


def _round_down(exact: Tensor, dtype: torch.dtype) -> list[float]:
    """The largest numbers of `dtype` that are not above those of `exact`, which are positive and in float64."""
    rounded = exact.to(dtype)
    below = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.double() > exact, below, rounded).tolist()


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # a DTensor, without importing what defines it


def local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor: a bound is one number, so each part is clipped alone."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part
