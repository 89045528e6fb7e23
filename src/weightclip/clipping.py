"""Weight clipping on top of any optimizer: after each step, w <- clip(w, -kappa s_l, kappa s_l)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightclip.bounds import FROZEN, Bound, Rule, named_tensors, resolve_bounds
from weightclip.checks import check_count, check_number
from weightclip.patterns import Patterns
from weightclip.remedy import (
    GLOBAL_HOOKS,
    Remedy,
    attach,
    check_optimizer,
    find_remedy,
    go_behind_global_hooks,
    owns_kappa,
)
from weightclip.scratch import Scratch

KEY = "clip_weights"

Resolver = Callable[[Sequence[Tensor]], "list[tuple[str, Bound]]"]
"""The optimizer's tensors -> the name and the bound of each."""

STRANGER = "not a parameter of the given model"


def clip_weights(
    optimizer: Optimizer,
    model: nn.Module,
    kappa: float,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    last_layer: bool = True,
    every: int = 1,
    statistics: bool = False,
) -> Clipper:
    """From now on, every `optimizer.step()` ends with w <- clip(w, -kappa s_l, kappa s_l).

    By default s_l = 1/sqrt(fan_in), the bound of the uniform distribution that PyTorch draws the layer from.
    Clipping is the last thing that a step does, whatever else is attached to the optimizer, in whatever order.

    `kappa` lives in `optimizer.param_groups`: a group that already has one keeps it, checkpoints save it, and
    assigning `group["kappa"]` changes it from the next step on. A loaded checkpoint brings its own kappa if it
    has one. A copied or unpickled optimizer has lost its hooks: call `clip_weights` on it again (a step without
    them warns).

    Args:
        optimizer: any `torch.optim.Optimizer`, on any device, with any number of groups.
        model: the module that owns the parameters; of several, `nn.ModuleList([actor, critic])`.
        kappa: the half-width of the box in units of s_l; positive, may be infinite.
        bounds: `"fan_in"`, `"init"`, `"paper"`, a mapping or a function: see `resolve_bounds`.
        include: names or glob patterns; every other tensor is left alone.
        exclude: names or glob patterns of tensors to leave alone.
        last_layer: False leaves the output layers alone.
        every: clip after every n-th step.
        statistics: count the entries that each step cuts, for `clipped_fraction`.

    Returns:
        The attached `Clipper`; print it to see every tensor's bound, and what is left alone and why.

    Examples:
        >>> model = nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
        >>> clipper = clip_weights(optimizer, model, kappa=2.0)
        >>> model(torch.ones(4)).backward()
        >>> optimizer.step()
        >>> model.weight.tolist()
        [[-1.0, -1.0, -1.0, -1.0]]
    """
    optimizer = check_optimizer(optimizer, KEY)
    if owns_kappa(type(optimizer)):
        raise ValueError(f"optimizer: {type(optimizer).__name__} has a hyper-parameter kappa of its own")
    resolve = partial(resolve_bounds, model, bounds, include=include, exclude=exclude, last_layer=last_layer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    tensors = named_tensors(model)
    others = {name: tensor.shape for name, tensor in tensors.items() if id(tensor) not in held}
    if len(others) == len(tensors):
        raise ValueError("optimizer: it holds none of the model's parameters")
    resolver = partial(_by_layer, model, resolve)
    return attach(Clipper(optimizer, resolver, kappa, every=every, statistics=statistics, others=others))


def find_clipper(optimizer: Optimizer) -> Clipper | None:
    """The clipper that is attached to `optimizer`, if there is one."""
    return cast("Clipper | None", find_remedy(optimizer, KEY))


def _by_layer(
    model: nn.Module, resolve: Callable[[], dict[str, Bound]], tensors: Sequence[Tensor]
) -> list[tuple[str, Bound]]:
    resolved = resolve()
    names = {id(tensor): name for name, tensor in named_tensors(model).items()}
    found = [(names.get(id(tensor)), f"parameter {i}") for i, tensor in enumerate(tensors)]
    return [(n, resolved[n]) if n else (unnamed, Bound(None, reason=STRANGER)) for n, unnamed in found]


@dataclass(frozen=True)
class _Entry:
    name: str
    tensor: Tensor
    bound: Bound
    group: int


class _Box:
    """The clipped tensors of one group and their limits, as long as kappa and the parameters' memory stay the same."""

    def __init__(self, group: dict[str, Any], entries: list[_Entry]) -> None:
        self.kappa = check_number("kappa", group.get("kappa"), infinite=True)
        self.entries = entries
        self.sharded = any(_is_sharded(p) for p in group["params"])
        self.addresses = self.addresses_of(group)
        self.parts = [_local(entry.tensor.detach()) for entry in entries]  # outside of autograd, in the same memory
        self.limits = [limit(self.kappa, entry.bound, entry.tensor.dtype) for entry in entries]
        self.on_cpu = all(part.is_cpu for part in self.parts)
        self.simple = self.on_cpu and not self.sharded
        self.plan = [(part, -bound, bound) for part, bound in zip(self.parts, self.limits, strict=True)]
        if self.kappa == math.inf:
            self.plan = []

    def addresses_of(self, group: dict[str, Any]) -> list[int]:
        """They change when a parameter is added or replaced, and when it moves to another device or dtype."""
        return [(_local(p.detach()) if self.sharded else p).data_ptr() for p in group["params"]]

    def clip(self) -> None:
        if self.on_cpu:
            for part, low, high in self.plan:
                torch.clamp_(part, low, high)
        elif self.plan:
            clamp_all_(self.parts, self.limits)


class Clipper(Remedy):
    """Clips an optimizer's weights after its steps. Made by `clip_weights`."""

    key = KEY
    group_keys = ("kappa",)

    def __init__(
        self,
        optimizer: Optimizer,
        resolver: Resolver,
        kappa: float,
        *,
        every: int = 1,
        statistics: bool = False,
        others: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__(optimizer)
        kappa = check_number("kappa", kappa, infinite=True)
        for group in optimizer.param_groups:
            check_number("kappa", group.get("kappa", kappa), infinite=True)
        self.every = check_count("every", every)
        self.statistics = statistics
        self._resolver = resolver
        self._others = others or {}
        self._steps = 0
        self._measured: dict[Tensor, float] = {}
        self._counts: list[Tensor] | None = None
        self._scratch = Scratch()
        self._entries = self._resolve()
        if not self._clipped():
            raise ValueError(f"model: there is nothing to clip; {self._left_alone()}")
        # New groups take their kappa from the defaults, as they take their step size.
        optimizer.defaults["kappa"] = kappa
        for group in optimizer.param_groups:
            group.setdefault("kappa", kappa)
        self._boxes: list[_Box] = []
        self._follow()

    def clip(self) -> None:
        """Clip once, now."""
        if not self.is_attached():
            raise RuntimeError("this clipper was removed from its optimizer")
        self._counts = None
        self._clip()

    @property
    def clipped_fraction(self) -> float:
        """The share of entries that the last step cut, over all clipped tensors.

        NaN if a clipped tensor holds a NaN (which stays NaN). Of a sharded tensor, this process's part counts.
        Reading it waits for the device.
        """
        cut = self._cut()
        return sum(count for count, _ in cut.values()) / max(1, sum(size for _, size in cut.values()))

    @property
    def clipped_fractions(self) -> dict[str, float]:
        """`clipped_fraction` of each clipped tensor, by name."""
        return {name: count / max(1, size) for name, (count, size) in self._cut().items()}

    def sides(self) -> dict[Tensor, float]:
        """How far each clipped tensor may go now: kappa * s_l."""
        groups = self.optimizer.param_groups
        return {e.tensor: groups[e.group]["kappa"] * e.bound.s for e in self._clipped() if e.bound.s is not None}

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bound of each of the optimizer's tensors, by name."""
        return {entry.name: entry.bound for entry in self._entries}

    def looks_at_gradients(self) -> bool:
        """Only to tell one step from the next."""
        return self.every > 1 or self.statistics

    def after_step(self) -> None:
        """Count the step."""
        if self.every > 1 and self.skipped():
            return
        self._steps += 1
        self._counts = None

    def enforce(self) -> None:
        """Clip, if this step is one that clips."""
        if self.every == 1 or self._steps % self.every == 0:
            self._clip()

    def direct_hook(self) -> Callable[[Optimizer, Any, Any], None] | None:
        """The common case: nothing to count, and nothing else attached."""
        return None if self.looks_at_gradients() else self._hook

    def _hook(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling():
            return None  # the global hook, which comes next, clips behind every compiled step
        if len(GLOBAL_HOOKS) > 1:
            go_behind_global_hooks()
        groups, boxes = optimizer.param_groups, self._boxes
        if self._frozen or len(groups) != len(boxes):
            return self._clip()
        for group, box in zip(groups, boxes):  # noqa: B905 (of equal length, and on the hot path)
            if (
                not box.simple
                or group.get("kappa") != box.kappa
                or [p.data_ptr() for p in group["params"]] != box.addresses
            ):
                return self._clip()
            for part, low, high in box.plan:
                torch.clamp_(part, low, high)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the measured bounds by the parameter's position."""
        measured = {i: self._measured[t] for i, t in enumerate(self.tensors()) if t in self._measured}
        return {"steps": self._steps, "measured": measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        tensors = self.tensors()
        self._steps = state["steps"]
        self._measured.update({tensors[i]: s for i, s in state["measured"].items()})
        self._follow()

    def remove(self) -> None:
        """Stop clipping, and take kappa out of the optimizer."""
        if not self.is_attached():
            return
        super().remove()
        for settings in (self.optimizer.defaults, *self.optimizer.param_groups):
            settings.pop("kappa", None)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_boxes": []}  # made again when they are needed

    def __repr__(self) -> str:
        optimizer = type(self.optimizer).__name__
        kappas = {f"{group['kappa']:g}": None for group in self.optimizer.param_groups if "kappa" in group}
        counts = f"{len(self._clipped())} of {len({*self.bounds, *self._others})}"
        return f"Clipper({optimizer}, kappa={', '.join(kappas)}: clips {counts} tensors)"

    def __str__(self) -> str:
        rows = [("tensor", "shape", "rule", "s", "kappa", "bound", "outside now", "at the bound")]
        for e in self._clipped():
            kappa, s = self.optimizer.param_groups[e.group].get("kappa", math.nan), e.bound.s or 0
            numbers = (f"{s:.4g}", f"{kappa:g}", f"{kappa * s:.4g}")
            now = _now(_local(e.tensor), limit(kappa, e.bound, e.tensor.dtype))
            rows.append((e.name, _shape(e.tensor), e.bound.rule, *numbers, *now))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([repr(self), *lines, self._left_alone()]).rstrip()

    def _left_alone(self) -> str:
        rows = [(e.name, _shape(e.tensor), e.bound.reason) for e in self._entries if e.bound.s is None]
        absent = {name: shape for name, shape in self._others.items() if name not in self.bounds}
        rows += [(name, _shape(shape), "not in this optimizer") for name, shape in absent.items()]
        if not rows:
            return ""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(["left alone:", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)])

    def _clipped(self) -> list[_Entry]:
        """The clipped tensors, in the order in which `_clip` goes through them: that of the groups."""
        return [entry for entry in self._entries if entry.bound.s is not None]

    def _resolve(self) -> list[_Entry]:
        groups = [i for i, group in enumerate(self.optimizer.param_groups) for _ in group["params"]]
        tensors = self.tensors()
        entries: list[_Entry] = []
        for tensor, (name, bound), group in zip(tensors, self._resolver(tensors), groups, strict=True):
            if bound.s is not None and bound.rule.startswith("init"):  # measured once
                bound = replace(bound, s=self._measured.setdefault(tensor, bound.s))
            entries.append(_Entry(name, tensor, bound, group))
        return entries

    def _follow(self) -> None:
        """Resolve the parameters that the optimizer has now; of those that are new, refuse strangers."""
        known = {id(entry.tensor) for entry in self._entries}
        groups = self.optimizer.param_groups
        entries = self._resolve()
        for entry in entries:
            stranger = entry.bound.reason == STRANGER and id(entry.tensor) not in known
            if stranger and groups[entry.group].get("kappa") != math.inf:
                raise ValueError(
                    f"{entry.name}, shape {_shape(entry.tensor)}: added to the optimizer, but not a parameter of "
                    "the model that clip_weights was given; kappa=float('inf') in its group leaves it alone"
                )
        clipped = [entry for entry in entries if entry.bound.s is not None]
        boxes = [_Box(group, [e for e in clipped if e.group == i]) for i, group in enumerate(groups)]
        self._entries, self._boxes = entries, boxes
        self._frozen = [entry.tensor for entry in entries if entry.bound.reason == FROZEN]

    def _clip(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self._boxes) or (self._frozen and any(p.requires_grad for p in self._frozen)):
            self._follow()
        counts: list[Tensor] = []
        for i, group in enumerate(groups):
            box = self._boxes[i]
            if box.addresses_of(group) != box.addresses:
                self._follow()
                box = self._boxes[i]
            elif group.get("kappa") != box.kappa:
                box = self._boxes[i] = _Box(group, box.entries)
            if self.statistics:
                counts += [
                    _count_outside(*part, self._scratch.like(part[0]))
                    for part in zip(box.parts, box.limits, strict=True)
                ]
            box.clip()
        if self.statistics:
            # A step may clip twice, when there are hooks that act behind ours: both cuts count.
            self._counts = counts if self._counts is None else [*map(torch.add, self._counts, counts)]

    def _cut(self) -> dict[str, tuple[float, int]]:
        """For each clipped tensor: the entries cut by the last step, of how many."""
        if not self.statistics:
            raise RuntimeError("statistics are off: pass statistics=True to clip_weights")
        entries = self._clipped()
        counts = [float(count) for count in self._counts] if self._counts is not None else [0.0] * len(entries)
        return {e.name: (count, _local(e.tensor).numel()) for e, count in zip(entries, counts, strict=True)}


def clamp_all_(tensors: list[Tensor], limits: list[float]) -> None:
    """Clip each tensor to [-limit, limit] in place, with two launches for all of them; NaN stays NaN."""
    torch._foreach_clamp_min_(tensors, [-bound for bound in limits])
    torch._foreach_clamp_max_(tensors, limits)


def limit(kappa: float, bound: Bound, dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is not above kappa * s, so that no entry ends outside the box."""
    exact = kappa * (math.inf if bound.s is None else bound.s)
    rounded = torch.tensor(exact, dtype=dtype)
    if rounded.item() > exact:
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    return rounded.item()


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # a DTensor, without importing what defines it


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor: a bound is one number, so each part is clipped alone."""
    local: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return local


def _count_outside(tensor: Tensor, bound: float, scratch: Tensor) -> Tensor:
    """How many entries are outside [-bound, bound]; NaN if an entry is NaN."""
    size = torch.abs(tensor, out=scratch)
    if size.numel() == 0:
        return size.sum(dtype=torch.float32)
    nan = torch.where(size.amax().isnan(), math.nan, 0.0)
    # In place, the comparison stays in floating point: several times faster than a tensor of booleans.
    return size.gt_(bound).sum(dtype=torch.float32) + nan


def _now(tensor: Tensor, bound: float) -> tuple[str, str]:
    """How many entries are outside, and how many exactly at the bound."""
    size = tensor.abs()
    outside, nan, at = (int(part.sum()) for part in (size > bound, size.isnan(), size == bound))
    return f"{outside} of {tensor.numel()}" + (f", {nan} NaN" if nan else ""), str(at)


def _shape(shape: Sequence[int] | Tensor) -> str:
    return "x".join(map(str, shape.shape if isinstance(shape, Tensor) else shape)) or "scalar"
