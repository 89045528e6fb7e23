"""Weight clipping on top of any optimizer: w <- clip(w, -kappa s_l, kappa s_l) after each step."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from weightclip._bound_rules import Bound
from weightclip._box import Box, Entry, Scratch, exact_limits, local
from weightclip._clipped_table import clipped_table, shape_text, skipped_table, unknown_layers_warning
from weightclip._hooks import (
    CHECKPOINT_KEY,
    Regularizer,
    check_optimizer,
    find_regularizer,
    move_behind_global_hooks,
    owns_kappa,
)
from weightclip._layer_ranges import FOREIGN, ModelBounds, Resolver
from weightclip._ranges import Kappa, RangeRule, read_kappa, rule_from_state
from weightclip._renamed import accept_old_arguments, old_attribute
from weightclip._torch_private import global_step_post_hooks
from weightclip._validation import Patterns, check_count, check_number, check_truth
from weightclip._weight_averaging import check_nested, find_second_weights
from weightclip._wrappers import acting_wrappers, call_after, nested_optimizers
from weightclip.bounds import Rule

KEY = "clip_weights"
OTHER_STEPS = ("second_step", "fused_backward")
"""Methods that update the weights instead of `step`: those of SAM and LOMO."""

SCALES_RULE = "kappa_scales_rule"
"""Key in the groups whose kappa scales a range rule; the kappa of a group without it is a single kappa.

A single kappa has no mark: `torch.distributed.checkpoint` loads only checkpoints with all keys of the optimizer.
"""


class NothingToClipError(ValueError):
    """No parameter of the optimizer has a bound."""


@accept_old_arguments
def clip_weights(
    optimizer: Optimizer,
    model: nn.Module,
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    clip_output_layers: bool = True,
    every: int = 1,
    track_clipped: bool = False,
    strict: bool = True,
) -> Clipper:
    """Clip the weights after every `optimizer.step()`: w <- clip(w, -kappa s_l, kappa s_l).

    By default s_l = 1/sqrt(fan_in), the bound of the uniform distribution from which PyTorch initializes the layer.
    Clipping is the last operation of a step, regardless of other hooks and of the order of attachment. For an
    optimizer around another one (Lookahead), it is the last operation of the outer step. For Schedule-Free optimizers,
    both sequences are clipped, so the weights are in the box in training and in evaluation.

    `kappa` is stored in `optimizer.param_groups`: a group that already has one keeps it, checkpoints save it, and
    assigning `group["kappa"]` changes it from the next step. Like a step size, it is restored by loading a checkpoint,
    a number or a rule with its scale; if a rule is replaced or restored in this way, a warning names both.
    Copied and unpickled optimizers lose their hooks: call `clip_weights` on them again (a step without hooks warns).

    Args:
        optimizer: any `torch.optim.Optimizer`, on any device, with any number of groups.
        model: the module that owns the parameters; for several networks, `nn.ModuleList([actor, critic])`, each with
            output layers of its own (for parts of one network, name the output layers); for ensembles with stacked
            parameters, `weightclip.stacked(member, params)`.
        kappa: the clipping range in units of s_l: a positive number, which may be infinite; a mapping of names, glob
            patterns, "output" or "hidden" to numbers, whose first match applies and which skips all other tensors; or
            `weightclip.graded()`, a range per unit. With a mapping or `graded`, the kappa in `param_groups` is 1
            initially and scales all ranges; a group that already has a kappa keeps it as its single kappa.
        bounds: `"fan_in"`, `"init"`, `"paper"`, a mapping or a function: see `resolve_bounds`.
        include: names or glob patterns; every other tensor is skipped.
        exclude: names or glob patterns of tensors to skip.
        clip_output_layers: False skips the output layers.
        every: clip after every n-th step.
        track_clipped: count the entries that each step clips, for `clipped_fraction`.
        strict: raise if `model` does not own all parameters of the optimizer, or if there is nothing to clip. False
            skips and lists such parameters: for one optimizer per parameter, or a model split among optimizers.

    Returns:
        The attached `Clipper`; printing it shows the bound of every tensor, and the tensors it skips with the reason.

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
        raise ValueError(f"optimizer: {type(optimizer).__name__} already has a hyper-parameter kappa")
    number, rule = read_kappa(kappa)
    resolver = ModelBounds(model, bounds, include, exclude, clip_output_layers)
    clipper = Clipper(
        optimizer, resolver, number, rule=rule, every=every, track_clipped=track_clipped, strict=strict, outer=outer
    )
    if warning := unknown_layers_warning(clipper._entries):
        warnings.warn(warning, UserWarning, stacklevel=3)
    return clipper.attach()


def find_clipper(optimizer: Optimizer) -> Clipper | None:
    """The clipper attached to `optimizer`, or None."""
    return cast("Clipper | None", find_regularizer(optimizer, KEY))


class Clipper(Regularizer):
    """Clips an optimizer's weights after its steps. Returned by `clip_weights`."""

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
        track_clipped: bool = False,
        strict: bool = True,
        outer: Optimizer | None = None,
    ) -> None:
        super().__init__(optimizer, kappa=check_number("kappa", kappa, infinite=True))
        for group in optimizer.param_groups:
            check_number("kappa", group.get("kappa", kappa), infinite=True)
        self.every = check_count("every", every)
        self.track_clipped = check_truth("track_clipped", track_clipped)
        self.strict = check_truth("strict", strict)
        self.rule = rule
        self._saved_rule: RangeRule | None = None
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
        for group in optimizer.param_groups:
            if "kappa" in group and "rule" in _loaded_state(group):
                self._saved_rule = rule_from_state(_loaded_state(group)["rule"])
        replaced = self._choose_rule()
        self._entries = self._resolve()
        if strict and all(entry.bound.reason == FOREIGN for entry in self._entries):
            raise ValueError("optimizer: got none of the model's parameters, expected at least one")
        if strict and not self._clipped():
            raise NothingToClipError(f"model: there is nothing to clip; {self._skipped()}")
        if replaced:
            warnings.warn(f"kappa: the param_groups have {replaced}", UserWarning, stacklevel=4)

    def on_attach(self) -> None:
        """Make the boxes, and clip wherever an optimizer moves or swaps weights outside of `step`."""
        self._saved_rule = None
        self._make_boxes()
        _clippers.add(self)
        # Wrappers may move the weights after the inner step.
        places = [(wrapper, "step", self.enforce) for wrapper in acting_wrappers(self._outer)]
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

    def write_settings(self, group: dict[str, Any]) -> None:
        """Write kappa to a group without one, and whether it scales the rule."""
        scales = self._scales_rule(group)
        if "kappa" not in group or (scales and self.rule is None):
            group["kappa"] = self.settings["kappa"]
        group.pop(SCALES_RULE, None)
        if scales and self.rule is not None:
            group[SCALES_RULE] = True

    def kept_settings(self, group: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        """The kappa of `group` if the checkpoint has none, and whether it scales the rule."""
        return {} if "kappa" in saved else {key: group[key] for key in ("kappa", SCALES_RULE) if key in group}

    def on_load(self) -> None:
        """Continue with the kappa of the checkpoint: a number, or a rule and its scale."""
        replaced = self._choose_rule()
        self.optimizer.defaults.pop(SCALES_RULE, None)
        self.optimizer.defaults.update(self.settings)
        for group in self.optimizer.param_groups:
            self.write_settings(group)
        self._follow()
        if replaced:
            warnings.warn(f"kappa: the checkpoint has {replaced}", UserWarning, stacklevel=6)

    def _scales_rule(self, group: dict[str, Any]) -> bool:
        """Whether the kappa of a group scales a rule: one that it has, or the one that it will get."""
        if "kappa" not in group:
            return self.rule is not None
        return bool(group.get(SCALES_RULE)) or "rule" in _loaded_state(group)

    def _choose_rule(self) -> str:
        """Prefer the kappa that the groups have to the argument; return a warning if a rule is replaced, or "".

        The rule that the kappa of a group scales is that of its checkpoint. The groups of a copied optimizer do not
        have it, and scale the rule of the argument.
        """
        groups, given, saved = self.optimizer.param_groups, self.rule, self._saved_rule
        self._saved_rule = None
        owned = [group for group in groups if "kappa" in group]
        scales = any(self._scales_rule(group) for group in owned)
        number = self.settings["kappa"]
        argument = f"kappa={number:g}" if given is None else f"kappa={given}"
        if scales:
            self.rule = saved or given
        elif given is not None and len(owned) == len(groups) > 0:
            self.rule, number = None, owned[0]["kappa"]
        self.settings = {"kappa": number} if self.rule is None else {"kappa": 1.0, SCALES_RULE: True}
        if self.rule != given:
            return (
                f"{self._kappa_text()}, which replaces {argument}; to use {argument}, call remove() on the clipper, "
                "then clip_weights again"
            )
        return f"the scale of a rule, but not the rule; {argument} is used" if scales and given is None else ""

    def _kappa_text(self) -> str:
        """The different kappas of the groups: numbers, and the rule with its scale."""
        texts: dict[str, None] = {}
        for group in self.optimizer.param_groups:
            if "kappa" in group:
                number = f"{group['kappa']:g}"
                scaled = str(self.rule) if number == "1" else f"{number} x {self.rule}"
                texts[scaled if self._scales_rule(group) else number] = None
        return f"kappa={', '.join(texts)}"

    def clip(self) -> None:
        """Clip the weights now."""
        if not self.is_attached():
            raise RuntimeError("this clipper was removed from its optimizer; call clip_weights again")
        self._counts = None
        self._clip()

    @property
    def clipped_fraction(self) -> float:
        """Fraction of entries that the last step clipped, over all clipped tensors; synchronizes with the device.

        NaN if a clipped tensor contains NaN (which stays NaN). Sharded tensors count their local shard, Schedule-Free
        optimizers the training weights.
        """
        clipped = self._clipped_counts()
        return sum(count for count, _ in clipped.values()) / max(1, sum(size for _, size in clipped.values()))

    @property
    def clipped_fractions(self) -> dict[str, float]:
        """`clipped_fraction` of each clipped tensor by name."""
        return {name: count / max(1, size) for name, (count, size) in self._clipped_counts().items()}

    statistics = old_attribute("Clipper", "statistics")

    def sides(self) -> dict[Tensor, float | Tensor]:
        """Half-width of the box of each clipped tensor: kappa s_l, or a tensor with one number per unit."""
        groups = self.optimizer.param_groups
        return {e.tensor: exact_limits(groups[e.group]["kappa"], e.bound, e.tensor) for e in self._clipped()}

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bound of each tensor of the optimizer by name."""
        return {entry.name: entry.bound for entry in self._entries}

    def needs_gradients(self) -> bool:
        """Whether steps are counted."""
        return self.every > 1 or self.track_clipped

    def after_step(self) -> None:
        """Count the step."""
        if self.every > 1 and self.step_skipped():
            return
        self._steps += 1
        self._counts = None

    def enforce(self) -> None:
        """Clip, if this is an n-th step."""
        if self.every == 1 or self._steps % self.every == 0:
            self._clip()

    def direct_hook(self) -> Callable[[Optimizer, Any, Any], None] | None:
        """The common case: no counting and no second set of weights."""
        return None if self.needs_gradients() or self._second_weights is not None else self._hook

    def _hook(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling():
            return None  # the global hook, which runs next, clips after compiled steps
        if len(global_step_post_hooks) > 1:
            move_behind_global_hooks()
        groups, boxes = optimizer.param_groups, self._boxes
        if len(groups) != len(boxes):
            return self._clip()
        for group, box in zip(groups, boxes):  # noqa: B905 (equal lengths, hot path)
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
        """The number of steps, the range rule and the measured bounds, where used."""
        measured = [self._measured.get(p) for p in group["params"]]
        state: dict[str, Any] = {"steps": self._steps} if self.every > 1 else {}
        if self.rule is not None and self._scales_rule(group):
            state["rule"] = self.rule.state()
        return {**state, "measured": measured} if any(s is not None for s in measured) else state

    def load_group_state(self, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Restore the result of `group_state`."""
        self._steps = state.get("steps", self._steps)
        if "rule" in state and "kappa" in group:
            group[SCALES_RULE] = True
            self._saved_rule = rule_from_state(state["rule"])
        measured = zip(group["params"], state.get("measured", ()), strict=False)
        self._measured.update({p: s for p, s in measured if s is not None})
        self._entries = self._resolve()
        self._boxes, self._counts = [], None

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, the range rule, and the measured bounds by parameter position."""
        measured = {i: self._measured[t] for i, t in enumerate(self.parameters()) if t in self._measured}
        return {"steps": self._steps, "measured": measured} | ({} if self.rule is None else {"rule": self.rule.state()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; the range rule is used after loading the groups, which have its scale."""
        tensors = self.parameters()
        self._steps = state["steps"]
        self._saved_rule = rule_from_state(state.get("rule"))
        self._measured.update({tensors[i]: s for i, s in state["measured"].items()})
        self._follow()

    def remove(self) -> None:
        """Stop clipping and delete kappa from the optimizer's groups."""
        if self.is_attached():
            for values in (self.optimizer.defaults, *self.optimizer.param_groups):
                values.pop(SCALES_RULE, None)
        super().remove()
        while self._undo:
            self._undo.pop()()
        _clippers.discard(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_boxes": [], "_counts": None, "_undo": []}  # rebuilt on demand

    def __repr__(self) -> str:
        optimizer = type(self.optimizer).__name__
        counts = f"{len(self._clipped())} of {len({*self.bounds, *self._resolver.absent(self.parameters())})}"
        return f"Clipper({optimizer}, {self._kappa_text()}: clips {counts} tensors)"

    def __str__(self) -> str:
        table = clipped_table(self._clipped(), self.optimizer.param_groups)
        return f"{self!r}\n{table}\n{self._skipped()}".rstrip()

    def _skipped(self) -> str:
        return skipped_table(self._entries, self._resolver.absent(self.parameters()))

    def _clipped(self) -> list[Entry]:
        """The clipped tensors in the order of the groups."""
        return [entry for entry in self._entries if entry.bound.s is not None]

    def _resolve(self) -> list[Entry]:
        params = [group["params"] for group in self.optimizer.param_groups]
        groups = [i for i, group in enumerate(params) for _ in group]
        entries: list[Entry] = []
        resolved = self._resolver.resolve(params, self.rule)
        single = [not self._scales_rule(group) for group in self.optimizer.param_groups]
        if self.rule is not None and any(single):
            plain = self._resolver.resolve(params, None)
            resolved = [plain[i] if single[group] else resolved[i] for i, group in enumerate(groups)]
        for tensor, (name, bound, layers), group in zip(self.parameters(), resolved, groups, strict=True):
            if bound.s is not None and bound.rule.startswith("init"):  # measured once, when attaching
                bound = replace(bound, s=self._measured.setdefault(tensor, bound.s))
            entries.append(Entry(name, tensor, bound, group, layers))
        return entries

    def _follow(self) -> None:
        """Resolve the bounds of the optimizer's current parameters."""
        self._entries = self._resolve()
        self._make_boxes()

    def _make_boxes(self) -> None:
        """Make a box per group; if strict, raise for parameters that the model does not own."""
        groups, entries = self.optimizer.param_groups, self._entries
        foreign = [e for e in entries if e.bound.reason == FOREIGN and groups[e.group].get("kappa") != math.inf]
        if self.strict and foreign:
            listed = "; ".join(f"{e.name}, shape {shape_text(e.tensor.shape)}" for e in foreign[:5])
            raise ValueError(
                f"model: it does not own {len(foreign)} of the optimizer's {len(entries)} parameters ({listed}); pass "
                "the module that owns them, or weightclip.stacked(member, params) for the stacked parameters of an "
                "ensemble; strict=False, or kappa=float('inf') in their group, skips them"
            )
        clipped = self._clipped()
        self._boxes = [Box(group, [e for e in clipped if e.group == i]) for i, group in enumerate(groups)]
        self._counts = None
        # Bounds are resolved again if one of these is registered in a module, or a new member in one of them.
        self._watched = {id(e.tensor) for e in entries} | {id(layer) for e in entries for layer in e.layers}

    def registered(self, module: nn.Module, member: object) -> None:
        """Resolve the bounds again at the next step, if the module or its new member belongs to a clipped model."""
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
            if self.track_clipped:
                counts += box.count(self._scratch)
            if self._second_weights is None:
                box.clip()
            elif box.plan or box.wide:
                for entry, limit in zip(box.entries, box.limits, strict=True):
                    self._second_weights.clip(self.optimizer, group, entry.tensor, limit)
        if self.track_clipped:
            # A step clips twice if other hooks run after ours; both counts add up.
            self._counts = counts if self._counts is None else [*map(torch.add, self._counts, counts)]

    def _clipped_counts(self) -> dict[str, tuple[float, int]]:
        """Clipped tensor -> number of entries that the last step clipped, number of entries."""
        if not self.track_clipped:
            raise RuntimeError("clipped entries are not counted: pass track_clipped=True to clip_weights")
        entries = [box.entries[i] for box in self._boxes if box.counter is not None for i in box.counter.order]
        counts = [count for chunk in self._counts or () for count in chunk.tolist()] or [0.0] * len(entries)
        found = {e.name: (count, local(e.tensor).numel()) for e, count in zip(entries, counts, strict=True)}
        return {e.name: found.get(e.name, (0.0, local(e.tensor).numel())) for e in self._clipped()}


def _loaded_state(group: dict[str, Any]) -> dict[str, Any]:
    """The state of a clipper that a plain optimizer loaded with this group."""
    state: dict[str, Any] = group.get(CHECKPOINT_KEY, {}).get(KEY, {})
    return state


_clippers: weakref.WeakSet[Clipper] = weakref.WeakSet()


def _registered(module: nn.Module, name: str, member: object) -> None:
    for clipper in _clippers:
        clipper.registered(module, member)


# Parametrizations and pruning register a layer's parameters again; checking every layer at each step would cost time.
register_module_parameter_registration_hook(_registered)
register_module_module_registration_hook(_registered)
