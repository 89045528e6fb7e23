"""Weight clipping for JAX: the last transformation of an optax chain, and the exact projection.

Parameters are any tree of arrays: Flax's dictionaries and `nnx.State`, Equinox's modules, or dictionaries of one's
own. A leaf is named by its path, as in `Dense_0/kernel` or `layers/0/weight`; what Flax wraps around a leaf (the
`value` of a Variable) is not part of it. Bounds are resolved from paths and shapes alone, so inside `jax.jit` they
are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.tree_util import GetAttrKey, tree_flatten_with_path, tree_map_with_path

from weightclip.bounds import EMBEDDING, NORMALISATION, SLOPE, Bound, check_included, make_bound
from weightclip.checks import check_number
from weightclip.patterns import Patterns, check_pattern, unwanted

Rule = str | Mapping[str, "float | str"] | Callable[[str, Any], "float | str | None"]
"""`"fan_in"`, a mapping of paths or glob patterns to numbers (or to `"fan_in"`), or a function
`(path, leaf) -> bound`, which may return a reason or None to leave the leaf alone."""

Kappa = float | jax.Array

Path = tuple[Any, ...]
"""The keys on the way to a leaf, as JAX has them."""

_T = TypeVar("_T")

ACCEPTED = "expected 'fan_in', a mapping or a function"


def clip_weights(
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> optax.GradientTransformation:
    """Turn the update u of the weights p into clip(p + u, -kappa s_l, kappa s_l) - p, so that they end in the box.

    In a chain of transformations, this must be the last one: it has to see the update that is applied. An entry
    that stays in the box keeps its u bit by bit. By default s_l = 1/sqrt(fan_in), see `resolve_bounds`.

    `optax.apply_updates` adds p again, and p + (clip(p + u) - p) is rounded: an entry can end an ulp outside the
    box (an ulp of u, where u is coarser than p). `project` after `apply_updates` is exact.

    `kappa` may be an array, also a traced one, so that neither `jax.jit` compiles again when it changes nor
    `jax.vmap` over several of them needs a loop. `optax.inject_hyperparams` keeps it in the optimizer's state, or
    follows a schedule (name `bounds` in its `static_args` if it is a function, which would be taken for one, and
    give `hyperparam_dtype=jnp.float32` for weights of half precision, or kappa is rounded as they are):

    Examples:
        >>> schedule = optax.linear_schedule(3.0, 1.0, transition_steps=100)
        >>> clip = optax.inject_hyperparams(clip_weights, static_args="bounds")(schedule, bounds=lambda path, leaf: 0.5)

    Args:
        kappa: the half-width of the box in units of s_l; positive, may be infinite. An array is not checked.
        bounds: `"fan_in"`, a mapping or a function: see `resolve_bounds`.
        include: paths or glob patterns; every other leaf is left alone.
        exclude: paths or glob patterns of leaves to leave alone.

    Returns:
        A transformation without state, whose `update` needs the parameters.

    Examples:
        >>> params = {"kernel": jnp.zeros((4, 1)), "bias": jnp.zeros(1)}
        >>> optimizer = optax.chain(optax.sgd(100.0), clip_weights(2.0))
        >>> updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
        >>> optax.apply_updates(params, updates)["kernel"].ravel().tolist()
        [-1.0, -1.0, -1.0, -1.0]
    """
    kappa = _check_kappa(kappa)

    def init(params: Any) -> Any:
        _limits(params, kappa, bounds, include, exclude)  # refuses what cannot be clipped before training starts
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params: got None, expected the parameters: call update(updates, state, params)")
        limits = _limits(params, kappa, bounds, include, exclude)

        def clip(path: Path, u: Any, p: Any) -> Any:
            return u if u is None else _clip_update(u, p, limits.get(path))

        return tree_map_with_path(clip, updates, params, is_leaf=lambda leaf: leaf is None), state

    return optax.GradientTransformation(init, update)


def project(
    params: _T,
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> _T:
    """Clip every weight now: p <- clip(p, -kappa s_l, kappa s_l). The arguments are those of `clip_weights`.

    For a kappa that is a number, no entry ends outside [-kappa s_l, kappa s_l]: the limit is rounded towards zero
    in the dtype of the leaf. For an array, kappa s_l is computed in that dtype, in float32 at least, and rounded
    to the nearest: it can be an ulp more. NaN stays NaN.

    Examples:
        >>> project({"kernel": jnp.full((4, 1), 9.0)}, 2.0)["kernel"].ravel().tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    limits = _limits(params, _check_kappa(kappa), bounds, include, exclude)
    projected: _T = tree_map_with_path(lambda path, p: _clip(p, limits.get(path)), params)
    return projected


def resolve_bounds(
    params: Any,
    bounds: Rule = "fan_in",
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> dict[str, Bound]:
    """The bound of every array of `params`, by path; those left alone have `s` None and a reason.

    Rules:
        `fan_in`: s = 1/sqrt(fan_in) for the weights and the bias of a layer.
            Equinox: the bound of the uniform distribution that the layer is drawn from, known from its type; a
                `weight` of two or more dimensions (out, in, *kernel) of any other layer has fan_in = in * kernel.
            Flax: a `kernel` (*kernel, in, out) with a `bias` beside it has fan_in = kernel.size / bias.size,
                which holds for groups, several heads and layers stacked by `nn.vmap` or `nn.scan` too. Without a
                bias, out is the last dimension (`query`, `key` and `value` of three dimensions: the last two);
                give stacked layers without biases their numbers by a mapping.
            Normalisation layers, embeddings and leaves that no rule knows are left alone.
        a mapping: the first path or glob pattern that matches decides, with a number or with `"fan_in"`; a leaf
            that none matches is left alone.
        a function: `(path, leaf) -> bound`, or a reason (or None) to leave the leaf alone.

    Flax draws kernels from a normal distribution cut at 2.27 s, so a smaller kappa clips at the start.
    `variance_scaling(1 / 3, "fan_in", "uniform")` of `flax.linen.initializers` draws them from [-s, s], as PyTorch
    and Equinox do. Weights under weight or spectral normalisation are refused, except where Flax's `SpectralNorm`
    wraps a layer of its parent module, which the parameters don't show.

    Args:
        params: a tree of arrays or of their shapes (`jax.ShapeDtypeStruct`); other leaves are skipped.
        bounds: see above.
        include: paths or glob patterns; every other leaf is left alone.
        exclude: paths or glob patterns of leaves to leave alone.

    Examples:
        >>> params = {"Dense_0": {"kernel": jnp.zeros((4, 3))}, "LayerNorm_0": {"scale": jnp.ones(3)}}
        >>> resolved = resolve_bounds(params)
        >>> resolved["Dense_0/kernel"]
        Bound(s=0.5, rule='fan_in', reason='')
        >>> resolved["LayerNorm_0/scale"].reason
        'normalisation layer: its scale starts at 1, not in a box around 0'
    """
    leaves = _leaves(params)
    return {leaf.name: bound for leaf, bound in zip(leaves, _resolve(leaves, bounds, include, exclude), strict=True)}


def _check_kappa(kappa: Kappa) -> Kappa:
    if not isinstance(kappa, jax.Array):
        return check_number("kappa", kappa, infinite=True)
    if kappa.shape:
        raise ValueError(f"kappa: got an array of shape {kappa.shape}, expected a positive number or a scalar array")
    return kappa


def _clip(p: Any, limit: Any) -> Any:
    return p if limit is None else jnp.clip(jnp.asarray(p), -limit, limit)


def _clip_update(u: Any, p: Any, limit: Any) -> Any:
    if limit is None:
        return u
    moved = p + u
    kept = _clip(moved, limit)
    return jnp.where(kept == moved, u, kept - p).astype(jnp.result_type(u))


def _limits(
    params: Any, kappa: Kappa, bounds: Rule, include: Patterns | None, exclude: Patterns | None
) -> dict[Path, Any]:
    """The limit kappa * s_l of each clipped leaf, in the dtype of the leaf."""
    leaves = _leaves(params)
    resolved = _resolve(leaves, bounds, include, exclude)
    if all(bound.s is None for bound in resolved):
        alone = "".join(f"\n{leaf.name}: {bound.reason}" for leaf, bound in zip(leaves, resolved, strict=True))
        raise ValueError(f"params: there is nothing to clip; left alone:{alone or ' no arrays'}")
    return {
        leaf.path: _limit(kappa, bound.s, jnp.result_type(leaf.array))
        for leaf, bound in zip(leaves, resolved, strict=True)
        if bound.s is not None
    }


def _limit(kappa: Kappa, s: float, dtype: Any) -> Any:
    """For a number, the largest of `dtype` that is not above kappa * s; for an array, the nearest."""
    if isinstance(kappa, jax.Array):
        return (kappa.astype(jnp.promote_types(dtype, jnp.float32)) * s).astype(dtype)
    exact = kappa * s
    with np.errstate(over="ignore"):
        rounded = np.asarray(exact, dtype)
    return rounded if float(rounded) <= exact else np.nextafter(rounded, np.zeros_like(rounded))


@dataclass(frozen=True)
class _Leaf:
    """An array of the tree: its path, the names on it, and the Equinox layer that it is in, if any."""

    path: Path
    keys: tuple[str, ...]
    array: Any
    layer: Any

    @property
    def name(self) -> str:
        return "/".join(self.keys)

    @property
    def own_name(self) -> str:
        return self.keys[-1] if self.keys else ""


def _leaves(params: Any) -> list[_Leaf]:
    """The arrays of `params`, in the order of `jax.tree.leaves`."""
    nodes = tree_flatten_with_path(params, is_leaf=lambda node: _layer_type(node) is not None)[0]
    layers = {path: node for path, node in nodes if _layer_type(node) is not None}
    return [
        _Leaf(path, _keys(path), leaf, next((layers[path[:i]] for i in range(len(path)) if path[:i] in layers), None))
        for path, leaf in tree_flatten_with_path(params)[0]
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]


def _keys(path: Path) -> tuple[str, ...]:
    if len(path) > 1 and path[-1] == GetAttrKey("value"):  # inside a Variable or a partitioned array of Flax
        path = path[:-1]
    return tuple(_key(key) for key in path)


def _key(key: Any) -> str:
    return next((str(getattr(key, of)) for of in ("key", "name", "idx") if hasattr(key, of)), str(key))


def _resolve(leaves: list[_Leaf], bounds: Rule, include: Patterns | None, exclude: Patterns | None) -> list[Bound]:
    names = [leaf.name for leaf in leaves]
    unwanted_reason = unwanted(include, exclude, names)
    decide = _decider(bounds, leaves)
    resolved: list[Bound] = []
    for leaf in leaves:
        reason = unwanted_reason([leaf.name])
        bound = Bound(None, reason=reason) if reason else decide(leaf)
        if bound.s is not None and not jnp.issubdtype(leaf.array.dtype, jnp.floating):
            raise ValueError(
                f"{leaf.name}: dtype {leaf.array.dtype} cannot be clipped to an interval; "
                f"exclude={leaf.name!r} leaves it alone"
            )
        resolved.append(bound)
    check_included(include, dict(zip(names, resolved, strict=True)))
    return resolved


Decide = Callable[[_Leaf], Bound]


def _decider(bounds: Rule, leaves: list[_Leaf]) -> Decide:
    if isinstance(bounds, str):
        return _named_rule(bounds, leaves)
    if isinstance(bounds, Mapping):
        return _mapping_rule(bounds, leaves)
    if callable(bounds):
        rule = getattr(bounds, "__name__", "function")
        return lambda leaf: make_bound(
            leaf.name, bounds(leaf.name, leaf.array), rule, "left alone by the given function"
        )
    raise TypeError(f"bounds: got {bounds!r}, {ACCEPTED}")


def _named_rule(rule: str, leaves: list[_Leaf]) -> Decide:
    if rule != "fan_in":
        raise ValueError(f"bounds: got {rule!r}, {ACCEPTED}")
    siblings: dict[tuple[str, ...], dict[str, _Leaf]] = {}
    for leaf in leaves:
        siblings.setdefault(leaf.keys[:-1], {})[leaf.own_name] = leaf
    weight_normed = _weight_normed(leaves)

    def decide(leaf: _Leaf) -> Bound:
        _refuse_reparametrised(leaf, weight_normed)
        if leaf.array.size == 0:
            return Bound(None, reason="no entries")
        fan_in = _equinox_fan_in(leaf) if leaf.layer is not None else _fan_in(leaf, siblings[leaf.keys[:-1]])
        return Bound(None, reason=fan_in) if isinstance(fan_in, str) else Bound(1 / math.sqrt(fan_in), rule)

    return decide


def _mapping_rule(bounds: Mapping[str, float | str], leaves: list[_Leaf]) -> Decide:
    for pattern in bounds:
        check_pattern("bounds", pattern, [leaf.name for leaf in leaves])
    named = {value: _named_rule(value, leaves) for value in bounds.values() if isinstance(value, str)}

    def decide(leaf: _Leaf) -> Bound:
        for pattern, value in bounds.items():
            if fnmatchcase(leaf.name, pattern):
                return named[value](leaf) if isinstance(value, str) else make_bound(leaf.name, value, "given", "")
        return Bound(None, reason="no pattern of the given mapping matches")

    return decide


def _fan_in(leaf: _Leaf, siblings: Mapping[str, _Leaf]) -> int | str:
    """The fan_in of a layer known only by the names of its arrays, or the reason why the leaf is left alone."""
    if leaf.own_name == "kernel":
        return _flax_fan_in(leaf, siblings.get("bias"))
    if leaf.own_name == "weight":
        shape = leaf.array.shape
        return math.prod(shape[1:]) if len(shape) > 1 else NORMALISATION
    if leaf.own_name == "bias":
        for name in ("kernel", "weight"):
            if name in siblings:
                return _fan_in(siblings[name], siblings)
        return NORMALISATION if "scale" in siblings else "bias without a kernel or a weight beside it"
    if leaf.own_name == "scale":
        return NORMALISATION
    if leaf.own_name == "embedding":
        return EMBEDDING
    return "no rule knows a leaf of this name (bounds={path: number} gives it a bound)"


def _flax_fan_in(kernel: _Leaf, bias: _Leaf | None) -> int | str:
    shape, size = kernel.array.shape, kernel.array.size
    if len(shape) < 2:
        return "a kernel of less than two dimensions has no fan_in"
    if bias is not None and bias.array.size and size % bias.array.size == 0:
        return int(size // bias.array.size)
    heads = len(shape) == 3 and kernel.keys[-2:-1] in (("query",), ("key",), ("value",))
    return int(shape[0]) if heads else math.prod(shape[:-1])


_EQUINOX_FAN_IN: dict[str, Callable[[Any], int]] = {
    "Linear": lambda layer: 1 if layer.in_features == "scalar" else layer.in_features,
    **dict.fromkeys(
        ("Conv", "ConvTranspose"), lambda layer: layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    ),
    **dict.fromkeys(("GRUCell", "LSTMCell"), lambda layer: layer.hidden_size),
}
_EQUINOX_LEFT_ALONE = {
    **dict.fromkeys(("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm"), NORMALISATION),
    "Embedding": EMBEDDING,
    "PReLU": SLOPE,
}
_EQUINOX_REPARAMETRISED = ("WeightNorm", "SpectralNorm")
_EQUINOX_LAYERS = {*_EQUINOX_FAN_IN, *_EQUINOX_LEFT_ALONE, *_EQUINOX_REPARAMETRISED}


def _layer_type(node: Any) -> str | None:
    """The name of the layer type of Equinox that `node` is or derives from; found without importing Equinox."""
    types = (cls.__name__ for cls in type(node).__mro__ if cls.__module__.startswith("equinox.nn."))
    return next((name for name in types if name in _EQUINOX_LAYERS), None)


def _equinox_fan_in(leaf: _Leaf) -> int | str:
    layer_type = _layer_type(leaf.layer) or ""
    if layer_type in _EQUINOX_LEFT_ALONE:
        return _EQUINOX_LEFT_ALONE[layer_type]
    if not _is_weight_or_bias(leaf):
        return f"not a weight or a bias of {layer_type}"
    # A layer without inputs has a bias, drawn from [-1, 1].
    return max(1, _EQUINOX_FAN_IN[layer_type](leaf.layer))


def _weight_normed(leaves: list[_Leaf]) -> set[str]:
    """The layers that Flax's WeightNorm wraps: it names its scale by the path of the kernel from its own parent."""
    return {
        "/".join([*leaf.keys[:-2], leaf.own_name.removesuffix("/scale").rpartition("/")[0]])
        for leaf in leaves
        if leaf.own_name.endswith("/scale")
    }


def _refuse_reparametrised(leaf: _Leaf, weight_normed: set[str]) -> None:
    owner = "/".join(leaf.keys[:-1])
    wrapped = (
        owner in weight_normed
        or "layer_instance" in leaf.keys  # the layer inside one of Flax's wrappers
        or _layer_type(leaf.layer) in _EQUINOX_REPARAMETRISED
    )
    if wrapped and _is_weight_or_bias(leaf):
        raise ValueError(
            f"{leaf.name}: its layer is reparametrised (weight or spectral normalisation), so clipping this leaf would "
            f"not bound the layer's weight; exclude='{owner}/*' leaves the layer alone"
        )


def _is_weight_or_bias(leaf: _Leaf) -> bool:
    return leaf.own_name.split("_")[0] in ("kernel", "weight", "bias")
