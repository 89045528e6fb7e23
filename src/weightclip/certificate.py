"""The theorem and the corollary as numbers: how steep a network is, and how far one update can move its output.

Both are certified upper bounds: sums and singular values are taken in float64 and rounded up, and nothing is
estimated from samples. They speak of the network in exact arithmetic. Hooks are taken to only look at what passes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from weightclip._box import exact_limits
from weightclip._layer_ranges import find_output_names, with_ranges
from weightclip._ranges import Kappa, read_kappa
from weightclip.bounds import REPARAMETRISING_HOOKS, Rule, bounds_by_tensor, is_reparametrised, named_tensors, unwrap
from weightclip.checks import check_number
from weightclip.clipping import Clipper

Norms = dict[float, float]
"""p -> a number, for p = 1, 2 and infinity."""

Constant = Callable[[Any], "float | tuple[float, float] | str"]
"""A module -> its Lipschitz constant for every p, or those for p = 1 and infinity, or the reason why it has none."""


@dataclass(frozen=True)
class Lipschitz:
    """Upper bounds on a Lipschitz constant: norm_p(f(x) - f(y)) <= bound[p] * norm_p(x - y) for all x and y.

    `now` holds for the weights as they are; `prior` for any weights that clipping at kappa allows (None without a
    kappa, infinite where a weight is not clipped). `layers` has the bounds of each module by its dotted name, of
    which those of the network are the product.
    """

    now: Norms
    prior: Norms | None = None
    layers: dict[str, Lipschitz] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        kinds = ("now",) if self.prior is None else ("now", "prior")
        rows = [("", *(f"{kind}, p={p:g}" for kind in kinds for p in self.now))]
        for name, bounds in (*self.layers.items(), ("network", self)):
            rows.append((name, *(f"{bound:.4g}" for kind in kinds for bound in getattr(bounds, kind).values())))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


@torch.no_grad()
def lipschitz(model: nn.Module, kappa: Kappa | Clipper | None = None, *, bounds: Rule = "fan_in") -> Lipschitz:
    """Upper bounds on the Lipschitz constant of `model` for p = 1, 2 and infinity: the product over its modules.

    From the weights as they are (`now`), W of shape m x n has
        norm_1(W) = max_j sum_i |W_ij|,  norm_inf(W) = max_i sum_j |W_ij|,  norm_2(W) its largest singular value.
    With every |W_ij| <= kappa s_l (`prior`), these are at most kappa s_l m, kappa s_l n and kappa s_l sqrt(m n): for
    p = 1 that is the paper's kappa^L prod_l s_l m_l. For a convolution, of weight (out, in/groups, *kernel), n counts
    the in/groups * kernel entries that an output reads, and m the out/groups * kernel outputs that read an entry
    (fewer with a stride). They hold for inputs of any size; their norm_2 is a bound, not the exact value. With a range
    kappa_i for each unit (`graded`), a Linear has s_l sum_i kappa_i, s_l n max_i kappa_i and
    s_l sqrt(n sum_i kappa_i^2).

    Args:
        model: a Sequential, nested or not, of Linear, Conv and ConvTranspose layers with zero padding, activations
            and other modules with a known constant (pooling, BatchNorm in eval mode, Dropout, Flatten, Softmax, ...).
            Anything else is a ValueError that names it.
        kappa: as in `clip_weights`, or a clipper, whose own bounds and kappas are then taken; None leaves `prior` out.
        bounds: as in `clip_weights`, unless a clipper is given; `init` measures the weights as they are now.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> for weight in (model[0].weight, model[2].weight):
        ...     _ = nn.init.constant_(weight, 0.25)
        >>> print(lipschitz(model, kappa=1.0))
                 now, p=1  now, p=2  now, p=inf  prior, p=1  prior, p=2  prior, p=inf
        0        0.75      0.866     1           1.5         1.732       2
        1        1         1         1           1           1           1
        2        0.25      0.433     0.75        0.5774      1           1.732
        network  0.1875    0.375     0.75        0.866       1.732       3.464
    """
    chain = list(_chain(model))
    sides = None if kappa is None else _sides(model, kappa, bounds)
    layers = {name: _bound(name, module, kind, sides) for name, module, kind in chain}
    now = _product([layer.now for layer in layers.values()])
    prior = None if kappa is None else _product([layer.prior for layer in layers.values() if layer.prior is not None])
    return Lipschitz(now, prior, {name or type(unwrap(model)).__name__: layer for name, layer in layers.items()})


@torch.no_grad()
def update_bound(model: nn.Module, kappa: Kappa | Clipper, x: Tensor | float, *, bounds: Rule = "fan_in") -> float:
    """How far the output can move, in the 1-norm, between any two settings of the weights and biases in the box.

    The paper's corollary in a form that holds: for a fully connected network, with layers of m_l units and
    activations that are 1-Lipschitz and 0 at 0,
        sum_l (prod_{j>l} kappa s_j m_j) * 2 kappa s_l m_l * (norm_1(h_{l-1}) + 1),
        norm_1(h_0) = norm_1(x),  norm_1(h_l) <= kappa s_l m_l (norm_1(h_{l-1}) + 1),
    where a layer without a bias has no "+ 1", and one whose bias has its own bound b_l has "+ b_l / s_l" for it. The
    triangle inequality alone gives 2 norm_1(h_L) for the same change, which is never more.

    Args:
        model: a Sequential, nested or not, of Linear and such activations (ReLU, Tanh, ..., also Flatten and Dropout
            in eval mode). Anything else, and a Linear that is not clipped, is a ValueError that names it.
        kappa: as in `clip_weights`, or a clipper, whose own bounds and kappas are then taken.
        x: a batch of inputs, of which the one with the largest 1-norm counts; or that 1-norm.
        bounds: as in `clip_weights`.

    Examples:
        >>> update = update_bound(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)), 1.0, x=2.0)
        >>> round(update, 6)  # 2 * 1.5 * (2 + 1) / sqrt(3) + 2 / sqrt(3) * 1.5 * (2 + 1)
        10.392305
    """
    chain = list(_chain(model))
    sides = _sides(model, kappa, bounds)
    width = next((module.in_features for _, module, kind in chain if kind is nn.Linear), None)
    norm = _largest_norm(x, width)
    change = 0.0
    for name, module, kind in chain:
        if kind is nn.Linear:
            if module.in_features != width:
                raise _refusal(name, module, f"it takes {module.in_features} features, but {width} come in")
            width = module.out_features
            gain, offset = (_most_added(name, module, local, sides) for local in ("weight", "bias"))
            change = gain * change + 2 * (gain * norm + offset)
            norm = gain * norm + offset
        elif not _contracts_to_zero(module, kind):
            raise _refusal(name, module, "expected a Linear, or an activation that is 1-Lipschitz and 0 at 0")
    return _up(change, 8 * len(chain))


Link = tuple[str, Any, type[nn.Module]]  # dotted name, module, the known type whose forward pass it runs


def _chain(model: nn.Module, name: str = "") -> Iterator[Link]:
    """The modules that `model` applies one after the other; one that comes again counts again."""
    model = unwrap(model)
    kind = _kind(model)
    if kind is nn.Sequential:
        for key, child in model._modules.items():
            if child is not None:
                yield from _chain(child, f"{name}.{key}" if name else key)
    elif kind is None:
        raise _refusal(
            name,
            model,
            "no Lipschitz constant is known for it; expected a Sequential of Linear, Conv, pooling, "
            "BatchNorm in eval mode, and activations with a known constant",
        )
    else:
        yield name, model, kind


def _kind(module: nn.Module) -> type[nn.Module] | None:
    """The nearest known type of the module, unless it computes something else than that type does."""
    cls = type(module)
    kind = next((base for base in cls.__mro__ if base in _KNOWN), None)
    same = all(getattr(cls, method, None) is getattr(kind, method, None) for method in _COMPUTES)
    return kind if same and "forward" not in vars(module) else None


def _refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    return ValueError(f"{name or 'model'} ({type(module).__name__}): {reason}")


Side = float | Tensor
"""kappa s_l, or one for each unit, as a tensor that broadcasts against the parameter."""

Sides = dict[int, Side]
"""The id of a clipped parameter -> its side."""


def _sides(model: nn.Module, kappa: Kappa | Clipper, rule: Rule) -> Sides:
    """Of every clipped parameter. Those behind a reparametrised weight do not bound it: they are left out."""
    if isinstance(kappa, Clipper):
        return {id(tensor): side for tensor, side in kappa.sides().items()}
    number, ranges = read_kappa(kappa)
    check_number("kappa", number)
    behind = [
        (f"{prefix}.{local}" if prefix else local).replace("_orig_mod.", "")
        for prefix, layer in unwrap(model).named_modules()
        for local, tensor in layer._parameters.items()
        if tensor is not None and is_reparametrised(layer)
    ]
    tensors = {id(tensor): tensor for tensor in named_tensors(model).values()}
    resolved = bounds_by_tensor(model, rule, exclude=behind)
    resolved = with_ranges(model, resolved, ranges, find_output_names(model, ranges), tensors)
    clipped = {key: one.bound for key, one in resolved.items() if one.bound.s is not None}
    return {key: exact_limits(number, bound, tensors[key]) for key, bound in clipped.items()}


def _bound(name: str, module: Any, kind: type[nn.Module], sides: Sides | None) -> Lipschitz:
    """The bounds of one module."""
    if kind in _CONSTANTS:
        constant = _CONSTANTS[kind](module)
        if isinstance(constant, str):
            raise _refusal(name, module, constant)
        now = _norms(*constant) if isinstance(constant, tuple) else _same(constant)
        return Lipschitz(now, None if sides is None else now)
    weight = _weight(name, module)
    side = None if sides is None else _side(module, "weight", sides)
    if kind in _LINEAR:
        return _linear_bound(name, module, kind, weight, side)
    if kind is nn.PReLU:
        return Lipschitz(_same(max(1.0, _largest(weight))), None if side is None else _same(max(1.0, _most(side))))
    return _batch_norm_bound(name, module, weight, side)


def _side(layer: nn.Module, local: str, sides: Sides) -> Side:
    """kappa s of one of the layer's tensors; infinite if it is not clipped."""
    return sides.get(id(layer._parameters.get(local)), math.inf)


@dataclass(frozen=True)
class _Map:
    """How a weight of shape (out, in/groups, *kernel) is applied; for a transposed one, (in, out/groups, *kernel)."""

    groups: int = 1
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    transposed: bool = False


def _linear_bound(name: str, layer: Any, kind: type[nn.Module], weight: Tensor, side: Side | None) -> Lipschitz:
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        raise _refusal(name, layer, f"padding_mode: got {layer.padding_mode!r}, expected 'zeros'")
    how = _Map() if kind is nn.Linear else _Map(layer.groups, layer.stride, layer.dilation, layer.transposed)
    now = _norms(*_sums(weight, how), _spectral(weight, how))
    if side is None:
        return Lipschitz(now)
    # No weight in the box has larger sums than its corner. Adding these up in the same order, rather than counting
    # them, keeps `now` from passing `prior` by a rounding error.
    corner = torch.as_tensor(side, dtype=weight.dtype).expand_as(weight).contiguous()
    one, infinity = _sums(corner, how)
    # The Frobenius norm bounds the spectral norm of a matrix. For one kappa, Schur's bound is the same.
    two = _up(float(corner.norm()), corner.numel()) if kind is nn.Linear and isinstance(side, Tensor) else math.inf
    return Lipschitz(now, _norms(one, infinity, two))


def _most(side: Side) -> float:
    """The largest side of any unit."""
    return float(side.max()) if isinstance(side, Tensor) else side


def _batch_norm_bound(name: str, layer: Any, scale: Tensor, side: Side | None) -> Lipschitz:
    """max_c |scale_c| / sqrt(var_c + eps); beforehand, the running variance may be anything from 0 on."""
    if layer.training or layer.running_var is None:
        raise _refusal(
            name, layer, "it normalises by the batch's own statistics; expected eval mode, with running ones"
        )
    if not layer.affine:
        side = None if side is None else 1.0
    deviation = (layer.running_var.detach().cpu().double() + layer.eps).sqrt()
    if not (deviation > 0).all():
        raise _refusal(name, layer, "expected a running variance of more than 0 everywhere")
    now = _same(_up(_largest(scale / deviation)))
    if side is None:
        return Lipschitz(now)
    return Lipschitz(now, _same(_up(_most(side) / math.sqrt(layer.eps)) if layer.eps > 0 else math.inf))


def _weight(name: str, layer: Any) -> Tensor:
    """The weight that the next forward pass uses, in float64; ones where a layer has none."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, REPARAMETRISING_HOOKS):  # until it runs, layer.weight is that of the last forward pass
            hook(layer, ())
    weight = layer.weight
    if weight is None:
        return torch.ones((), dtype=torch.float64)
    if is_lazy(weight):
        raise _refusal(name, layer, "a lazy layer without a shape yet; run one batch through the model first")
    if not weight.is_floating_point():
        raise _refusal(name, layer, f"weight: got dtype {weight.dtype}, expected real numbers")
    if not weight.isfinite().all():
        raise _refusal(name, layer, "weight: got entries that are not finite, expected finite ones")
    full: Tensor = weight.detach().cpu().double().contiguous()
    return full


def _sums(weight: Tensor, how: _Map) -> tuple[float, float]:
    """norm_1 and norm_inf, rounded up: the largest sum of |weight| over the outputs that read one input entry, and
    over the input entries that one output reads.
    """
    if not weight.numel():
        return 0.0, 0.0
    size = weight.abs()
    columns = size.reshape(how.groups, -1, *size.shape[1:]).sum(1)
    one = _up(_largest(_sum_by_residue(columns, how.stride, how.dilation)), size.numel())
    infinity = _up(_largest(size.flatten(1).sum(1)), size.numel())
    # A transposed convolution is the adjoint of the convolution with the same weight.
    return (infinity, one) if how.transposed else (one, infinity)


def _spectral(weight: Tensor, how: _Map) -> float:
    """norm_2 of a matrix, and of a convolution the smaller of two bounds on it, rounded up.

    Each is the largest over the groups of
        sqrt(sum_r (sum_t norm_2(K_t))^2), over the taps t that an input entry of residue r meets: each tap is a
            matrix applied to a shifted input, and inputs of different residues are disjoint;
        sqrt(overlap) norm_2(K), K as a matrix (out, in * kernel): it is applied to patches of the input, in which an
            entry appears `overlap` times at most.
    """
    if not weight.numel():
        return 0.0
    kernel = weight.shape[2:]
    blocks = weight.reshape(how.groups, -1, weight.shape[1], math.prod(kernel))
    by_tap = _spectral_norm(blocks.movedim(-1, 1)).reshape(how.groups, *kernel)
    by_residue = _sum_by_residue(by_tap, how.stride, how.dilation).reshape(how.groups, -1)
    taps = max(math.hypot(*group) for group in by_residue.tolist())
    overlap = _largest(_sum_by_residue(torch.ones(kernel, dtype=torch.float64), how.stride, how.dilation))
    patches = math.sqrt(overlap) * _largest(_spectral_norm(blocks.flatten(2))) if kernel else math.inf
    return _up(min(taps, patches), 2 * by_tap.numel())


def _spectral_norm(matrices: Tensor) -> Tensor:
    """An upper bound on the largest singular value of each matrix; (..., m, n) -> (...).

    Iterations on a vector come from below. LAPACK's singular values are those of a matrix that differs by a few
    m n u of the Frobenius norm, itself at most sqrt(min(m, n)) norm_2 (Higham, 2002, section 19.3): adding ten times
    that makes them an upper bound, still tight to 1e-6 at 2048 x 2048.
    """
    m, n = matrices.shape[-2:]
    norms: Tensor = torch.linalg.matrix_norm(matrices, 2)
    return norms * (1 + 10 * m * n * math.sqrt(min(m, n)) * sys.float_info.epsilon)


def _sum_by_residue(taps: Tensor, stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Sums over the taps that one input entry meets, for each kind of entry; (..., *kernel) -> (..., *residues).

    Output o reads input o * stride + t * dilation at tap t: an entry meets the taps of one residue mod stride.
    """
    for dim, (step, spread) in enumerate(zip(stride, dilation, strict=True), start=taps.dim() - len(stride)):
        residues = torch.arange(taps.shape[dim]) * spread % step
        sums = torch.zeros(*taps.shape[:dim], step, *taps.shape[dim + 1 :], dtype=taps.dtype)
        taps = sums.index_add(dim, residues, taps)
    return taps


def _norms(one: float, infinity: float, spectral: float = math.inf) -> Norms:
    """norm_2 is at most sqrt(norm_1 norm_inf), the Schur test."""
    schur = min(_up(math.sqrt(one) * math.sqrt(infinity)), max(one, infinity))
    return {1: one, 2: min(schur, spectral), math.inf: infinity}


def _same(constant: float) -> Norms:
    return _norms(constant, constant)


def _product(factors: Iterable[Norms]) -> Norms:
    """The product for each p, rounded up. A factor of 0 makes it 0, whatever the others."""
    products = _same(1.0)
    for norms in factors:
        for p, norm in norms.items():
            if 0 in (norm, products[p]):
                products[p] = 0.0
            elif 1 in (norm, products[p]):
                products[p] *= norm
            else:
                products[p] = math.nextafter(products[p] * norm, math.inf)
    return products


def _up(value: float, roundings: int = 8) -> float:
    """`value`, enlarged by more than that many roundings of non-negative terms can have taken away."""
    return value * (1 + (roundings + 4) * sys.float_info.epsilon)


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _most_added(name: str, layer: Any, local: str, sides: Sides) -> float:
    """The largest 1-norm of a column of a Linear's weight, or of its bias; 0 for a bias that it does not have."""
    if local == "bias" and layer.bias is None:
        return 0.0
    side = _side(layer, local, sides)
    if not isinstance(side, Tensor):
        if side == math.inf:
            raise _refusal(name, layer, f"its {local} is not clipped, so nothing bounds its change")
        return float(layer.out_features * side)
    return _up(float(side.expand_as(getattr(layer, local)).sum(0).max()), layer.out_features)


def _largest_norm(x: Tensor | float, width: int | None) -> float:
    """The largest 1-norm of the vectors that the first Linear meets."""
    if not isinstance(x, Tensor):
        return check_number("x", x, zero=True)
    if width is None:
        return 0.0
    shape = tuple(x.shape)
    if not x.numel() or all(math.prod(shape[i:]) != width for i in range(len(shape))):
        raise ValueError(f"x: got shape {shape}, expected one or more inputs of {width} features, or their 1-norm")
    norms = x.detach().cpu().double().abs().reshape(-1, width).sum(1)
    return check_number("x: largest 1-norm", _up(_largest(norms), width), zero=True)


def _contracts_to_zero(module: Any, kind: type[nn.Module]) -> bool:
    """Whether it is 1-Lipschitz, 0 at 0, and the same before and after an update."""
    if kind not in (*_ACTIVATIONS, *_DROPOUTS, *_RESHAPES):
        return False
    constant = _CONSTANTS[kind](module)
    if not isinstance(constant, (int, float)) or constant > 1:
        return False
    return kind not in _ACTIVATIONS or not module.forward(torch.zeros(1)).any()


def _is(constant: float) -> Constant:
    return lambda module: constant


def _softplus(module: nn.Softplus) -> float | str:
    # Where beta x passes the threshold, the output falls from softplus to x. From the usual 20 on, that is by less
    # than 2.1e-9 / beta, which counts as rounding.
    if module.beta > 0 and module.threshold >= 20:
        return 1.0
    return f"got beta={module.beta}, threshold={module.threshold}, expected beta > 0 and a threshold of at least 20"


def _dropout(module: nn.Dropout) -> float:
    """For any one mask."""
    if not module.training or module.p == 0:
        return 1.0
    return 0.0 if module.p == 1 else _up(1 / (1 - module.p))


def _celu(module: nn.CELU) -> float | str:
    return 1.0 if module.alpha > 0 else f"got alpha={module.alpha}, expected a positive number"


def _max_pool(dims: int, pool: Any) -> tuple[float, float] | str:
    if pool.return_indices:
        return "got return_indices=True, expected False"
    return _overlap(dims, pool, _each(pool.dilation, dims)), 1.0


def _avg_pool(dims: int, pool: Any) -> tuple[float, float]:
    overlap, size = _overlap(dims, pool, (1,) * dims), math.prod(_each(pool.kernel_size, dims))
    if divisor := getattr(pool, "divisor_override", None):
        return _up(overlap / abs(divisor)), _up(size / abs(divisor))
    # A window over the edge may divide by the entries inside alone, which may be a single one.
    whole = not pool.ceil_mode and (pool.count_include_pad or not any(_each(pool.padding, dims)))
    return _up(overlap / size) if whole else overlap, 1.0


def _adaptive_pool(pool: Any) -> float | str:
    if getattr(pool, "return_indices", False):
        return "got return_indices=True, expected False"
    sizes = pool.output_size if isinstance(pool.output_size, (tuple, list)) else (pool.output_size,)
    return 1.0 if set(sizes) <= {1, None} else f"output_size: got {pool.output_size}, expected 1"


def _overlap(dims: int, pool: Any, dilation: Sequence[int]) -> float:
    """In how many windows one entry can be."""
    window = torch.ones(_each(pool.kernel_size, dims), dtype=torch.float64)
    return _largest(_sum_by_residue(window, _each(pool.stride, dims), dilation))


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _by_dims(rule: Callable[[int, Any], Any], *kinds: type[nn.Module]) -> dict[type[nn.Module], Constant]:
    return {kind: partial(rule, dims) for dims, kind in enumerate(kinds, start=1)}


# The largest absolute slope, rounded up.
_ACTIVATIONS: dict[type[nn.Module], Constant] = {
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh), _is(1.0)),
    **dict.fromkeys((nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.LogSigmoid), _is(1.0)),
    nn.Sigmoid: _is(1 / 4),
    nn.Hardsigmoid: _is(0.16666666666666669),
    nn.Hardswish: _is(3 / 2),
    nn.LeakyReLU: lambda module: max(1.0, abs(module.negative_slope)),
    nn.ELU: lambda module: max(1.0, abs(module.alpha)),
    nn.CELU: _celu,
    nn.SELU: _is(1.758099340848),
    nn.Softplus: _softplus,
    nn.GELU: lambda module: 1.128904145186 if module.approximate == "none" else 1.128993068659,
    nn.SiLU: _is(1.099839320129),
    nn.Mish: _is(1.088498161252),
}

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_RESHAPES = (nn.Flatten, nn.Unflatten)

_CONSTANTS: dict[type[nn.Module], Constant] = {
    **_ACTIVATIONS,
    **dict.fromkeys(_DROPOUTS, _dropout),
    **dict.fromkeys(_RESHAPES, _is(1.0)),
    # The slopes are diag(y) - y y^T, whose rows and columns sum to 2 y (1 - y) in absolute value.
    **dict.fromkeys((nn.Softmax, nn.Softmax2d), _is(1 / 2)),
    **_by_dims(_max_pool, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    **_by_dims(_avg_pool, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _adaptive_pool),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _adaptive_pool),
}

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LINEAR = (nn.Linear, *_CONVOLUTIONS)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_KNOWN = {nn.Sequential, nn.PReLU, *_CONSTANTS, *_LINEAR, *_BATCH_NORMS}
_COMPUTES = ("forward", "_conv_forward", "__call__")
