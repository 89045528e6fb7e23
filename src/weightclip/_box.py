"""The box [-kappa s_l, kappa s_l] of a parameter group: limits in the tensors' precision, clipping and counting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
        self._tables = _unit_tables(self._units, self.parts)
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
            for i, limit in zip(positions, round_down(exact, dtype).tolist(), strict=True):
                self.limits[i] = limit
        self.plan: list[Clamp] = [
            (part, -limit, limit)
            for part, limit in zip(self.parts, self.limits, strict=True)
            if not isinstance(limit, Tensor) and limit < math.inf
        ]
        self.wide: list[tuple[Tensor, Tensor, Tensor]] = []
        for table in self._tables:
            table.set_kappa(self.kappa)
            for i, limit in table.limits.items():
                self.limits[i] = limit
            if self.kappa < math.inf:
                self.plan += table.plan
                self.wide += table.wide
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
        """Clip large tensors whose rows are the units; one call per side is much faster than one call for both."""
        for part, low, high in self.wide:
            part.clamp_max_(high)
            part.clamp_min_(low)

    def count(self, scratch: Scratch) -> list[Tensor]:
        if self.counter is None:
            self.counter = ClipCounter(self.parts, self.limits, scratch)
        return self.counter.count()


Limit = float | Tensor
Clamp = tuple[Tensor, Limit, Limit]
"""Arguments of one call of `torch.clamp_`."""

EXPANDED = 2**14
"""Tensors of at most this many entries get limits of their own shape, which is faster than broadcasting."""

SHORT_RUN = 64
"""Runs of at most this many adjacent entries of one unit get limits for every entry instead of one per run."""

LONG_ROW = 2**12
"""Rows of limits are repeated up to this many bytes.

Each row of a broadcast operation has a cost of its own, but lower and upper limits must stay in the innermost cache.
"""

ALIGNED = 64
"""The limits of each tensor start at a multiple of this many entries."""


class _UnitTable:
    """The limits of all units of a group with the same device and dtype, updated in place when kappa changes.

    Each limit is the number kappa k_i s, rounded toward zero. The numbers k_i s are computed once. Tensors are clipped
    through views that keep the limits contiguous, or constant along long runs: other broadcasts are up to 20 times
    slower.
    """

    def __init__(self, entries: Mapping[int, Entry], parts: Sequence[Tensor]) -> None:
        exact = [_local_units(entry.bound, entry.tensor) for entry in entries.values()]
        first = parts[next(iter(entries))]
        self._exact = torch.cat(exact)
        self._high = torch.empty(len(self._exact), dtype=first.dtype, device=first.device)
        self._low = torch.empty_like(self._high)
        self.limits: dict[int, Tensor] = {}
        self.plan: list[Clamp] = []
        self.wide: list[tuple[Tensor, Tensor, Tensor]] = []
        starts = [0, *itertools.accumulate(map(len, exact))]
        spread: list[tuple[Tensor, Tensor]] = []  # a view of a tensor, and the unit of each entry of its rows
        for (i, entry), start, units in zip(entries.items(), starts, exact, strict=False):
            part, rows = parts[i], slice(start, start + len(units))
            assert isinstance(entry.bound.range, Units)
            shape = [1] * part.dim()
            shape[entry.bound.range.dim] = -1
            self.limits[i] = self._high[rows].view(shape)
            view, index = _clamp_view(part, entry.bound.range.dim)
            if index is None:
                limits = shape if view is part else [-1, 1]
                self.wide.append((view, self._low[rows].view(limits), self._high[rows].view(limits)))
            elif part.numel():
                spread.append((view, start + index))
        # Unaligned limits would be slower by half.
        padded = [nn.functional.pad(index, (0, -len(index) % ALIGNED)) for _, index in spread]
        self._spread_units = torch.cat(padded).to(first.device) if spread else None
        self._spread_high = torch.empty(sum(map(len, padded)), dtype=first.dtype, device=first.device)
        self._spread_low = torch.empty_like(self._spread_high)
        starts = [0, *itertools.accumulate(map(len, padded))]
        for (view, index), start in zip(spread, starts, strict=False):
            rows = slice(start, start + len(index))
            self.plan.append((view, self._spread_low[rows], self._spread_high[rows]))

    def set_kappa(self, kappa: float) -> None:
        self._high.copy_(round_down(kappa * self._exact, self._high.dtype))
        torch.neg(self._high, out=self._low)
        if self._spread_units is not None:
            torch.index_select(self._high, 0, self._spread_units, out=self._spread_high)
            torch.neg(self._spread_high, out=self._spread_low)


def _unit_tables(entries: Mapping[int, Entry], parts: Sequence[Tensor]) -> list[_UnitTable]:
    """The tables of all tensors with a range per unit, one per device and dtype."""
    by_kind: dict[tuple[torch.device, torch.dtype], dict[int, Entry]] = {}
    for i, entry in entries.items():
        by_kind.setdefault((parts[i].device, parts[i].dtype), {})[i] = entry
    return [_UnitTable(some, parts) for some in by_kind.values()]


def _clamp_view(part: Tensor, dim: int) -> tuple[Tensor, Tensor | None]:
    """A view of `part` that is fast to clip, and the unit of each entry of its last dimensions.

    None instead of units: the second to last dimension of the view indexes the units, or dimension `dim` if the view is
    `part` itself.
    """
    order = sorted(range(part.dim()), key=lambda d: (-part.stride()[d], d))  # channels-last is contiguous in this order
    ordered = part.permute(order)
    if not ordered.is_contiguous():
        return part, None
    at = order.index(dim)
    size = ordered.shape
    outer, units, run = math.prod(size[:at]), size[at], math.prod(size[at + 1 :])
    each = torch.arange(units, dtype=torch.int32)
    if part.numel() <= EXPANDED:
        return ordered.reshape(-1), each.repeat_interleave(run).repeat(outer)
    if outer == 1:
        return ordered.reshape(units, run), None
    if run > SHORT_RUN:
        return ordered.reshape(outer, units, run), None
    row, repeats = units * run, 1
    while outer % (2 * repeats) == 0 and 2 * repeats * row * part.element_size() <= LONG_ROW:
        repeats *= 2
    return ordered.reshape(outer // repeats, repeats * row), each.repeat_interleave(run).repeat(repeats)


def _local_units(bound: Bound, tensor: Tensor) -> Tensor:
    """k_i s of the local units of a tensor, in float64 on the CPU."""
    units = bound.range
    assert isinstance(units, Units)
    exact = _exact_unit_limits(1.0, bound, tensor)
    return (_shard_like(exact, tensor, units.dim) if is_sharded(tensor) else exact).flatten().cpu()


def clamp_all_(tensors: list[Tensor], limits: list[Any]) -> None:
    """Clip each tensor to [-limit, limit] in place, in two launches for all tensors; NaN stays NaN."""
    foreach_clamp_min_(tensors, [-bound for bound in limits])
    foreach_clamp_max_(tensors, limits)


def limit(kappa: float, bound: Bound, dtype: torch.dtype) -> float:
    """kappa k s rounded toward zero in `dtype`, for one range k for all units."""
    assert not isinstance(bound.range, Units)
    exact = kappa * bound.range * (math.inf if bound.s is None else bound.s)
    return float(round_down(torch.tensor([exact], dtype=torch.float64), dtype)[0])


def exact_limits(kappa: float, bound: Bound, tensor: Tensor) -> float | Tensor:
    """kappa k s, or kappa k_i s per unit, in float64 without rounding; for a sharded tensor, all units."""
    if not isinstance(bound.range, Units):
        return kappa * bound.range * (math.inf if bound.s is None else bound.s)
    return _exact_unit_limits(kappa, bound, tensor)


def _exact_unit_limits(kappa: float, bound: Bound, tensor: Tensor) -> Tensor:
    units = bound.range
    assert isinstance(units, Units)
    exact = kappa * (torch.tensor(units.kappas(tensor.shape[units.dim]), dtype=torch.float64) * (bound.s or math.inf))
    shape = [1] * tensor.dim()
    shape[units.dim] = -1
    return exact.reshape(shape)


def unit_limits(kappa: float, bound: Bound, tensor: Tensor) -> Tensor:
    """kappa k_i s per unit, rounded toward zero in the tensor's dtype; for a sharded tensor, the local units.

    The result has the tensor's number of dimensions, all of size 1 except that of the units.
    """
    units = bound.range
    assert isinstance(units, Units)
    limits = round_down(_exact_unit_limits(kappa, bound, tensor), tensor.dtype)
    return _shard_like(limits, tensor, units.dim) if is_sharded(tensor) else limits.to(tensor.device)


def _shard_like(limits: Tensor, tensor: Any, dim: int) -> Tensor:
    """The limits of the local units of a sharded tensor."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    # The other dimensions have size 1 and are equal on all processes.
    placements = [one if one.is_shard(dim) else Replicate() for one in tensor.placements]
    on_device = limits.to(tensor.to_local().device)
    return distribute_tensor(on_device, tensor.device_mesh, placements, src_data_rank=None).to_local()


def round_down(exact: Tensor, dtype: torch.dtype) -> Tensor:
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
        """An uninitialized tensor of the same shape; the next call may return the same memory."""
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

    The counts of a chunk are a tensor [tensors in the chunk] on its device; counting does not synchronize.
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
