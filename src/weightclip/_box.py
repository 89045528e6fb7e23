"""The box [-kappa s_l, kappa s_l] of a parameter group: limits in the tensors' precision, clipping and counting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightclip._bound_rules import Bound
from weightclip._ranges import Units
from weightclip._torch_private import foreach_clamp_max_, foreach_clamp_min_
from weightclip._validation import check_number


@dataclass(frozen=True)
class Entry:
    """A tensor of the optimizer, its bound, the index of its group, and the layers that own it."""

    name: str
    tensor: Tensor
    bound: Bound
    group: int
    layers: tuple[nn.Module, ...] = ()


class Box:
    """The clipped tensors of one group and their limits; valid until a parameter's memory changes.

    A limit is a number, or a tensor with one number per unit that broadcasts against the clipped tensor.
    """

    def __init__(self, group: dict[str, Any], entries: list[Entry]) -> None:
        self.entries = entries
        self.sharded = any(is_sharded(p) for p in group["params"])
        self.addresses = self.addresses_of(group)
        self.parts = [local(entry.tensor.detach()) for entry in entries]  # without autograd, same memory
        self.on_cpu = all(part.is_cpu for part in self.parts)
        self.simple = self.on_cpu and not self.sharded
        self.counter: ClipCounter | None = None
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
        """Compute the limits for the group's current kappa."""
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
        """Memory addresses; they change when a parameter is added, replaced, frozen, moved or cast."""
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
        """Clip large tensors to a limit per unit; one call per side is much faster than one call for both."""
        for part, low, high in self.wide:
            part.clamp_max_(high)
            part.clamp_min_(low)

    def count(self, scratch: Scratch) -> list[Tensor]:
        if self.counter is None:
            self.counter = ClipCounter(self.parts, self.limits, scratch)
        return self.counter.count()


Limit = float | Tensor

EXPANDED = 2**14
"""Tensors of at most this many entries get limits of their own shape, which is faster than broadcasting."""


def clamp_all_(tensors: list[Tensor], limits: list[Any]) -> None:
    """Clip each tensor to [-limit, limit] in place, in two launches for all tensors; NaN stays NaN."""
    foreach_clamp_min_(tensors, [-bound for bound in limits])
    foreach_clamp_max_(tensors, limits)


def limit(kappa: float, bound: Bound, dtype: torch.dtype) -> float:
    """kappa k s rounded toward zero in `dtype`, for one range k for all units."""
    assert not isinstance(bound.range, Units)
    exact = kappa * bound.range * (math.inf if bound.s is None else bound.s)
    return float(_round_down(torch.tensor([exact], dtype=torch.float64), dtype)[0])


def exact_limits(kappa: float, bound: Bound, tensor: Tensor) -> float | Tensor:
    """kappa k s, or kappa k_i s per unit, in float64 without rounding; for a sharded tensor, all units."""
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
    """kappa k_i s per unit, rounded toward zero in the tensor's dtype; for a sharded tensor, the local units.

    The result has the tensor's number of dimensions, all of size 1 except that of the units.
    """
    units = bound.range
    assert isinstance(units, Units)
    limits = _round_down(_exact_unit_limits(kappa, bound, tensor), tensor.dtype)
    return _shard_like(limits, tensor, units.dim) if is_sharded(tensor) else limits.to(tensor.device)


def _shard_like(limits: Tensor, tensor: Any, dim: int) -> Tensor:
    """The limits of the local units of a sharded tensor."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    # The other dimensions have size 1 and are equal on all processes.
    placements = [one if one.is_shard(dim) else Replicate() for one in tensor.placements]
    on_device = limits.to(tensor.to_local().device)
    return distribute_tensor(on_device, tensor.device_mesh, placements, src_data_rank=None).to_local()


def _round_down(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Round positive float64 numbers toward zero in `dtype`."""
    rounded = exact.to(dtype)
    below = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.double() > exact, below, rounded)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # a DTensor, without importing torch.distributed


def local(tensor: Tensor) -> Tensor:
    """The local shard of a tensor, which each process clips by itself."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


class Scratch:
    """Reusable memory, one buffer per device and dtype; on a CPU, allocation can cost more than the operation."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """An uninitialised tensor of the same shape; the next call may return the same memory."""
        kind = (tensor.device, tensor.dtype)
        if kind not in self._memory or self._memory[kind].numel() < tensor.numel():
            self._memory[kind] = torch.empty(tensor.numel(), device=tensor.device, dtype=tensor.dtype)
        return self._memory[kind][: tensor.numel()].view(tensor.shape)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()  # a copy allocates its own memory


SMALL = 2**14
"""Tensors of at most this many entries are counted together, because the calls cost more than the counting."""
CHUNK = 2**20
"""Largest number of entries in one chunk of small tensors, which are copied for counting."""


class ClipCounter:
    """Counts the entries outside [-limit, limit] of each tensor; NaN for a tensor that contains NaN.

    The counts of a chunk are a tensor [tensors in the chunk] on its device; counting does not synchronise.
    """

    def __init__(self, tensors: Sequence[Tensor], limits: Sequence[float | Tensor], scratch: Scratch) -> None:
        self._scratch = scratch
        self._chunks = [_Chunk(tensors, limits, indices) for indices in _chunks(tensors)]
        self.order = [i for chunk in self._chunks for i in chunk.indices]

    def count(self) -> list[Tensor]:
        """The counts of all chunks; concatenated, they are in the order of the tensor indices `order`."""
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
            size = size.float()  # half precision cannot represent large counts
        nan = self._sums(torch.ne(size, size, out=torch.empty_like(size)))
        outside = self._sums(size.gt_(self._limits))
        return torch.where(nan > 0, math.nan, outside).float()

    def _sums(self, flags: Tensor) -> Tensor:
        """The sum of `flags` [entries] over each tensor, [tensors]; exact for the size of a chunk."""
        return torch.diff(flags.cumsum(0)[self._ends], prepend=flags.new_zeros(1))


def _chunks(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Tensor indices by chunk; a chunk has small, contiguous tensors of one device and dtype."""
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
    # In place, the comparison stays in floating point, several times faster than a boolean tensor.
    return size.gt_(limit).sum(dtype=torch.float32) + nan
