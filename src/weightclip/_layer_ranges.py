"""Bounds and clipping ranges of a model's tensors: their units, and which belong to output layers."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from weightclip._bound_rules import FROZEN, USE_CLIP_WEIGHTS, Bound
from weightclip._ensembles import unstacked
from weightclip._ranges import (
    ByLayer,
    RangeRule,
    Units,
    check_effect,
    check_names,
    named_as_output,
    names_tensor,
    needs_outputs,
    range_of,
)
from weightclip._validation import Patterns
from weightclip.bounds import (
    Resolved,
    Rule,
    bounds_by_tensor,
    inputs_first,
    layer_rule,
    named_tensors,
    output_tensors,
    tensor_names,
    unwrap,
)

FOREIGN = "not a parameter of the given model"
BARE = "bare parameter, which has no role and no units; a key of kappa with its name clips it"
NO_MATCH = "no pattern of kappa matches"
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

ALL_GRADED = (
    "graded: the output layers are unknown ({}), so all layers are graded the same way; name them, for example "
    "output_layers='head.*'"
)


def find_output_names(model: nn.Module, rule: RangeRule | None) -> frozenset[str] | None:
    """The names of the tensors in output layers; None if they are not needed or cannot be found.

    If they cannot be found, a rule by layer that needs them raises a ValueError, and a graded rule warns.
    """
    names = tensor_names(unwrap(model))
    every = [name for some in names.values() for name in some]
    check_names(rule, every)
    if not needs_outputs(rule, every):
        named = frozenset(name for some in names.values() if named_as_output(rule, some) for name in some)
        return named if named else None
    try:
        found = output_tensors(unwrap(model))
    except ValueError as error:
        reason = str(error).removeprefix("clip_output_layers=False: ").partition("; name them")[0]
        if isinstance(rule, ByLayer):
            layers = ", ".join(every[:4])
            raise ValueError(f"kappa: {reason}; name layers instead of 'output' and 'hidden': {layers}, ...") from error
        warnings.warn(ALL_GRADED.format(reason), UserWarning, stacklevel=4)
        return None
    return frozenset(name for key, some in names.items() if key in found for name in some)


def with_ranges(
    model: nn.Module,
    resolved: Mapping[int, Resolved],
    rule: RangeRule | None,
    output_names: Collection[str] | None,
    tensors: Mapping[int, Tensor],
    check: bool = True,
) -> dict[int, Resolved]:
    """Add to each bound the range of its tensor; tensors that a rule by layer does not name are skipped.

    With `check`, a pattern without effect raises a ValueError. Frozen tensors and tensors of other optimizers, which
    are not in `resolved`, count as bounded.
    """
    if rule is None:
        return dict(resolved)
    names = tensor_names(unwrap(model))
    if check:
        every = [(resolved.get(key), some) for key, some in names.items()]
        reasons = ["" if one is None or one.bound.reason == FROZEN else one.bound.reason for one, _ in every]
        roles = [_is_output(one, some, output_names) for one, some in every]
        check_effect(rule, zip((some for _, some in every), roles, reasons, strict=True))
    matrices = (name for name, tensor in named_tensors(model).items() if tensor.dim() > 1)
    numbers = {layer: i for i, layer in enumerate(dict.fromkeys(map(_layer_name, matrices)))}
    found: dict[int, Resolved] = {}
    for key, one in resolved.items():
        if one.bound.s is not None and key in tensors:
            layer, own = one.layers[0], one.name.rpartition(".")[2]
            unit, input_unit = units_of(layer, own, tensors[key])
            number = numbers.get(_layer_name(names[key][0]), 0)
            chosen = range_of(rule, names[key], _is_output(one, names[key], output_names), unit, input_unit, number)
            if _is_bare(one) and not names_tensor(rule, names[key]):
                one = one._replace(bound=Bound(None, reason=BARE))
            elif chosen is None:
                one = one._replace(bound=Bound(None, reason=NO_MATCH))
            else:
                one = one._replace(bound=replace(one.bound, range=chosen))
        found[key] = one
    return found


def _is_bare(resolved: Resolved) -> bool:
    """Whether a tensor is no weight of a layer, such as the log-std that a policy holds itself.

    Of the named rules, only "paper" bounds such tensors.
    """
    owner = resolved.layers[0]
    return resolved.bound.rule == "paper" and layer_rule(owner) is None and any(True for _ in owner.children())


def _is_output(resolved: Resolved | None, names: Sequence[str], output_names: Collection[str] | None) -> bool | None:
    """Whether a tensor belongs to an output layer; None if unknown, and for a bare parameter."""
    if output_names is None or (resolved is not None and _is_bare(resolved)):
        return None
    return any(name in output_names for name in names)


def with_ranges_by_shape(
    names: Sequence[str], tensors: Sequence[Tensor], bounds: Sequence[Bound], rule: RangeRule | None
) -> list[Bound]:
    """Add ranges to the bounds of tensors whose layers are unknown; the rows are the units.

    Layers are numbered by the names of their tensors, such as "0.weight"; without such names, each weight starts a
    layer (a recurrent layer counts once per weight).
    """
    if rule is None:
        return list(bounds)
    check_names(rule, names)
    check_effect(rule, (([name], None, bound.reason) for name, bound in zip(names, bounds, strict=True)))
    if isinstance(rule, ByLayer) and needs_outputs(rule, names):
        raise ValueError(f"kappa: shapes do not identify the output layers; {USE_CLIP_WEIGHTS}")
    found = []
    layers: dict[str, int] = {}
    layer = 0  # a tensor without a name belongs to the layer of the weight before it
    for name, tensor, bound in zip(names, tensors, bounds, strict=True):
        if tensor.dim() > 1:
            layer = layers.setdefault(_layer_name(name) or name, len(layers))
        if bound.s is not None:
            inputs = _units(1) if tensor.dim() > 1 else None
            chosen = range_of(rule, [name], named_as_output(rule, [name]), _units(0), inputs, layer)
            bound = Bound(None, reason=NO_MATCH) if chosen is None else replace(bound, range=chosen)
        found.append(bound)
    return found


def _layer_name(name: str) -> str:
    return name.rpartition(".")[0]


def units_of(layer: nn.Module, own_name: str, tensor: Tensor) -> tuple[Units, Units | None]:
    """The dimension of a tensor that indexes its units, and the one that indexes its inputs (None for a bias)."""
    layer, member = unstacked(layer, own_name, tensor)
    lead = tensor.dim() - member.dim()  # ensemble dimensions
    if member.dim() < 2:
        period = None
        if isinstance(layer, (nn.RNNBase, nn.RNNCellBase)):
            period = layer.hidden_size
        elif isinstance(layer, _TRANSPOSED) and layer.groups > 1:
            period = layer.out_channels // layer.groups
        return _units(lead, period), None
    if isinstance(layer, _TRANSPOSED) or inputs_first(layer):
        return _units(lead + 1), _units(lead)
    if isinstance(layer, (nn.RNNBase, nn.RNNCellBase)):  # weight_hr has fewer rows than units
        return _units(lead, layer.hidden_size), _units(lead + 1)
    return _units(lead), _units(lead + 1)


def _units(dim: int, period: int | None = None) -> Units:
    return Units(1.0, 1.0, dim, period)


class Resolver(Protocol):
    """Resolves the bounds of an optimizer's tensors."""

    def resolve(self, groups: Sequence[Sequence[Tensor]], rule: RangeRule | None) -> list[Resolved]:
        """The name, bound and layers of each tensor, in the order of the groups."""

    def absent(self, tensors: Sequence[Tensor]) -> dict[str, torch.Size]:
        """The names and shapes of the model's parameters that are not among `tensors`."""


@dataclass(frozen=True)
class ModelBounds:
    """Resolves the bounds and ranges of an optimizer's tensors from the layers of a model."""

    model: nn.Module
    rule: Rule
    include: Patterns | None
    exclude: Patterns | None
    clip_output_layers: bool
    outputs: dict[RangeRule, frozenset[str] | None] = field(default_factory=dict)

    def resolve(self, groups: Sequence[Sequence[Tensor]], rule: RangeRule | None) -> list[Resolved]:
        """The name, bound and layers of each tensor, in the order of the groups."""
        tensors = [tensor for group in groups for tensor in group]
        resolved = bounds_by_tensor(
            self.model,
            self.rule,
            include=self.include,
            exclude=self.exclude,
            clip_output_layers=self.clip_output_layers,
            wanted={id(tensor) for tensor in tensors},
        )
        first = rule not in self.outputs
        outputs = self._outputs(rule)
        resolved = with_ranges(self.model, resolved, rule, outputs, {id(t): t for t in tensors}, check=first)
        foreign = Bound(None, reason=FOREIGN)
        return [resolved.get(id(tensor), Resolved(f"parameter {i}", foreign)) for i, tensor in enumerate(tensors)]

    def _outputs(self, rule: RangeRule | None) -> frozenset[str] | None:
        """The names of the tensors in output layers, cached because finding them traces the model."""
        if rule is None:
            return None
        if rule not in self.outputs:
            self.outputs[rule] = find_output_names(self.model, rule)
        return self.outputs[rule]

    def absent(self, tensors: Sequence[Tensor]) -> dict[str, torch.Size]:
        """The names and shapes of the model's parameters that are not among `tensors`."""
        held = {id(tensor) for tensor in tensors}
        return {name: t.shape for name, t in named_tensors(self.model).items() if id(t) not in held}
