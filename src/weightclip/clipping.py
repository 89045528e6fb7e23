"""Weight clipping on top of any optimizer: after each step, w <- clip(w, -kappa s_l, kappa s_l)."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from weightclip._bound_rules import EMBEDDING, UNKNOWN, Bound
from weightclip._box import Box, Entry, exact_limits, limit, local, unit_limits
from weightclip._layer_ranges import find_output_names, with_ranges
from weightclip._ranges import Kappa, RangeRule, Units, parse_kappa, read_kappa
from weightclip._second_weights import check_nested, find_second_weights
from weightclip.bounds import Resolved, Rule, bounds_by_tensor, named_tensors
from weightclip.checks import check_count, check_number, check_truth
from weightclip.patterns import Patterns
from weightclip.remedy import (
    GLOBAL_HOOKS,
    Remedy,
    attach,
    call_after,
    check_optimizer,
    find_remedy,
    go_behind_global_hooks,
    nested_optimizers,
    owns_kappa,
    wrappers_that_act,
)
from weightclip.scratch import Scratch

KEY = "clip_weights"
FOREIGN = "not a parameter of the given model"
OTHER_STEPS = ("second_step", "fused_backward")
"""Methods that update the weights in the place of `step`: of SAM and of LOMO."""

WARN_ABOVE = 0.1
"""The fraction of all weight entries that may be in layers without a bound rule before `clip_weights` warns."""


class NothingToClipError(ValueError):
    """None of the optimizer's parameters has a bound."""


class Resolver(Protocol):
    """Finds the bounds of an optimizer's tensors."""

    def resolve(self, groups: Sequence[Sequence[Tensor]], rule: RangeRule | None) -> list[Resolved]:
        """The name, the bound and the layers of each tensor, in the order of the groups."""

    def absent(self, tensors: Sequence[Tensor]) -> dict[str, torch.Size]:
        """The names and shapes of the model's parameters that are not among `tensors`."""


def clip_weights(
    optimizer: Optimizer,
    model: nn.Module,
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    last_layer: bool = True,
    every: int = 1,
    statistics: bool = False,
    strict: bool = True,
) -> Clipper:
    """From now on, every `optimizer.step()` ends with w <- clip(w, -kappa s_l, kappa s_l).

    By default s_l = 1/sqrt(fan_in), the bound of the uniform distribution that PyTorch draws the layer from.
    Clipping is the last thing that a step does, whatever else is attached to the optimizer, in whatever order. For
    an optimizer around another one (Lookahead), it is the end of the outer step that counts. Schedule-Free optimizers
    have both of their sequences clipped, so that the weights are in the box in training and in evaluation.

    `kappa` lives in `optimizer.param_groups`: a group that already has one keeps it, checkpoints save it, and
    assigning `group["kappa"]` changes it from the next step on. A loaded checkpoint brings its own kappa if it
    has one. A copied or unpickled optimizer has lost its hooks: call `clip_weights` on it again (a step without
    them warns).

    Args:
        optimizer: any `torch.optim.Optimizer`, on any device, with any number of groups.
        model: the module that owns the parameters; of several, `nn.ModuleList([actor, critic])`; of ensembles
            with stacked parameters, `weightclip.stacked(member, params)`.
        kappa: the clipping range in units of s_l: a positive number, which may be infinite; a mapping of names, glob
            patterns, "output" or "hidden" to numbers, of which the first that matches decides, and which leaves all
            other tensors alone; or `weightclip.graded()`, a range for each unit. With a mapping or `graded`, the kappa
            in `param_groups` is 1 at first and scales all ranges.
        bounds: `"fan_in"`, `"init"`, `"paper"`, a mapping or a function: see `resolve_bounds`.
        include: names or glob patterns; every other tensor is left alone.
        exclude: names or glob patterns of tensors to leave alone.
        last_layer: False leaves the output layers alone.
        every: clip after every n-th step.
        statistics: count the entries that each step cuts, for `clipped_fraction`.
        strict: raise for parameters of the optimizer that `model` does not own, and where there is nothing to clip.
            False leaves such parameters alone and lists them: for one optimizer per parameter, or for a model that
            is split among several optimizers.

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
    swapped: tuple[object, object] = (model, optimizer)
    if isinstance(swapped[0], Optimizer) and isinstance(swapped[1], nn.Module):
        raise TypeError("optimizer, model: the arguments are swapped; call clip_weights(optimizer, model, kappa)")
    outer, optimizer = optimizer, check_optimizer(optimizer, KEY)
    if owns_kappa(type(optimizer)):
        raise ValueError(f"optimizer: {type(optimizer).__name__} has a hyper-parameter kappa of its own")
    number, rule = read_kappa(kappa)
    resolver = _ByLayer(model, bounds, include, exclude, last_layer)
    clipper = Clipper(
        optimizer, resolver, number, rule=rule, every=every, statistics=statistics, strict=strict, outer=outer
    )
    clipper.warn_of_unknown_layers()
    return attach(clipper)


def find_clipper(optimizer: Optimizer) -> Clipper | None:
    """The clipper that is attached to `optimizer`, if there is one."""
    return cast("Clipper | None", find_remedy(optimizer, KEY))


@dataclass(frozen=True)
class _ByLayer:
    """Bounds from the layers of a model."""

    model: nn.Module
    rule: Rule
    include: Patterns | None
    exclude: Patterns | None
    last_layer: bool
    outputs: dict[RangeRule, frozenset[str] | None] = field(default_factory=dict)

    def resolve(self, groups: Sequence[Sequence[Tensor]], rule: RangeRule | None) -> list[Resolved]:
        tensors = [tensor for group in groups for tensor in group]
        resolved = bounds_by_tensor(
            self.model,
            self.rule,
            include=self.include,
            exclude=self.exclude,
            last_layer=self.last_layer,
            wanted={id(tensor) for tensor in tensors},
        )
        resolved = with_ranges(self.model, resolved, rule, self._outputs(rule), {id(t): t for t in tensors})
        foreign = Bound(None, reason=FOREIGN)
        return [resolved.get(id(tensor), Resolved(f"parameter {i}", foreign)) for i, tensor in enumerate(tensors)]

    def _outputs(self, rule: RangeRule | None) -> frozenset[str] | None:
        """The names of the tensors in output layers, found once: it takes a trace of the model."""
        if rule is None:
            return None
        if rule not in self.outputs:
            self.outputs[rule] = find_output_names(self.model, rule)
        return self.outputs[rule]

    def absent(self, tensors: Sequence[Tensor]) -> dict[str, torch.Size]:
        held = {id(tensor) for tensor in tensors}
        return {name: t.shape for name, t in named_tensors(self.model).items() if id(t) not in held}


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
        rule: RangeRule | None = None,
        every: int = 1,
        statistics: bool = False,
        strict: bool = True,
        outer: Optimizer | None = None,
    ) -> None:
        super().__init__(optimizer, kappa=check_number("kappa", kappa, infinite=True))
        for group in optimizer.param_groups:
            check_number("kappa", group.get("kappa", kappa), infinite=True)
        self.every = check_count("every", every)
        self.statistics = check_truth("statistics", statistics)
        self.strict = check_truth("strict", strict)
        self.rule = rule
        self._resolver = resolver
        self._outer = optimizer if outer is None else outer
        check_nested(optimizer, nested_optimizers(self._outer))
        self._second_weights = find_second_weights(optimizer)
        self._steps = 0
        self._measured: dict[Tensor, float] = {}
        self._counts: list[Tensor] | None = None
        self._scratch = Scratch()
        self._undo: list[Callable[[], None]] = []
        self._boxes: list[Box] = []
        self._watched: set[int] = set()
        self._entries = self._resolve()
        if strict and all(entry.bound.reason == FOREIGN for entry in self._entries):
            raise ValueError("optimizer: it holds none of the model's parameters")
        if strict and not self._clipped():
            raise NothingToClipError(f"model: there is nothing to clip; {self._left_alone()}")

    def start(self) -> None:
        """Make the boxes, and clip wherever weights are exchanged."""
        self._make_boxes()
        _clippers.add(self)
        # Optimizers around this one may move the weights after its step; others move them outside of `step`.
        places = [(wrapper, "step", self.enforce) for wrapper in wrappers_that_act(self._outer)]
        places += [(self.optimizer, method, self.enforce) for method in OTHER_STEPS]
        if self._second_weights is not None:
            places += [(self.optimizer, method, self._clip) for method in ("eval", "train")]
        self._undo = [
            call_after(owner, method, partial(self._if_attached, then))
            for owner, method, then in places
            if callable(getattr(owner, method, None))
        ]

    def _if_attached(self, then: Callable[[], None]) -> None:
        if self.is_attached():
            then()

    def warn_of_unknown_layers(self) -> None:
        """Warn if many of the weights are in layers without a bound rule."""
        weights = [e for e in self._entries if e.tensor.dim() >= 2 and e.bound.reason != EMBEDDING]
        unknown = [e for e in weights if e.bound.reason.startswith(UNKNOWN)]
        entries, left = (sum(e.tensor.numel() for e in some) for some in (weights, unknown))
        if left > WARN_ABOVE * entries:
            names = ", ".join(e.name for e in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            warnings.warn(
                f"clip_weights leaves {left / entries:.0%} of the weight entries alone, because their layers have no "
                f"bound rule: {names}; weightclip.register_bound or bounds={{name: number, '*': 'fan_in'}} gives them "
                "a bound, and exclude=[...] leaves them alone without this warning",
                UserWarning,
                stacklevel=3,
            )

    def clip(self) -> None:
        """Clip once, now."""
        if not self.is_attached():
            raise RuntimeError("this clipper was removed from its optimizer")
        self._counts = None
        self._clip()

    @property
    def clipped_fraction(self) -> float:
        """The share of entries that the last step cut, over all clipped tensors.

        NaN if a clipped tensor holds a NaN (which stays NaN). Of a sharded tensor, this process's part counts; of a
        Schedule-Free optimizer, the weights that are trained. Reading it waits for the device.
        """
        cut = self._cut()
        return sum(count for count, _ in cut.values()) / max(1, sum(size for _, size in cut.values()))

    @property
    def clipped_fractions(self) -> dict[str, float]:
        """`clipped_fraction` of each clipped tensor, by name."""
        return {name: count / max(1, size) for name, (count, size) in self._cut().items()}

    def sides(self) -> dict[Tensor, float | Tensor]:
        """How far each clipped tensor may go now: kappa s_l, or a tensor with a number for each of its units."""
        groups = self.optimizer.param_groups
        return {e.tensor: exact_limits(groups[e.group]["kappa"], e.bound, e.tensor) for e in self._clipped()}

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
        """The common case: nothing to count, no second set of weights, and nothing else attached."""
        return None if self.looks_at_gradients() or self._second_weights is not None else self._hook

    def _hook(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling():
            return None  # the global hook, which comes next, clips behind every compiled step
        if len(GLOBAL_HOOKS) > 1:
            go_behind_global_hooks()
        groups, boxes = optimizer.param_groups, self._boxes
        if len(groups) != len(boxes):
            return self._clip()
        for group, box in zip(groups, boxes):  # noqa: B905 (of equal length, and on the hot path)
            if (
                not box.simple
                or group.get("kappa") != box.kappa
                or [p.data_ptr() for p in group["params"] if p.requires_grad] != box.addresses
            ):
                return self._clip()
            for part, low, high in box.plan:
                torch.clamp_(part, low, high)  # type: ignore[arg-type]
            if box.wide:
                box.clip_wide()

    def group_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """The number of steps, the rule of the ranges and the measured bounds, each if there is one."""
        measured = [self._measured.get(p) for p in group["params"]]
        state: dict[str, Any] = {"steps": self._steps} if self.every > 1 else {}
        if self.rule is not None:
            state["rule"] = str(self.rule)
        return {**state, "measured": measured} if any(s is not None for s in measured) else state

    def load_group_state(self, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Resume from what `group_state` saved."""
        self._steps = state.get("steps", self._steps)
        self.rule = _read_rule(state.get("rule"))
        measured = zip(group["params"], state.get("measured", ()), strict=False)
        self._measured.update({p: s for p, s in measured if s is not None})
        self._entries = self._resolve()
        self._boxes, self._counts = [], None

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, the rule of the ranges, and the measured bounds by the parameter's position."""
        measured = {i: self._measured[t] for i, t in enumerate(self.tensors()) if t in self._measured}
        return {
            "steps": self._steps,
            "measured": measured,
            **({} if self.rule is None else {"rule": str(self.rule)}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken, with its rule of the ranges."""
        tensors = self.tensors()
        self._steps = state["steps"]
        self.rule = _read_rule(state.get("rule"))
        self._measured.update({tensors[i]: s for i, s in state["measured"].items()})
        self._follow()

    def remove(self) -> None:
        """Stop clipping, and take kappa out of the optimizer."""
        super().remove()
        while self._undo:
            self._undo.pop()()
        _clippers.discard(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_boxes": [], "_counts": None, "_undo": []}  # made again when needed

    def __repr__(self) -> str:
        optimizer = type(self.optimizer).__name__
        kappas = {f"{group['kappa']:g}": None for group in self.optimizer.param_groups if "kappa" in group}
        if self.rule is not None:
            kappas = {(f"{kappa} x " if kappa != "1" else "") + str(self.rule): None for kappa in kappas}
        counts = f"{len(self._clipped())} of {len({*self.bounds, *self._resolver.absent(self.tensors())})}"
        return f"Clipper({optimizer}, kappa={', '.join(kappas)}: clips {counts} tensors)"

    def __str__(self) -> str:
        rows = [("tensor", "shape", "rule", "s", "kappa", "bound", "outside now", "at the bound")]
        for e in self._clipped():
            kappa, s = self.optimizer.param_groups[e.group].get("kappa", math.nan), e.bound.s or 0
            units = e.bound.range
            if isinstance(units, Units):
                ends = [kappa * end for end in (units.low, units.high)]
                numbers = (f"{s:.4g}", _interval(ends, "g"), _interval([end * s for end in ends], ".4g"))
                now = _now(local(e.tensor), unit_limits(kappa, e.bound, e.tensor))
            else:
                numbers = (f"{s:.4g}", f"{kappa * units:g}", f"{kappa * units * s:.4g}")
                now = _now(local(e.tensor), limit(kappa, e.bound, e.tensor.dtype))
            rows.append((e.name, _shape(e.tensor), e.bound.rule, *numbers, *now))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([repr(self), *lines, self._left_alone()]).rstrip()

    def _left_alone(self) -> str:
        rows = [(e.name, _shape(e.tensor), e.bound.reason) for e in self._entries if e.bound.s is None]
        absent = self._resolver.absent(self.tensors())
        rows += [(name, _shape(shape), "not in this optimizer") for name, shape in absent.items()]
        if not rows:
            return ""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(["left alone:", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)])

    def _clipped(self) -> list[Entry]:
        """The clipped tensors, in the order in which `_clip` goes through them: that of the groups."""
        return [entry for entry in self._entries if entry.bound.s is not None]

    def _resolve(self) -> list[Entry]:
        params = [group["params"] for group in self.optimizer.param_groups]
        groups = [i for i, group in enumerate(params) for _ in group]
        entries: list[Entry] = []
        resolved = self._resolver.resolve(params, self.rule)
        for tensor, (name, bound, layers), group in zip(self.tensors(), resolved, groups, strict=True):
            if bound.s is not None and bound.rule.startswith("init"):  # measured once
                bound = replace(bound, s=self._measured.setdefault(tensor, bound.s))
            entries.append(Entry(name, tensor, bound, group, layers))
        return entries

    def _follow(self) -> None:
        """Resolve the parameters that the optimizer has now."""
        self._entries = self._resolve()
        self._make_boxes()

    def _make_boxes(self) -> None:
        """Make a box for each group; if strict, refuse parameters that the model does not own."""
        groups, entries = self.optimizer.param_groups, self._entries
        foreign = [e for e in entries if e.bound.reason == FOREIGN and groups[e.group].get("kappa") != math.inf]
        if self.strict and foreign:
            listed = "; ".join(f"{e.name}, shape {_shape(e.tensor)}" for e in foreign[:5])
            raise ValueError(
                f"model: it does not own {len(foreign)} of the optimizer's {len(entries)} parameters ({listed}); pass "
                "the module that owns them, or weightclip.stacked(member, params) for the stacked parameters of an "
                "ensemble; strict=False, or kappa=float('inf') in their group, leaves them alone"
            )
        clipped = self._clipped()
        self._boxes = [Box(group, [e for e in clipped if e.group == i]) for i, group in enumerate(groups)]
        self._counts = None
        # When one of these is registered in a module, or another member in one of them, bounds are resolved again.
        self._watched = {id(e.tensor) for e in entries} | {id(layer) for e in entries for layer in e.layers}

    def registered(self, module: nn.Module, member: object) -> None:
        """Resolve again at the next step, if the module or its new member is one of ours."""
        known = id(module) in self._watched or id(member) in self._watched
        if not known and isinstance(member, nn.Module) and any(e.bound.reason == FOREIGN for e in self._entries):
            known = any(id(p) in self._watched for p in member.parameters())
        if known:
            self._boxes, self._counts = [], None

    def _clip(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self._boxes) or any(
            box.addresses_of(group) != box.addresses for group, box in zip(groups, self._boxes, strict=True)
        ):
            self._follow()
        counts: list[Tensor] = []
        for group, box in zip(groups, self._boxes, strict=True):
            if group.get("kappa") != box.kappa:
                box.set_kappa(group)
            if self.statistics:
                counts += box.count(self._scratch)
            if self._second_weights is None:
                box.clip()
            elif box.plan or box.wide:
                for entry, limit in zip(box.entries, box.limits, strict=True):
                    self._second_weights.clip(self.optimizer, group, entry.tensor, limit)
        if self.statistics:
            # A step may clip twice, when there are hooks that act behind ours: both cuts count.
            self._counts = counts if self._counts is None else [*map(torch.add, self._counts, counts)]

    def _cut(self) -> dict[str, tuple[float, int]]:
        """For each clipped tensor: the entries cut by the last step, of how many."""
        if not self.statistics:
            raise RuntimeError("statistics are off: pass statistics=True to clip_weights")
        entries = [box.entries[i] for box in self._boxes if box.counter is not None for i in box.counter.order]
        counts = [count for chunk in self._counts or () for count in chunk.tolist()] or [0.0] * len(entries)
        found = {e.name: (count, local(e.tensor).numel()) for e, count in zip(entries, counts, strict=True)}
        return {e.name: found.get(e.name, (0.0, local(e.tensor).numel())) for e in self._clipped()}


def _interval(ends: Sequence[float], form: str) -> str:
    return "-".join(f"{end:{form}}" for end in ends)


def _read_rule(text: str | None) -> RangeRule | None:
    """The rule in a checkpoint; None where it has a single kappa."""
    return None if text is None else read_kappa(parse_kappa(text))[1]


def _now(tensor: Tensor, bound: float | Tensor) -> tuple[str, str]:
    """How many entries are outside, and how many exactly at the bound."""
    if tensor.is_meta:
        return "-", "-"
    size = tensor.abs()
    outside, nan, at = (int(part.sum()) for part in (size > bound, size.isnan(), size == bound))
    return f"{outside} of {tensor.numel()}" + (f", {nan} NaN" if nan else ""), str(at)


def _shape(shape: Sequence[int] | Tensor) -> str:
    return "x".join(map(str, shape.shape if isinstance(shape, Tensor) else shape)) or "scalar"


_clippers: weakref.WeakSet[Clipper] = weakref.WeakSet()


def _registered(module: nn.Module, name: str, member: object) -> None:
    for clipper in _clippers:
        clipper.registered(module, member)


# Parametrisations and pruning register a layer's parameters anew; asking every layer at each step would cost time.
register_module_parameter_registration_hook(_registered)
register_module_module_registration_hook(_registered)
