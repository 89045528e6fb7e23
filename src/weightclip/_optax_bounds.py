"""The bounds s_l of the arrays of a JAX parameter tree, from paths and shapes."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax.tree_util import DictKey, GetAttrKey, tree_flatten_with_path

from weightclip._bound_rules import (
    EMBEDDING,
    NORMALIZATION,
    SLOPE,
    UNKNOWN,
    WARN_ABOVE,
    Bound,
    check_included,
    make_bound,
)
from weightclip._ranges import (
    ByLayer,
    RangeRule,
    Units,
    check_effect,
    check_names,
    named_as_output,
    needs_outputs,
    range_of,
)
from weightclip._validation import Patterns, check_pattern, name_filter

Rule = str | Mapping[str, "float | str"] | Callable[[str, Any], "float | str | None"]
"""`"fan_in"`, a mapping of paths or glob patterns to numbers (or to `"fan_in"`), or a function
`(path, leaf) -> bound`, which returns a reason or None to skip the leaf."""

Path = tuple[Any, ...]
"""Path of a leaf: JAX key objects from the root."""

ACCEPTED = "expected 'fan_in', a mapping or a function"


@dataclass(frozen=True)
class Leaf:
    """An array of the tree: its path, the names on the path, and its Equinox layer, if any.

    `array` is a `MaskedNode` of optax or None if the array is masked out.
    """

    path: Path
    keys: tuple[str, ...]
    array: Any
    layer: Any
    gates: int | None = None
    """The number of recurrent units, for arrays that stack several gates (Haiku's GRU)."""

    @property
    def masked(self) -> bool:
        return _is_masked(self.array)

    @property
    def name(self) -> str:
        return "/".join(self.keys)

    @property
    def own_name(self) -> str:
        return self.keys[-1] if self.keys else ""


def _leaves(params: Any) -> list[Leaf]:
    """The arrays of `params`, masked ones included, in the order of `jax.tree.leaves`."""
    nodes = tree_flatten_with_path(params, is_leaf=lambda node: _layer_type(node) is not None)[0]
    layers = {path: node for path, node in nodes if _layer_type(node) is not None}
    return [
        Leaf(path, _keys(path), leaf, next((layers[path[:i]] for i in range(len(path)) if path[:i] in layers), None))
        for path, leaf in tree_flatten_with_path(params, is_leaf=_is_masked)[0]
        if _is_masked(leaf) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
    ]


def _is_masked(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, optax.MaskedNode)


def _keys(path: Path) -> tuple[str, ...]:
    return tuple(_key(key) for key in (path[:-1] if _in_variable(path) else path))


def _in_variable(path: Path) -> bool:
    """Whether the leaf is the value of a Flax Variable or partitioned array."""
    return len(path) > 1 and bool(path[-1] == GetAttrKey("value"))


def _key(key: Any) -> str:
    return next((str(getattr(key, of)) for of in ("key", "name", "idx") if hasattr(key, of)), str(key))


def resolve(params: Any, bounds: Rule, include: Patterns | None, exclude: Patterns | None) -> list[tuple[Leaf, Bound]]:
    """The arrays of `params` with their bounds, in the order of `jax.tree.leaves`."""
    leaves = _leaves(params)
    arrays = [leaf for leaf in leaves if not leaf.masked]
    skip_reason = name_filter(include, exclude, [leaf.name for leaf in arrays])
    decide = _decider(bounds, leaves)
    resolved: list[tuple[Leaf, Bound]] = []
    hidden = {leaf.keys[:-1]: leaf.array.shape[-2] for leaf in arrays if leaf.own_name == "w_h"}
    for leaf in arrays:
        if leaf.keys[:-1] in hidden and leaf.own_name in ("w_i", "w_h", "b"):
            leaf = replace(leaf, gates=hidden[leaf.keys[:-1]])
        reason = skip_reason([leaf.name])
        bound = Bound(None, reason=reason) if reason else decide(leaf)
        if bound.s is not None and not jnp.issubdtype(leaf.array.dtype, jnp.floating):
            raise ValueError(
                f"{leaf.name}: got dtype {leaf.array.dtype}, expected a real floating dtype; "
                f"exclude={leaf.name!r} skips it"
            )
        resolved.append((leaf, bound))
    check_included(include, {leaf.name: bound for leaf, bound in resolved})
    return resolved


def with_ranges(
    resolved: list[tuple[Leaf, Bound]], rule: RangeRule | None, warn: bool = False
) -> list[tuple[Leaf, Bound]]:
    """Add to each bound the range of its leaf; leaves that a rule by layer does not name are skipped.

    A tree of arrays does not show its output layers: a graded rule names them, or grades all layers equally.
    """
    if rule is None:
        return resolved
    names = [leaf.name for leaf, _ in resolved]
    check_names(rule, names)
    check_effect(rule, (([leaf.name], None, bound.reason) for leaf, bound in resolved))
    if needs_outputs(rule, names):
        if isinstance(rule, ByLayer):
            raise ValueError(
                f"kappa: a tree of arrays does not show its output layers; name paths such as {names[0]!r}"
            )
        if warn:
            layer, slash, _ = names[-1].rpartition("/")
            example = f"{layer}/*" if slash else names[-1]
            warnings.warn(
                "graded: a tree of arrays does not show its output layers, so all layers are graded the same way; "
                f"name them, for example output_layers={example!r}",
                UserWarning,
                stacklevel=4,  # the caller of `init`
            )
    layers = _number_layers([leaf for leaf, _ in resolved])
    found = []
    for leaf, bound in resolved:
        if bound.s is not None:
            number = layers.get(leaf.keys[:-1], 0)
            chosen = range_of(rule, [leaf.name], named_as_output(rule, [leaf.name]), *_units_of(leaf), number)
            no_match = Bound(None, reason="no pattern of kappa matches")
            bound = no_match if chosen is None else replace(bound, range=chosen)
        found.append((leaf, bound))
    return found


def _number_layers(leaves: list[Leaf]) -> dict[tuple[str, ...], int]:
    """Number the layers with an array of two or more dimensions in the order of the tree, `Dense_2` before `Dense_10`.

    JAX sorts the keys of dictionaries as text; the order of other nodes (lists, fields of a module) is kept.
    """
    places: dict[Path, int] = {}
    for leaf in leaves:
        for depth in range(len(leaf.path)):
            places.setdefault(leaf.path[: depth + 1], len(places))

    def order(leaf: Leaf) -> list[tuple[Any, ...]]:
        return [
            tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(key.key)))
            if isinstance(key, DictKey)
            else ((places[leaf.path[: depth + 1]], ""),)
            for depth, key in enumerate(leaf.path)
        ]

    matrices = sorted((leaf for leaf in leaves if len(leaf.array.shape) > 1), key=order)
    return {keys: number for number, keys in enumerate(dict.fromkeys(leaf.keys[:-1] for leaf in matrices))}


def _units_of(leaf: Leaf) -> tuple[Units, Units | None]:
    """The dimension of a leaf that indexes its units, and the one that indexes its inputs (None for a bias).

    The units are the last dimension in Flax and Haiku, and the first one in Equinox.
    """
    dims = len(leaf.array.shape)
    if leaf.layer is not None or leaf.own_name == "weight":
        period = leaf.layer.hidden_size if _layer_type(leaf.layer) in ("GRUCell", "LSTMCell") else None
        return Units(1.0, 1.0, 0, period), Units(1.0, 1.0, 1) if dims > 1 else None
    if dims < 2 or leaf.own_name in ("bias", "b"):
        return Units(1.0, 1.0, dims - 1, leaf.gates), None
    module = leaf.keys[-2].rpartition("/")[2] if len(leaf.keys) > 1 else ""
    units, inputs = (dims - 2, dims - 1) if leaf.own_name == "w" and "transpose" in module else (dims - 1, dims - 2)
    return Units(1.0, 1.0, units, leaf.gates), Units(1.0, 1.0, inputs)


def warn_of_unknown_layers(resolved: list[tuple[Leaf, Bound]]) -> None:
    """Warn if a large fraction of the entries of arrays with two or more dimensions has no bound rule."""
    weights = [
        (leaf, bound)
        for leaf, bound in resolved
        if len(leaf.array.shape) > 1 and jnp.issubdtype(leaf.array.dtype, jnp.inexact) and bound.reason != EMBEDDING
    ]
    unknown = [(leaf.name, leaf.array.size) for leaf, bound in weights if bound.reason.startswith(UNKNOWN)]
    entries, left = sum(leaf.array.size for leaf, _ in weights), sum(size for _, size in unknown)
    if left > WARN_ABOVE * entries:
        first = unknown[0][0]
        names = ", ".join(name for name, _ in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        warnings.warn(
            f"clip_weights skips {left / entries:.0%} of the weight entries, because their layers have no bound rule: "
            f"{names}; bounds={{{first!r}: number, '*': 'fan_in'}} sets a bound, and exclude={first!r} skips an array "
            "without this warning",
            UserWarning,
            stacklevel=4,  # the caller of `init`
        )


Decide = Callable[[Leaf], Bound]


def _decider(bounds: Rule, leaves: list[Leaf]) -> Decide:
    if isinstance(bounds, str):
        return _named_rule(bounds, leaves)
    if isinstance(bounds, Mapping):
        return _mapping_rule(bounds, leaves)
    if callable(bounds):
        rule = getattr(bounds, "__name__", "function")
        return lambda leaf: make_bound(leaf.name, bounds(leaf.name, leaf.array), rule, "skipped by the given function")
    raise TypeError(f"bounds: got {bounds!r}, {ACCEPTED}")


def _named_rule(rule: str, leaves: list[Leaf]) -> Decide:
    if rule != "fan_in":
        raise ValueError(f"bounds: got {rule!r}, {ACCEPTED}")
    siblings: dict[tuple[str, ...], dict[str, Leaf]] = {}
    for leaf in leaves:
        siblings.setdefault(leaf.keys[:-1], {})[leaf.own_name] = leaf
    weight_normed = _weight_normed(leaves)

    def decide(leaf: Leaf) -> Bound:
        _reject_reparametrized(leaf, weight_normed)
        if leaf.array.size == 0:
            return Bound(None, reason="no entries")
        fan_in = _equinox_fan_in(leaf) if leaf.layer is not None else _fan_in(leaf, siblings[leaf.keys[:-1]])
        # Equinox initializes the bias of a layer without inputs from [-1, 1].
        return Bound(None, reason=fan_in) if isinstance(fan_in, str) else Bound(1 / math.sqrt(max(1, fan_in)), rule)

    return decide


def _mapping_rule(bounds: Mapping[str, float | str], leaves: list[Leaf]) -> Decide:
    for pattern in bounds:
        check_pattern("bounds", pattern, [leaf.name for leaf in leaves if not leaf.masked])
    named = {value: _named_rule(value, leaves) for value in bounds.values() if isinstance(value, str)}

    def decide(leaf: Leaf) -> Bound:
        for pattern, value in bounds.items():
            if fnmatchcase(leaf.name, pattern):
                return named[value](leaf) if isinstance(value, str) else make_bound(leaf.name, value, "given", "")
        return Bound(None, reason="no matching pattern in the mapping")

    return decide


def _fan_in(leaf: Leaf, siblings: Mapping[str, Leaf]) -> int | str:
    """The fan_in of a layer from the names of its arrays, or the reason to skip the leaf."""
    if leaf.own_name == "kernel":
        return _flax_fan_in(leaf, siblings.get("bias"))
    if leaf.own_name == "weight":
        shape = leaf.array.shape
        return math.prod(shape[1:]) if len(shape) > 1 else NORMALIZATION
    if leaf.own_name == "bias":
        weight = siblings.get("kernel", siblings.get("weight"))
        if weight is not None:
            return _fan_in(_unmasked(weight, leaf), siblings)
        return NORMALIZATION if "scale" in siblings else "bias without a kernel or a weight in its layer"
    if leaf.own_name in ("scale", "offset"):
        return NORMALIZATION
    if leaf.own_name in ("embedding", "embeddings"):
        return EMBEDDING
    if leaf.own_name in ("w_i", "w_h") or (leaf.own_name == "b" and "w_h" in siblings):
        return _haiku_gru_fan_in(leaf, siblings)
    if leaf.own_name in ("w", "b"):
        return _haiku_fan_in(leaf, siblings.get("w"), siblings.get("b"))
    return f"{UNKNOWN} a leaf of this name (bounds={{path: number}} sets one)"


def _flax_fan_in(kernel: Leaf, bias: Leaf | None) -> int | str:
    shape, size = kernel.array.shape, kernel.array.size
    if len(shape) < 2:
        return "a kernel of fewer than two dimensions has no fan_in"
    if bias is not None and bias.array is None and _in_variable(kernel.path):
        bias = None  # an nnx module with use_bias=False
    if bias is not None and bias.masked and len(shape) == 2:
        bias = None  # [in, out]: the size of the bias is known
    if bias is not None and _unmasked(bias, kernel).array.size and size % bias.array.size == 0:
        return int(size // bias.array.size)
    heads = len(shape) == 3 and kernel.keys[-2:-1] in (("query",), ("key",), ("value",))
    return int(shape[0]) if heads else math.prod(shape[:-1])


def _haiku_fan_in(leaf: Leaf, weight: Leaf | None, bias: Leaf | None) -> int | str:
    """The fan_in of a w [*kernel, in, out], or [*kernel, out, in] in a transposed convolution.

    With a b, which has one entry per output, it is w.size / b.size for both, and for stacked layers.
    """
    if weight is None:
        return "b without a w in its layer"
    shape: tuple[int, ...] = _unmasked(weight, leaf).array.shape
    if len(shape) < 2:
        return "a w of fewer than two dimensions has no fan_in"
    if bias is not None:
        outputs = _unmasked(bias, leaf).array.size
        # Layers stacked k times have k additional leading dimensions in w and b.
        fits = any(outputs == math.prod(shape[:k]) * out for k in range(len(shape) - 1) for out in shape[-2:])
        return int(weight.array.size // outputs) if fits else f"{UNKNOWN} a b {bias.array.shape} with a w {shape}"
    if len(shape) == 2:
        return shape[0]
    module = weight.keys[-2] if len(weight.keys) > 1 else ""
    own_module = module.rpartition("/")[2]
    if "layer_stack" not in module:  # hk.layer_stack adds a dimension
        if "transpose" in own_module:
            return math.prod(shape[:-2]) * shape[-1]
        if "conv" in own_module and "deconv" not in own_module:
            return math.prod(shape[:-1])
    return f"{UNKNOWN} a w of three or more dimensions without a b, unless its module is named conv or transpose"


def _haiku_gru_fan_in(leaf: Leaf, siblings: Mapping[str, Leaf]) -> int | str:
    """The fan_in of w_i [in, 3 hidden] and w_h [hidden, 3 hidden]; b [3 hidden] has that of w_h, as in PyTorch."""
    shapes = {name: _unmasked(siblings[name], leaf).array.shape for name in ("w_i", "w_h", "b") if name in siblings}
    w_i, w_h, b = (shapes.get(name, ()) for name in ("w_i", "w_h", "b"))
    if len(w_i) < 2 or len(w_h) < 2 or not w_i[-1:] == w_h[-1:] == b[-1:] == (3 * w_h[-2],):
        return f"{UNKNOWN} a leaf of this name, except in Haiku's GRU"
    return int(w_i[-2] if leaf.own_name == "w_i" else w_h[-2])


def _unmasked(needed: Leaf, leaf: Leaf) -> Leaf:
    """Return `needed`, whose shape determines the bound of `leaf`; raise a ValueError if it is masked out."""
    if needed.masked:
        raise ValueError(
            f"{leaf.name}: its bound depends on the shape of {needed.name}, which is masked out; chain clip_weights "
            "outside optax.multi_transform, optax.masked or eqx.partition, so that it sees all parameters. "
            f"bounds={{{leaf.name!r}: number, '*': 'fan_in'}} sets its bound, exclude={leaf.name!r} skips it"
        )
    return needed


_EQUINOX_FAN_IN: dict[str, Callable[[Any], int]] = {
    "Linear": lambda layer: 1 if layer.in_features == "scalar" else layer.in_features,
    **dict.fromkeys(
        ("Conv", "ConvTranspose"), lambda layer: layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    ),
    **dict.fromkeys(("GRUCell", "LSTMCell"), lambda layer: layer.hidden_size),
}
_EQUINOX_SKIPPED = {
    **dict.fromkeys(("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm"), NORMALIZATION),
    "Embedding": EMBEDDING,
    "PReLU": SLOPE,
}
_EQUINOX_REPARAMETRIZED = ("WeightNorm", "SpectralNorm")
_EQUINOX_LAYERS = {*_EQUINOX_FAN_IN, *_EQUINOX_SKIPPED, *_EQUINOX_REPARAMETRIZED}


def _layer_type(node: Any) -> str | None:
    """The name of the Equinox layer type of `node` or its base class; does not import Equinox."""
    types = (cls.__name__ for cls in type(node).__mro__ if cls.__module__.startswith("equinox.nn."))
    return next((name for name in types if name in _EQUINOX_LAYERS), None)


def _equinox_fan_in(leaf: Leaf) -> int | str:
    layer_type = _layer_type(leaf.layer) or ""
    if layer_type in _EQUINOX_SKIPPED:
        return _EQUINOX_SKIPPED[layer_type]
    if not _is_weight_or_bias(leaf):
        return f"{UNKNOWN} an array of {layer_type} that is not a weight or a bias"
    return _EQUINOX_FAN_IN[layer_type](leaf.layer)


def _weight_normed(leaves: list[Leaf]) -> set[str]:
    """The layers inside Flax's WeightNorm, which names its scale by the kernel's path relative to its own parent."""
    return {
        "/".join([*leaf.keys[:-2], leaf.own_name.removesuffix("/scale").rpartition("/")[0]])
        for leaf in leaves
        if leaf.own_name.endswith("/scale")
    }


def _reject_reparametrized(leaf: Leaf, weight_normed: set[str]) -> None:
    owner = "/".join(leaf.keys[:-1])
    wrapped = (
        owner in weight_normed
        or "layer_instance" in leaf.keys  # a layer inside a Flax wrapper
        or _layer_type(leaf.layer) in _EQUINOX_REPARAMETRIZED
    )
    if wrapped and _is_weight_or_bias(leaf):
        raise ValueError(
            f"{leaf.name}: its layer is reparametrized (weight or spectral normalization), so clipping this leaf would "
            f"not bound the layer's weight; exclude='{owner}/*' skips the layer"
        )


def _is_weight_or_bias(leaf: Leaf) -> bool:
    return leaf.own_name.split("_")[0] in ("kernel", "weight", "bias")
