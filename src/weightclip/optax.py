"""Weight clipping for JAX: the last transformation of an optax chain, and the exact projection.

Parameters are any tree of arrays: dictionaries of Flax or Haiku, `nnx.State`, Equinox modules, or your own
dictionaries. A leaf is named by its path, such as `Dense_0/kernel` or `layers/0/weight`, without Flax's wrappers (the
`value` of a Variable). Bounds depend on paths and shapes only, so they are constants inside `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.tree_util import tree_map_with_path

from weightclip._bound_rules import Bound
from weightclip._optax_bounds import Leaf, Path, Rule, resolve, warn_of_unknown_layers, with_ranges
from weightclip._ranges import ByLayer, Graded, Units, read_kappa
from weightclip._validation import Patterns, check_number

Kappa = float | jax.Array | Mapping[str, float] | Graded | ByLayer

_T = TypeVar("_T")

SCHEDULE_FREE = (
    "expected optax.contrib.schedule_free(...), schedule_free_adamw(...) or schedule_free_sgd(...) itself; "
    "chain the result of clip_schedule_free with other transformations"
)

_eval_params = optax.contrib.schedule_free_eval_params


def clip_weights(
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    scale: float | jax.Array = 1.0,
) -> optax.GradientTransformation:
    """Replace the update u of the weights p by clip(p + u, -kappa s_l, kappa s_l) - p, so that they end in the box.

    It must be the last transformation of a chain, because it needs the update that is applied. Entries that stay in the
    box keep their u bit for bit. By default s_l = 1/sqrt(fan_in), see `resolve_bounds`.

    `optax.apply_updates` computes p + (clip(p + u) - p) with rounding: an entry can end one ulp outside the box (an ulp
    of u if u is coarser than p). `project` after `apply_updates` is exact.

    After `optax.contrib.schedule_free`, it bounds the training parameters y only. The evaluation parameters x depend on
    the unclipped sequence z and leave the box: use `clip_schedule_free`.

    `kappa` may be an array, also a traced one: `jax.jit` does not recompile when it changes, and `jax.vmap` maps over
    several values. `optax.inject_hyperparams` stores it in the optimizer's state or follows a schedule. List `bounds`
    in its `static_args` if it is a function, which would be treated as a schedule, and pass
    `hyperparam_dtype=jnp.float32` for half-precision weights, to which kappa would be rounded:

    Examples:
        >>> schedule = optax.linear_schedule(3.0, 1.0, transition_steps=100)
        >>> clip = optax.inject_hyperparams(clip_weights, static_args="bounds")(schedule, bounds=lambda path, leaf: 0.5)

    Args:
        kappa: the clipping range in units of s_l: a positive number, which may be infinite, or an array, which is not
            checked; a mapping of paths or glob patterns to numbers, whose first match applies; or
            `weightclip.graded(output_layers=...)`, a range per unit, with the paths of the output layers.
        bounds: `"fan_in"`, a mapping or a function: see `resolve_bounds`.
        include: paths or glob patterns; every other leaf is skipped.
        exclude: paths or glob patterns of leaves to skip.
        scale: multiplies kappa, also the ranges of a mapping or of `graded`; a number or an array, also a traced one,
            so `optax.inject_hyperparams` can store or schedule it.

    Returns:
        A stateless transformation whose `update` requires the parameters.

    Examples:
        >>> params = {"kernel": jnp.zeros((4, 1)), "bias": jnp.zeros(1)}
        >>> optimizer = optax.chain(optax.sgd(100.0), clip_weights(2.0))
        >>> updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
        >>> optax.apply_updates(params, updates)["kernel"].ravel().tolist()
        [-1.0, -1.0, -1.0, -1.0]
    """
    kappa, scale = _check_kappa(kappa), _check_scale(scale)

    def init(params: Any) -> Any:
        _check(params, kappa, bounds, include, exclude)
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        limit = _limits(_check_params(params), kappa, bounds, include, exclude, scale)

        def clip(path: Path, u: Any, p: Any) -> Any:
            return u if u is None else _clip_update(u, p, limit(path, p))

        return tree_map_with_path(clip, updates, params, is_leaf=lambda leaf: leaf is None), state

    return optax.GradientTransformation(init, update)


def clip_schedule_free(
    schedule_free: optax.GradientTransformation,
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    scale: float | jax.Array = 1.0,
) -> optax.GradientTransformationExtraArgs:
    """Clip all three sequences of `optax.contrib.schedule_free`: y (training), x (evaluation) and z (base optimizer).

    With C(w) = clip(w, -kappa s_l, kappa s_l) and the averaging weight c_t of Schedule-Free,

        z_{t+1} = C(z_t + base update),  x_{t+1} = C((1 - c_t) x_t + c_t z_{t+1}),  y = (1 - b1) z + b1 x.

    So x is the average of the clipped z. `optax.chain(schedule_free, clip_weights(kappa))` bounds y only. Entries
    whose z, x and y stay in the box get the update of `schedule_free` bit for bit. As with `clip_weights`, the first
    update clips parameters that start outside the box.

    The state is a `ScheduleFreeState`, so `optax.contrib.schedule_free_eval_params(state, params)` returns x. z is
    exactly in the box. y can end an ulp outside, as in `clip_weights`. `schedule_free_eval_params` computes
    x = (y - (1 - b1) z) / b1, which divides the rounding of y by b1: x can end about 2/b1 ulps outside.
    `project(x, kappa)` is exact.

    Args:
        schedule_free: `optax.contrib.schedule_free`, `schedule_free_adamw` or `schedule_free_sgd` with 0 < b1 <= 1.
            The result of this function must be the last transformation of a chain.
        kappa: see `clip_weights`. `optax.inject_hyperparams(clip_schedule_free)(schedule_free, kappa=schedule)`
            follows a schedule; the `ScheduleFreeState` is then the `inner_state` of its state.
        bounds: see `resolve_bounds`.
        include: see `clip_weights`.
        exclude: see `clip_weights`.
        scale: see `clip_weights`.

    Examples:
        >>> params = {"kernel": jnp.zeros((4, 1))}
        >>> optimizer = clip_schedule_free(optax.contrib.schedule_free_sgd(100.0), 2.0)
        >>> updates, state = optimizer.update({"kernel": jnp.ones((4, 1))}, optimizer.init(params), params)
        >>> params = optax.apply_updates(params, updates)
        >>> optax.contrib.schedule_free_eval_params(state, params)["kernel"].ravel().tolist()
        [-1.0, -1.0, -1.0, -1.0]
    """
    kappa, scale = _check_kappa(kappa), _check_scale(scale)
    if not isinstance(schedule_free, optax.GradientTransformation):
        raise TypeError(f"schedule_free: got {schedule_free!r}, {SCHEDULE_FREE}")
    inner = optax.with_extra_args_support(schedule_free)

    def init(params: Any) -> Any:
        _check(params, kappa, bounds, include, exclude)
        return _check_schedule_free_state(inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        limit = _limits(_check_params(params), kappa, bounds, include, exclude, scale)
        updates, moved = inner.update(updates, state, params, **extra_args)
        # c_t is not in the state; the difference of the sums gives it up to rounding.
        c = jnp.nan_to_num((moved.weight_sum - state.weight_sum) / moved.weight_sum)
        b1 = state.b1
        new = moved._replace(z=tree_map_with_path(lambda path, z: _clip(z, limit(path, z)), moved.z))

        def clip(path: Path, u: Any, p: Any, y: Any, old_x: Any, x: Any, moved_z: Any, z: Any) -> Any:
            """Return the update of y; `y` and `x` are those of the unclipped step."""
            box = limit(path, p)
            if box is None:
                return u
            x = jnp.where(z == moved_z, x, (1 - c) * old_x + c * z)
            new_x = _clip(x, box)
            new_y = _clip(b1 * new_x + (1 - b1) * z, box)
            inside = (z == moved_z) & (new_x == x) & (jnp.abs(y) <= box)
            return jnp.where(inside, u, new_y - p).astype(jnp.result_type(u))

        y = optax.apply_updates(params, updates)
        old_x, x = _eval_params(state, params), _eval_params(moved, y)
        return tree_map_with_path(clip, updates, params, y, old_x, x, moved.z, new.z), new

    return optax.GradientTransformationExtraArgs(init, update)


def project(
    params: _T,
    kappa: Kappa,
    *,
    bounds: Rule = "fan_in",
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    scale: float | jax.Array = 1.0,
) -> _T:
    """Clip every weight now: p <- clip(p, -kappa s_l, kappa s_l), with the arguments of `clip_weights`.

    If kappa is a number, no entry ends outside [-kappa s_l, kappa s_l]: the limit is rounded toward zero in the dtype
    of the leaf. If kappa is an array, kappa s_l is computed in that dtype (at least float32) and rounded to nearest, so
    it can be one ulp larger. NaN stays NaN.

    Examples:
        >>> project({"kernel": jnp.full((4, 1), 9.0)}, 2.0)["kernel"].ravel().tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    limit = _limits(params, _check_kappa(kappa), bounds, include, exclude, _check_scale(scale))
    projected: _T = tree_map_with_path(lambda path, p: _clip(p, limit(path, p)), params)
    return projected


def resolve_bounds(
    params: Any,
    bounds: Rule = "fan_in",
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
) -> dict[str, Bound]:
    """The bound of every array of `params` by path; skipped arrays have `s` None and a reason.

    Rules:
        `fan_in`: s = 1/sqrt(fan_in) for the weights and the bias of a layer.
            Equinox: the bound of the uniform distribution from which the layer is initialized, by layer type; a
                `weight` [out, in, *kernel] of any other layer has fan_in = in * kernel.
            Flax: a `kernel` [*kernel, in, out] with a `bias` has fan_in = kernel.size / bias.size, also for groups,
                several heads and layers stacked by `nn.vmap` or `nn.scan`. Without a bias, out is the last dimension
                (the last two for a three-dimensional `query`, `key` or `value`); set the bounds of stacked layers
                without biases by a mapping.
            Haiku: a `w` [*kernel, in, out] with a `b` has fan_in = w.size / b.size, also for transposed convolutions
                [*kernel, out, in] and stacked layers. Without a b, a `w` of three or more dimensions is identified by
                the name of its module: `conv`, or `transpose` for transposed convolutions. The `b` of a GRU has the
                bound of its `w_h`, as in PyTorch.
            Normalization layers, embeddings and leaves without a rule are skipped. `clip_weights` warns at `init` if
            more than a tenth of the entries of arrays of two or more dimensions, excluding embeddings, have no rule.
        a mapping: the first matching path or glob pattern applies, with a number or `"fan_in"`; leaves without a match
            are skipped.
        a function: `(path, leaf) -> bound`, or a reason (or None) to skip the leaf.

    A leaf raises a ValueError if its bound depends on the shape of another leaf of its layer (a bias on its weight, for
    example) that `optax.masked`, `optax.multi_transform` or `eqx.partition` hides.

    Flax initializes kernels from a normal distribution truncated at 2.27 s, Haiku at 2 s, so a smaller kappa clips the
    initial weights. `variance_scaling(1 / 3, "fan_in", "uniform")` of `flax.linen.initializers` initializes them from
    [-s, s], as PyTorch and Equinox do. Weights under weight or spectral normalization raise a ValueError, except if
    Flax's `SpectralNorm` wraps a layer of its parent module, which the parameters do not show.

    Args:
        params: a tree of arrays or of their shapes (`jax.ShapeDtypeStruct`); other leaves are skipped.
        bounds: see above.
        include: paths or glob patterns; every other leaf is skipped.
        exclude: paths or glob patterns of leaves to skip.

    Examples:
        >>> params = {"Dense_0": {"kernel": jnp.zeros((4, 3))}, "LayerNorm_0": {"scale": jnp.ones(3)}}
        >>> resolved = resolve_bounds(params)
        >>> resolved["Dense_0/kernel"]
        Bound(s=0.5, rule='fan_in', reason='')
        >>> resolved["LayerNorm_0/scale"].reason
        'normalization layer: its scale is initialized to 1, outside a box around 0'
    """
    return {leaf.name: bound for leaf, bound in resolve(params, bounds, include, exclude)}


def _check_kappa(kappa: Kappa) -> Any:
    """The checked kappa: a number, an array or a range rule."""
    if not isinstance(kappa, jax.Array):
        number, rule = read_kappa(kappa)
        return number if rule is None else rule
    if kappa.shape:
        raise ValueError(f"kappa: got an array of shape {kappa.shape}, expected a positive number or a scalar array")
    return kappa


def _check_scale(scale: float | jax.Array) -> Any:
    if isinstance(scale, jax.Array):
        if scale.shape:
            raise ValueError(
                f"scale: got an array of shape {scale.shape}, expected a positive number or a scalar array"
            )
        return scale
    return check_number("scale", scale, infinite=True)


def _check_params(params: Any) -> Any:
    if params is None:
        raise ValueError("params: got None, expected the parameters: call update(updates, state, params)")
    return params


def _check_schedule_free_state(state: Any) -> Any:
    if not isinstance(state, optax.contrib.ScheduleFreeState):
        raise TypeError(f"schedule_free: got a transformation with the state {type(state).__name__}, {SCHEDULE_FREE}")
    if not isinstance(state.b1, jax.core.Tracer) and not 0 < state.b1 <= 1:
        raise ValueError(f"b1: got {state.b1}, expected 0 < b1 <= 1: schedule_free divides by it")
    return state


def _clip(p: Any, limit: Any) -> Any:
    return p if limit is None else jnp.clip(jnp.asarray(p), -limit, limit)


def _clip_update(u: Any, p: Any, limit: Any) -> Any:
    if limit is None:
        return u
    moved = p + u
    kept = _clip(moved, limit)
    return jnp.where(kept == moved, u, kept - p).astype(jnp.result_type(u))


def _check(params: Any, kappa: Any, bounds: Rule, include: Patterns | None, exclude: Patterns | None) -> None:
    """Raise or warn before training starts."""
    if type(params).__name__ == "_ParamsPlaceholder":  # used by optax.tree_map_params to find parameters in a state
        return
    resolved = _resolve(params, bounds, include, exclude)
    if not callable(bounds):
        warn_of_unknown_layers(resolved)
    with_ranges(resolved, kappa if isinstance(kappa, (Graded, ByLayer)) else None, warn=True)


def _resolve(params: Any, bounds: Rule, include: Patterns | None, exclude: Patterns | None) -> list[tuple[Leaf, Bound]]:
    """The arrays with their bounds; raises a ValueError if all of them are skipped."""
    resolved = resolve(params, bounds, include, exclude)
    if all(bound.s is None for _, bound in resolved):
        skipped = "".join(f"\n{leaf.name}: {bound.reason}" for leaf, bound in resolved)
        raise ValueError(f"params: there is nothing to clip; skipped:{skipped or ' no arrays'}")
    return resolved


def _limits(
    params: Any, kappa: Any, bounds: Rule, include: Patterns | None, exclude: Patterns | None, scale: Any
) -> Callable[[Path, Any], Any]:
    """Return a function (path, leaf) -> the limit kappa s_l in the dtype of the leaf, or None if it is skipped."""
    rule = kappa if isinstance(kappa, (Graded, ByLayer)) else None
    number: Any = scale if rule is not None else kappa if isinstance(scale, float) and scale == 1.0 else kappa * scale
    found = {leaf.path: bound for leaf, bound in with_ranges(_resolve(params, bounds, include, exclude), rule)}

    def limit(path: Path, leaf: Any) -> Any:
        bound = found.get(path)
        return None if bound is None or bound.s is None else _limit(number, bound, leaf)

    return limit


def _limit(kappa: Any, bound: Bound, leaf: Any) -> Any:
    """kappa k s in the leaf's dtype, rounded toward zero for a number and to nearest for an array."""
    dtype, s = jnp.result_type(leaf), bound.s or 0.0
    if isinstance(bound.range, Units):
        shape = [1] * len(leaf.shape)
        shape[bound.range.dim] = -1
        unscaled: Any = (np.array(bound.range.kappas(leaf.shape[bound.range.dim])) * s).reshape(shape)
    else:
        unscaled = np.asarray(bound.range * s)
    if isinstance(kappa, jax.Array):
        wide = jnp.promote_types(dtype, jnp.float32)
        return (kappa.astype(wide) * unscaled.astype(wide)).astype(dtype)
    exact = np.asarray(kappa * unscaled)
    with np.errstate(over="ignore"):
        rounded = exact.astype(dtype)
    return np.where(rounded.astype(np.float64) <= exact, rounded, np.nextafter(rounded, np.zeros_like(rounded)))
