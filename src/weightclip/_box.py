"""The box of a parameter group: its clipped tensors, and the limits kappa * s_l in their own precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightclip._bound_rules import Bound
from weightclip._counting import CutCounter
from weightclip._ranges import Units
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
    """The clipped tensors of one group and their limits, as long as kappa and the parameters' memory stay the same.

    A limit is a number, or a tensor with one number for each unit that broadcasts against the clipped tensor.
    """

    def __init__(self, group: dict[str, Any], entries: list[Entry]) -> None:
        self.entries = entries
        self.sharded = any(is_sharded(p) for p in group["params"])
        self.addresses = self.addresses_of(group)
        self.parts = [local(entry.tensor.detach()) for entry in entries]  # outside of autograd, in the same memory
        self.on_cpu = all(part.is_cpu for part in self.parts)
        self.simple = self.on_cpu and not self.sharded
        self.counter: CutCounter | None = None
        self._by_dtype: dict[torch.dtype, list[int]] = {}
        self._units = {i: e for i, e in enumerate(entries) if isinstance(e.bound.range, Units)}
        for i, entry in enumerate(entries):
            if i not in self._units:
                self._by_dtype.setdefault(entry.tensor.dtype, []).append(i)
        self._ranges = {
            dtype: torch.tensor([entries[i].bound.range for i in positions], dtype=torch.float64)
            for dtype, positions in self._by_dtype.items()
        }
        self._s = {
            dtype: torch.tensor([entries[i].bound.s for i in positions], dtype=torch.float64)
            for dtype, positions in self._by_dtype.items()
        }
        self.set_kappa(group)

    def set_kappa(self, group: dict[str, Any]) -> None:
        """Compute the limits anew, for the kappa of the group."""
        self.kappa = check_number("kappa", group.get("kappa"), infinite=True)
        self.limits: list[Limit] = [math.inf] * len(self.entries)
        for dtype, positions in self._by_dtype.items():
            exact = self.kappa * self._ranges[dtype] * self._s[dtype]
            for i, limit in zip(positions, _round_down(exact, dtype).tolist(), strict=True):
                self.limits[i] = limit
        for i, entry in self._units.items():
            self.limits[i] = unit_limits(self.kappa, entry.bound, entry.tensor)
        self.plan: list[tuple[Tensor, Limit, Limit]] = []
        self.wide: list[tuple[Tensor, Tensor, Tensor]] = []
        for part, limit in zip(self.parts, self.limits, strict=True):
            if not isinstance(limit, Tensor):
                if limit < math.inf:
                    self.plan.append((part, -limit, limit))
            elif part.numel() <= EXPANDED:
                whole = limit.expand_as(part).contiguous()
                self.plan.append((part, -whole, whole))
            else:
                self.wide.append((part, -limit, limit))
        if self.kappa == math.inf:
            self.plan, self.wide = [], []
        self.counter = None

    def addresses_of(self, group: dict[str, Any]) -> list[int]:
        """They change when a parameter is added, replaced, frozen or moved to another device or dtype."""
        trained = [p for p in group["params"] if p.requires_grad]
        return [(local(p.detach()) if self.sharded else p).data_ptr() for p in trained]

    def clip(self) -> None:
        if self.on_cpu or self._units:
            for part, low, high in self.plan:
                torch.clamp_(part, low, high)  # type: ignore[arg-type]
            self.clip_wide()
        elif self.plan:
            clamp_all_([part for part, _, _ in self.plan], [high for _, _, high in self.plan])

    def clip_wide(self) -> None:
        """Clip large tensors with a limit for each unit: one at a time, both sides would be slower by far."""
        for part, low, high in self.wide:
            part.clamp_max_(high)
            part.clamp_min_(low)

    def count(self, scratch: Scratch) -> list[Tensor]:
        if self.counter is None:
            self.counter = CutCounter(self.parts, self.limits, scratch)
        return self.counter.count()


Limit = float | Tensor

EXPANDED = 2**14
"""Tensors of at most this many entries are clipped to limits of their own shape, which is faster than to broadcast."""


def clamp_all_(tensors: list[Tensor], limits: list[Any]) -> None:
    """Clip each tensor to [-limit, limit] in place, with two launches for all of them; NaN stays NaN."""
    torch._foreach_clamp_min_(tensors, [-bound for bound in limits])
    torch._foreach_clamp_max_(tensors, limits)


def limit(kappa: float, bound: Bound, dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is not above kappa k s, for a range k that all units share."""
    assert not isinstance(bound.range, Units)
    exact = kappa * bound.range * (math.inf if bound.s is None else bound.s)
    return float(_round_down(torch.tensor([exact], dtype=torch.float64), dtype)[0])


def exact_limits(kappa: float, bound: Bound, tensor: Tensor) -> float | Tensor:
    """kappa k s, or kappa k_i s for each unit, in float64 and without rounding; of a sharded tensor, of all units."""
    if not isinstance(bound.range, Units):
        return kappa * bound.range * (math.inf if bound.s is None else bound.s)
    return _exact_unit_limits(kappa, bound, tensor)


def _exact_unit_limits(kappa: float, bound: Bound, tensor: Tensor) -> Tensor:
    units = bound.range
    assert isinstance(units, Units)
    exact = kappa * torch.tensor(units.kappas(tensor.shape[units.dim]), dtype=torch.float64) * (bound.s or math.inf)
    shape = [1] * tensor.dim()
    shape[units.dim] = -1
    return exact.reshape(shape)


def unit_limits(kappa: float, bound: Bound, tensor: Tensor) -> Tensor:
    """kappa k_i s for each unit, rounded down in the tensor's dtype; of a sharded tensor, for the units that are here.

    It has as many dimensions as the tensor, of size 1 but for that of the units.
    """
    units = bound.range
    assert isinstance(units, Units)
    limits = _round_down(_exact_unit_limits(kappa, bound, tensor), tensor.dtype)
    return _shard_like(limits, tensor, units.dim) if is_sharded(tensor) else limits.to(tensor.device)


def _shard_like(limits: Tensor, tensor: Any, dim: int) -> Tensor:
    """The limits of the units that this process has of a sharded tensor."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    # Other dimensions have size 1 and are the same on all processes.
    placements = [one if one.is_shard(dim) else Replicate() for one in tensor.placements]
    on_device = limits.to(tensor.to_local().device)
    return distribute_tensor(on_device, tensor.device_mesh, placements, src_data_rank=None).to_local()


def _round_down(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest numbers of `dtype` that are not above those of `exact`, which are positive and in float64."""
    rounded = exact.to(dtype)
    below = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.double() > exact, below, rounded)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # a DTensor, without importing what defines it


def local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, which is clipped alone."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part
