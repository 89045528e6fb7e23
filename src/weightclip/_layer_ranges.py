"""Clipping ranges of a module's tensors: where each has its units, and which belong to the output layers."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from weightclip._bound_rules import USE_CLIP_WEIGHTS, Bound
from weightclip._ranges import (
    ByLayer,
    RangeRule,
    Units,
    check_names,
    named_as_output,
    needs_outputs,
    range_of,
)
from weightclip._stacked import unstacked
from weightclip.bounds import Resolved, inputs_first, output_tensors, tensor_names, unwrap

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

ALL_GRADED = (
    "graded: the output layers are not known ({}), so all layers are graded alike; output_layers='head.*' names them"
)


def find_output_names(model: nn.Module, rule: RangeRule | None) -> frozenset[str] | None:
    """The names of the tensors in output layers; None where they cannot be found, or need not be.

    A rule by layer that needs them raises a ValueError; a graded one warns.
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
        reason = str(error).removeprefix("last_layer=False: ").partition("; name them")[0]
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
) -> dict[int, Resolved]:
    """The same bounds, each with the range of its tensor; what a rule by layer does not name is left alone."""
    if rule is None:
        return dict(resolved)
    names = tensor_names(unwrap(model))
    layers = list(dict.fromkeys(some[0].rpartition(".")[0] for some in names.values()))
    found: dict[int, Resolved] = {}
    for key, one in resolved.items():
        if one.bound.s is not None and key in tensors:
            layer, own = one.layers[0], one.name.rpartition(".")[2]
            unit, input_unit = units_of(layer, own, tensors[key])
            is_output = None if output_names is None else any(name in output_names for name in names[key])
            number = layers.index(names[key][0].rpartition(".")[0])
            chosen = range_of(rule, names[key], is_output, unit, input_unit, number)
            if chosen is None:
                one = one._replace(bound=Bound(None, reason="no pattern of kappa matches"))
            else:
                one = one._replace(bound=replace(one.bound, range=chosen))
        found[key] = one
    return found


def with_ranges_by_shape(
    names: Sequence[str], tensors: Sequence[Tensor], bounds: Sequence[Bound], rule: RangeRule | None
) -> list[Bound]:
    """The bounds of tensors whose layers are unknown, with their ranges: units are rows."""
    if rule is None:
        return list(bounds)
    check_names(rule, names)
    if isinstance(rule, ByLayer) and needs_outputs(rule, names):
        raise ValueError(f"kappa: the output layers are not known from shapes; {USE_CLIP_WEIGHTS}")
    if needs_outputs(rule, names):
        warnings.warn(ALL_GRADED.format("only shapes are"), UserWarning, stacklevel=6)
    found = []
    for name, tensor, bound in zip(names, tensors, bounds, strict=True):
        if bound.s is not None:
            inputs = _units(1) if tensor.dim() > 1 else None
            chosen = range_of(rule, [name], named_as_output(rule, [name]), _units(0), inputs)
            no_match = Bound(None, reason="no pattern of kappa matches")
            bound = no_match if chosen is None else replace(bound, range=chosen)
        found.append(bound)
    return found


def units_of(layer: nn.Module, own_name: str, tensor: Tensor) -> tuple[Units, Units | None]:
    """Where a tensor of a layer has its own units, and where it has those of its inputs (None for a bias)."""
    layer, member = unstacked(layer, own_name, tensor)
    lead = tensor.dim() - member.dim()  # the dimensions of an ensemble
    if member.dim() < 2:
        period = None
        if isinstance(layer, (nn.RNNBase, nn.RNNCellBase)):
            period = layer.hidden_size
        elif isinstance(layer, _TRANSPOSED) and layer.groups > 1:
            period = layer.out_channels // layer.groups
        return _units(lead, period), None
    if isinstance(layer, _TRANSPOSED) or inputs_first(layer):
        return _units(lead + 1), _units(lead)
    if isinstance(layer, (nn.RNNBase, nn.RNNCellBase)) and not own_name.startswith("weight_hr"):
        return _units(lead, layer.hidden_size), _units(lead + 1)
    return _units(lead), _units(lead + 1)


def _units(dim: int, period: int | None = None) -> Units:
    return Units(1.0, 1.0, dim, period)
