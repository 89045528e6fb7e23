"""The bounds s_l: which tensors of a module are clipped, and to which range.

All functions are pure functions of a module. Only the rule `init` reads the values of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from weightclip._bound_rules import (
    EMBEDDING,
    FROZEN,
    NO_INPUTS,
    NORMALIZATION,
    SLOPE,
    UNKNOWN,
    Bound,
    check_included,
    make_bound,
)
from weightclip._ensembles import Stacked, unstacked
from weightclip._output_layers import find_output_layers
from weightclip._renamed import accept_old_arguments
from weightclip._torch_private import COMPILED_PREFIX, compiled_module, forward_pre_hooks, own_parameters
from weightclip._validation import Patterns, check_pattern, name_filter

LayerRule = Callable[[Any, str], "float | str"]
"""(layer, name of one of its tensors) -> the bound s_l, or the reason to skip the tensor."""

Rule = str | Mapping[str, "float | str"] | Callable[[str, Tensor, nn.Module], "float | str | None"]
"""The name of a rule, a mapping of names or glob patterns to numbers or rule names, or a function
`(name, tensor, owner) -> bound`, which returns a reason or None to skip the tensor."""

RULES = ("fan_in", "init", "paper")

_M = TypeVar("_M", bound=nn.Module)


def fan_in_bound(weight: Tensor) -> float:
    """1/sqrt(fan_in) for a weight [out, in, *kernel]: the bound of PyTorch's default uniform initialization.

    Examples:
        >>> import torch
        >>> fan_in_bound(torch.empty(300, 784))
        0.03571428571428571
    """
    return 1 / math.sqrt(math.prod(weight.shape[1:]))


def xavier_bound(weight: Tensor) -> float:
    """sqrt(6 / (fan_in + fan_out)) for a weight [out, in]: the bound of Xavier's uniform initialization."""
    return math.sqrt(6 / (weight.shape[0] + weight.shape[1]))


def _fan_in_rule(layer: Any, name: str) -> float | str:
    if name not in ("weight", "bias"):
        return f"not the weight or the bias of {type(layer).__name__}"
    return fan_in_bound(layer.weight) if math.prod(layer.weight.shape[1:]) else NO_INPUTS


def _attention_rule(layer: nn.MultiheadAttention, name: str) -> float | str:
    if name in ("bias_k", "bias_v"):
        return "initialized from a normal distribution, which has no bound"
    if name != "in_proj_bias":
        return xavier_bound(getattr(layer, name))
    # Initialized to zero. If the bounds of the three projections differ, the smallest applies to all.
    weights = (layer.in_proj_weight, layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    return min(xavier_bound(weight) for weight in weights if weight is not None)


def _skip(reason: str) -> LayerRule:
    return lambda layer, name: reason


_layer_rules: dict[type[nn.Module], LayerRule] = {
    nn.Linear: _fan_in_rule,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _fan_in_rule),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _fan_in_rule),
    nn.Bilinear: lambda layer, name: 1 / math.sqrt(layer.in1_features),
    nn.RNNBase: lambda layer, name: 1 / math.sqrt(layer.hidden_size),
    nn.RNNCellBase: lambda layer, name: 1 / math.sqrt(layer.hidden_size),
    nn.MultiheadAttention: _attention_rule,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _skip(NORMALIZATION)),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _skip(NORMALIZATION)),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), _skip(NORMALIZATION)),
    **dict.fromkeys((nn.Embedding, nn.EmbeddingBag), _skip(EMBEDDING)),
    nn.PReLU: _skip(SLOPE),
}

# Layers of other libraries by package and class name, so that these are not imported.
_foreign_layer_rules: dict[tuple[str, str], LayerRule] = {
    ("transformers", "Conv1D"): lambda layer, name: 1 / math.sqrt(layer.weight.shape[0]),  # weight is [in, out]
}
_INPUTS_FIRST = {("transformers", "Conv1D")}


def _foreign_types(layer: nn.Module) -> list[tuple[str, str]]:
    return [(cls.__module__.partition(".")[0], cls.__name__) for cls in type(layer).__mro__]


def register_bound(layer_type: type[_M], rule: Callable[[_M, str], float | str]) -> None:
    """Register the bounds of a layer type and its subclasses: `rule(layer, name)` returns s_l or a reason to skip.

    `name` is the tensor's name within the layer. A string skips the tensor and states the reason.

    Examples:
        >>> import torch
        >>> class Noisy(nn.Module):
        ...     def __init__(self, n, m):
        ...         super().__init__()
        ...         self.mu, self.sigma = nn.Parameter(torch.zeros(m, n)), nn.Parameter(torch.ones(m, n))
        >>> register_bound(Noisy, lambda layer, name: fan_in_bound(layer.mu) if name == "mu" else "a noise scale")
        >>> resolve_bounds(Noisy(4, 2))
        {'mu': Bound(s=0.5, rule='fan_in', reason=''), 'sigma': Bound(s=None, rule='', reason='a noise scale')}
    """
    if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
        raise TypeError(f"layer_type: got {layer_type!r}, expected a subclass of torch.nn.Module")
    if not callable(rule):
        raise TypeError(f"rule: got {rule!r}, expected a function (layer, name) -> bound or reason")
    _layer_rules[layer_type] = rule


def layer_rule(layer: nn.Module) -> LayerRule | None:
    """The rule of the layer's type or of its nearest base class; None for an unknown layer."""
    known = next((_layer_rules[cls] for cls in type(layer).__mro__ if cls in _layer_rules), None)
    if known is not None:
        return known
    return next((_foreign_layer_rules[t] for t in _foreign_types(layer) if t in _foreign_layer_rules), None)


def inputs_first(layer: nn.Module) -> bool:
    """Whether the layer's weight is [in, out] instead of [out, in]."""
    return not _INPUTS_FIRST.isdisjoint(_foreign_types(layer))


def _fan_in_by_shape(layer: nn.Module, weight: Tensor) -> float:
    """1/sqrt(fan_in) of a weight of `layer`, [out, in, *kernel] or [in, out]."""
    if inputs_first(layer):
        return 1 / math.sqrt(weight.shape[0])
    return fan_in_bound(weight)


@accept_old_arguments
def resolve_bounds(
    model: nn.Module,
    rule: Rule = "fan_in",
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    clip_output_layers: bool = True,
) -> dict[str, Bound]:
    """The bound of every tensor of `model` by name; skipped tensors have `s` None and a reason.

    Rules:
        `fan_in`: the bound of the uniform distribution from which PyTorch initializes the layer.
        `init`: the largest absolute value in the tensor now; for a tensor of zeros, its fan_in bound.
        `paper`: from shapes and order alone, as in the authors' code: 1/sqrt(fan_in) for every tensor of two or
            more dimensions, and the bound of the last such tensor for every other tensor after it.
        a mapping: the first matching name or glob pattern applies, with a number or one of the names above; tensors
            without a match are skipped.
        a function: `(name, tensor, owner) -> bound`, or a reason (or None) to skip the tensor.

    Args:
        model: any module, also wrapped by DistributedDataParallel or torch.compile.
        rule: see above.
        include: names or glob patterns; every other tensor is skipped.
        exclude: names or glob patterns of tensors to skip.
        clip_output_layers: False skips every output layer. Output layers are found by tracing `model.forward`; if that
            fails, a ValueError asks for their names in `exclude`.

    Examples:
        >>> bounds = resolve_bounds(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)))
        >>> bounds["0.weight"]
        Bound(s=0.5, rule='fan_in', reason='')
        >>> bounds["1.bias"].reason
        'normalization layer: its scale is initialized to 1, outside a box around 0'
    """
    found = bounds_by_tensor(model, rule, include=include, exclude=exclude, clip_output_layers=clip_output_layers)
    return {resolved.name: resolved.bound for resolved in found.values()}


class Resolved(NamedTuple):
    """The name of a tensor, its bound and the layers that own it."""

    name: str
    bound: Bound
    layers: tuple[nn.Module, ...] = ()


def bounds_by_tensor(
    model: nn.Module,
    rule: Rule = "fan_in",
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    clip_output_layers: bool = True,
    wanted: Collection[int] | None = None,
) -> dict[int, Resolved]:
    """`resolve_bounds` by id(tensor), restricted to the ids in `wanted` (default: all)."""
    model = unwrap(model)
    owners = _owners(model)
    names = [name for places in owners for name, _, _ in places]
    skip_reason = name_filter(include, exclude, names)
    decide = _decider(rule, owners, names)
    outputs = set() if clip_output_layers else output_tensors(model)

    resolved: dict[int, Resolved] = {}
    conflicts: list[list[tuple[str, Bound]]] = []
    for places in owners:
        name, local, layer = places[0]
        tensor = _tensor(layer, local)
        # check_included needs all matches of a pattern, so `include` resolves every tensor.
        if wanted is not None and id(tensor) not in wanted and include is None:
            continue
        if is_lazy(tensor):
            raise ValueError(f"{name}: lazy layer without a shape; run one batch through the model first")
        if reason := skip_reason(n for n, _, _ in places):
            bound = Bound(None, reason=reason)
        elif not tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
            bound = Bound(None, reason=FROZEN)
        elif id(tensor) in outputs:
            bound = Bound(None, reason="output layer (clip_output_layers=False)")
        else:
            decided = [(n, decide(n, own, owner, tensor)) for n, own, owner in places]
            bound = decided[0][1]
            if len({b.s for _, b in decided}) > 1:
                conflicts.append(decided)
                bound = Bound(None, reason="tied weights with different bounds")
        if bound.s is not None and not tensor.is_floating_point():
            raise ValueError(
                f"{name}: got dtype {tensor.dtype}, expected a real floating dtype; exclude={name!r} skips it"
            )
        resolved[id(tensor)] = Resolved(name, bound, tuple(owner for _, _, owner in places))
    if conflicts:
        raise ValueError(_tied(conflicts, rule, any(each.bound.s is not None for each in resolved.values())))
    if include is not None:
        by_name = {each.name: each.bound for each in resolved.values()}
        check_included(include, {n: by_name[places[0][0]] for places in owners for n, _, _ in places})
    return resolved


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile, DataParallel and DistributedDataParallel."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif (inner := compiled_module(model)) is not None:
            model = inner
        else:
            return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter of `model` once, under the name that `resolve_bounds` uses."""
    return {places[0][0]: _tensor(places[0][2], places[0][1]) for places in _owners(unwrap(model))}


def tensor_names(model: nn.Module) -> dict[int, list[str]]:
    """id(parameter) -> its names in `model`; tied weights have several."""
    owners = _owners(unwrap(model))
    return {id(_tensor(places[0][2], places[0][1])): [name for name, _, _ in places] for places in owners}


Place = tuple[str, str, nn.Module]  # full name, own name in its layer, layer


def _owners(model: nn.Module) -> list[list[Place]]:
    """All places of each distinct parameter, in the order of `model.parameters()`."""
    places: dict[int, list[Place]] = {}
    for path, layer in model.named_modules():
        if parameters := own_parameters(layer):
            prefix = f"{path}.".replace(COMPILED_PREFIX, "") if path else ""
            for local, tensor in parameters.items():
                if tensor is not None:
                    places.setdefault(id(tensor), []).append((prefix + local, local, layer))
    return list(places.values())


def _tensor(layer: nn.Module, local: str) -> Tensor:
    tensor: Tensor = own_parameters(layer)[local]
    return tensor


Decide = Callable[[str, str, nn.Module, Tensor], Bound]


def _decider(rule: Rule, owners: list[list[Place]], names: list[str]) -> Decide:
    if isinstance(rule, str):
        return _named_rule(rule, owners)
    if isinstance(rule, Mapping):
        return _mapping_rule(rule, owners, names)
    if callable(rule):
        return lambda name, local, layer, tensor: make_bound(
            name,
            rule(name, tensor, unstacked(layer, local, tensor)[0]),
            getattr(rule, "__name__", "function"),
            "skipped by the given function",
        )
    raise TypeError(f"bounds: got {rule!r}, expected one of {RULES}, a mapping or a function")


def _named_rule(rule: str, owners: list[list[Place]]) -> Decide:
    if rule == "fan_in":
        return _fan_in
    if rule == "init":
        return _init
    if rule == "paper":
        paper = _paper(owners)

        def decide(name: str, local: str, layer: nn.Module, tensor: Tensor) -> Bound:
            _reject_reparametrized(name, unstacked(layer, local, tensor)[0])
            return paper[id(tensor)]

        return decide
    raise ValueError(f"bounds: got {rule!r}, expected one of {RULES}, a mapping or a function")


def _fan_in(name: str, local: str, layer: nn.Module, tensor: Tensor) -> Bound:
    layer, _ = unstacked(layer, local, tensor)
    _reject_reparametrized(name, layer)
    if tensor.numel() == 0:
        return Bound(None, reason="no entries")
    rule = layer_rule(layer)
    if rule is None:
        return Bound(None, reason=f"{UNKNOWN} {type(layer).__name__} (see register_bound)")
    return make_bound(name, rule(layer, local), "fan_in", f"skipped by the rule of {type(layer).__name__}")


def _init(name: str, local: str, layer: nn.Module, tensor: Tensor) -> Bound:
    fan_in = _fan_in(name, local, layer, tensor)
    if fan_in.s is None:
        return fan_in
    largest = float(_full(tensor.detach().abs().max()))
    if largest == 0:
        return Bound(fan_in.s, "init (zeros: fan_in)")
    return make_bound(name, largest, "init", "")


def _paper(owners: list[list[Place]]) -> dict[int, Bound]:
    bounds: dict[int, Bound] = {}
    last = Bound(None, reason="no weight precedes it")
    for (_, local, layer), *_ in owners:
        tensor = _tensor(layer, local)
        member_layer, member = unstacked(layer, local, tensor)
        if member.dim() >= 2 and member.numel():
            last = Bound(_fan_in_by_shape(member_layer, member), "paper")
        bounds[id(tensor)] = last
    return bounds


def _mapping_rule(rule: Mapping[str, float | str], owners: list[list[Place]], names: list[str]) -> Decide:
    for pattern in rule:
        check_pattern("bounds", pattern, names)
    named = {value: _named_rule(value, owners) for value in rule.values() if isinstance(value, str)}

    def decide(name: str, local: str, layer: nn.Module, tensor: Tensor) -> Bound:
        for pattern, value in rule.items():
            if fnmatchcase(name, pattern):
                if isinstance(value, str):
                    return named[value](name, local, layer, tensor)
                return make_bound(name, value, "given", "")
        return Bound(None, reason="no matching pattern in the mapping")

    return decide


def _tied(conflicts: list[list[tuple[str, Bound]]], rule: Rule, others: bool) -> str:
    """The error message for tied weights with different bounds; `others`: whether other tensors can be clipped."""
    first = conflicts[0]
    given = ", ".join(f"{name} ({bound.reason if bound.s is None else bound.s})" for name, bound in first)
    excluded = [decided[0][0] for decided in conflicts]
    numbers = [next(bound.s for _, bound in decided if bound.s is not None) for decided in conflicts]
    pairs = zip(conflicts, numbers, strict=True)
    mapping = {name: round(number, 6) for decided, number in pairs for name, _ in decided}
    it = "it" if len(conflicts) == 1 else "them"
    clips = f"the same number for all of its names in bounds clips {it}"
    if isinstance(rule, str):
        clips = f"bounds={ {**mapping, '*': rule} } clips {it}"
    skips = f"exclude={excluded if len(excluded) > 1 else excluded[0]!r} skips {it}"
    return f"tied weights with different bounds: {given}; {f'{skips}, and {clips}' if others else clips}"


REPARAMETRIZING_HOOKS = (WeightNorm, SpectralNorm, prune.BasePruningMethod)


def is_reparametrized(layer: nn.Module) -> bool:
    """Whether the layer computes its weight from other parameters, so that clipping these does not bound it."""
    return (
        isinstance(layer, parametrize.ParametrizationList)
        or parametrize.is_parametrized(layer)
        or any(isinstance(hook, REPARAMETRIZING_HOOKS) for hook in forward_pre_hooks(layer).values())
    )


def _reject_reparametrized(name: str, layer: nn.Module) -> None:
    if is_reparametrized(layer):
        owner = name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]
        raise ValueError(
            f"{name}: its layer is reparametrized (weight_norm, spectral_norm, parametrize or pruning), so clipping "
            f"this tensor would not bound the layer's weight; exclude='{owner}.*' skips the layer"
        )


def output_tensors(model: nn.Module) -> set[int]:
    """The ids of the tensors in output layers, found by tracing; raises a ValueError if that fails."""

    def is_layer(module: nn.Module) -> bool:
        return layer_rule(module) is not None

    traced = model._weightclip_member if isinstance(model, Stacked) else model
    found = {id(p) for layer in find_output_layers(traced, is_layer) for p in layer.parameters()}
    names = [name for name, p in traced.named_parameters(remove_duplicate=False) if id(p) in found]
    own = dict(model.named_parameters(remove_duplicate=False))
    return {id(own[name]) for name in names if name in own}


def _full(tensor: Tensor) -> Tensor:
    """The full value of a sharded tensor (a DTensor) on every process."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full
