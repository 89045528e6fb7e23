"""Theorem 1 and Corollary 1 as numbers: Lipschitz bounds of a network, and a bound on the change of its output.

Both are certified upper bounds for the network in exact arithmetic: sums and singular values are computed in float64
and rounded up, and nothing is estimated from samples. Module hooks are assumed not to change inputs or outputs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from weightclip._box import exact_limits
from weightclip._layer_ranges import find_output_names, with_ranges
from weightclip._lipschitz_constants import (
    ACTIVATIONS,
    CONSTANTS,
    DROPOUTS,
    RESHAPES,
    largest,
    round_up,
    sum_by_residue,
)
from weightclip._ranges import Kappa, read_kappa
from weightclip._renamed import find_old_name
from weightclip._text import format_table
from weightclip._torch_private import COMPILED_PREFIX, CONV_FORWARD, forward_pre_hooks, own_modules, own_parameters
from weightclip._validation import check_number
from weightclip.bounds import REPARAMETRIZING_HOOKS, Rule, bounds_by_tensor, is_reparametrized, named_tensors, unwrap
from weightclip.clipping import Clipper

Norms = dict[float, float]
"""p -> bound, for p = 1, 2 and infinity."""


@dataclass(frozen=True)
class LipschitzBounds:
    """Upper bounds on a Lipschitz constant: norm_p(f(x) - f(y)) <= bound[p] * norm_p(x - y) for all x and y.

    `now` holds for the current weights, `prior` for all weights that clipping at kappa allows (None without a kappa,
    infinite if a weight is not clipped). `layers` has the bounds of each module by dotted name; the bounds of the
    network are their product.
    """

    now: Norms
    prior: Norms | None = None
    layers: dict[str, LipschitzBounds] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        kinds = ("now",) if self.prior is None else ("now", "prior")
        rows = [("", *(f"{kind}, p={p:g}" for kind in kinds for p in self.now))]
        for name, bounds in (*self.layers.items(), ("network", self)):
            rows.append((name, *(f"{bound:.4g}" for kind in kinds for bound in getattr(bounds, kind).values())))
        return "\n".join(format_table(rows))


@torch.no_grad()
def lipschitz_bounds(
    model: nn.Module, kappa: Kappa | Clipper | None = None, *, bounds: Rule = "fan_in"
) -> LipschitzBounds:
    """Upper bounds on the Lipschitz constant of `model` for p = 1, 2 and infinity: the product over its modules.

    `now`, for a weight W [m, n]:
        norm_1(W) = max_j sum_i |W_ij|,  norm_inf(W) = max_i sum_j |W_ij|,  norm_2(W) its largest singular value.
    `prior`, for all W with |W_ij| <= kappa s_l: at most kappa s_l m, kappa s_l n and kappa s_l sqrt(m n); p = 1 gives
    the paper's kappa^L prod_l s_l m_l. For a convolution with weight [out, in/groups, *kernel], n counts the
    in/groups * kernel entries that an output reads, and m the out/groups * kernel outputs that read an entry (fewer
    with a stride). These bounds hold for inputs of any size, and norm_2 is an upper bound. With a range kappa_i per
    unit (`graded`), a Linear layer has s_l sum_i kappa_i, s_l n max_i kappa_i and s_l sqrt(n sum_i kappa_i^2).

    Args:
        model: a Sequential, nested or not, of Linear, Conv and ConvTranspose layers with zero padding, activations
            and other modules with a known constant (pooling, BatchNorm in eval mode, Dropout, Flatten, Softmax, ...).
            Any other module raises a ValueError that names it.
        kappa: as in `clip_weights`, or a clipper, whose bounds and kappas are used; None omits `prior`.
        bounds: as in `clip_weights`, ignored with a clipper; `init` measures the current weights.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> for weight in (model[0].weight, model[2].weight):
        ...     _ = nn.init.constant_(weight, 0.25)
        >>> print(lipschitz_bounds(model, kappa=1.0))
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
    return LipschitzBounds(now, prior, {name or type(unwrap(model)).__name__: layer for name, layer in layers.items()})


@torch.no_grad()
def output_change_bound(
    model: nn.Module, kappa: Kappa | Clipper, x: Tensor | float, *, bounds: Rule = "fan_in"
) -> float:
    """Upper bound on the change of the output, in the 1-norm, between any two sets of weights and biases in the box.

    A corrected form of the paper's corollary. For a fully connected network with layers of m_l units and activations
    that are 1-Lipschitz and 0 at 0, the bound is
        sum_l (prod_{j>l} kappa s_j m_j) * 2 kappa s_l m_l * (norm_1(h_{l-1}) + 1),
        norm_1(h_0) = norm_1(x),  norm_1(h_l) <= kappa s_l m_l (norm_1(h_{l-1}) + 1),
    where "+ 1" is absent in a layer without a bias, and "+ b_l / s_l" in a layer whose bias has another bound b_l. The
    triangle inequality bounds the same change by 2 norm_1(h_L), which is never larger.

    Args:
        model: a Sequential, nested or not, of Linear and such activations (ReLU, Tanh, ..., also Flatten and Dropout
            in eval mode). Any other module, and a Linear that is not clipped, raises a ValueError that names it.
        kappa: as in `clip_weights`, or a clipper, whose bounds and kappas are used.
        x: a batch of inputs [..., n], whose largest 1-norm is used; or that 1-norm.
        bounds: as in `clip_weights`.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
        >>> change = output_change_bound(model, 1.0, x=2.0)
        >>> round(change, 6)  # 2 * 1.5 * (2 + 1) / sqrt(3) + 2 / sqrt(3) * 1.5 * (2 + 1)
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
                raise _error(name, module, f"got {width} input features, expected {module.in_features}")
            width = module.out_features
            gain, offset = (_largest_column(name, module, local, sides) for local in ("weight", "bias"))
            change = gain * change + 2 * (gain * norm + offset)
            norm = gain * norm + offset
        elif not _contracts_to_zero(module, kind):
            raise _error(name, module, "expected a Linear, or an activation that is 1-Lipschitz and 0 at 0")
    return round_up(change, 8 * len(chain))


Link = tuple[str, Any, type[nn.Module]]  # dotted name, module, the known type whose forward pass it runs


def _chain(model: nn.Module, name: str = "") -> Iterator[Link]:
    """The modules that `model` applies in sequence; a module that is applied twice counts twice."""
    model = unwrap(model)
    kind = _kind(model)
    if kind is nn.Sequential:
        for key, child in own_modules(model).items():
            if child is not None:
                yield from _chain(child, f"{name}.{key}" if name else key)
    elif kind is None:
        expected = (
            "a Sequential of Linear, Conv, pooling, BatchNorm in eval mode, and activations with a known constant"
        )
        raise _error(name, model, f"it has no known Lipschitz constant; expected {expected}")
    else:
        yield name, model, kind


def _kind(module: nn.Module) -> type[nn.Module] | None:
    """The nearest known base class of the module, or None if the module overrides its computation."""
    cls = type(module)
    kind = next((base for base in cls.__mro__ if base in _KNOWN), None)
    same = all(getattr(cls, method, None) is getattr(kind, method, None) for method in _COMPUTES)
    return kind if same and "forward" not in vars(module) else None


def _error(name: str, module: nn.Module, reason: str) -> ValueError:
    return ValueError(f"{name or 'model'} ({type(module).__name__}): {reason}")


Side = float | Tensor
"""kappa s_l: a number, or one number per unit in a tensor that broadcasts against the parameter."""

Sides = dict[int, Side]
"""id of a clipped parameter -> kappa s_l."""


def _sides(model: nn.Module, kappa: Kappa | Clipper, rule: Rule) -> Sides:
    """kappa s_l of every clipped parameter, without the parameters of reparametrized layers."""
    if isinstance(kappa, Clipper):
        return {id(tensor): side for tensor, side in kappa.sides().items()}
    number, ranges = read_kappa(kappa)
    check_number("kappa", number)
    behind = [
        (f"{prefix}.{local}" if prefix else local).replace(COMPILED_PREFIX, "")
        for prefix, layer in unwrap(model).named_modules()
        for local, tensor in own_parameters(layer).items()
        if tensor is not None and is_reparametrized(layer)
    ]
    tensors = {id(tensor): tensor for tensor in named_tensors(model).values()}
    resolved = bounds_by_tensor(model, rule, exclude=behind)
    resolved = {key: one for key, one in resolved.items() if one.name not in behind}
    resolved = with_ranges(model, resolved, ranges, find_output_names(model, ranges), tensors)
    clipped = {key: one.bound for key, one in resolved.items() if one.bound.s is not None}
    return {key: exact_limits(number, bound, tensors[key]) for key, bound in clipped.items()}


def _bound(name: str, module: Any, kind: type[nn.Module], sides: Sides | None) -> LipschitzBounds:
    """The bounds of one module."""
    if kind in CONSTANTS:
        constant = CONSTANTS[kind](module)
        if isinstance(constant, str):
            raise _error(name, module, constant)
        now = _norms(*constant) if isinstance(constant, tuple) else _same(constant)
        return LipschitzBounds(now, None if sides is None else now)
    weight = _weight(name, module)
    side = None if sides is None else _side(module, "weight", sides)
    if kind in _LINEAR:
        return _linear_bound(name, module, kind, weight, side)
    if kind is nn.PReLU:
        return LipschitzBounds(_same(max(1.0, largest(weight))), None if side is None else _same(max(1.0, _most(side))))
    return _batch_norm_bound(name, module, weight, side)


def _side(layer: nn.Module, local: str, sides: Sides) -> Side:
    """kappa s_l of one tensor of the layer; infinite if it is not clipped."""
    return sides.get(id(own_parameters(layer).get(local)), math.inf)


@dataclass(frozen=True)
class _Map:
    """Application of a weight [out, in/groups, *kernel], or [in, out/groups, *kernel] if transposed."""

    groups: int = 1
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    transposed: bool = False


def _linear_bound(name: str, layer: Any, kind: type[nn.Module], weight: Tensor, side: Side | None) -> LipschitzBounds:
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        raise _error(name, layer, f"padding_mode: got {layer.padding_mode!r}, expected 'zeros'")
    how = _Map() if kind is nn.Linear else _Map(layer.groups, layer.stride, layer.dilation, layer.transposed)
    now = _norms(*_sums(weight, how), _spectral(weight, how))
    if side is None:
        return LipschitzBounds(now)
    # The corner of the box has the largest sums. Adding them up in the same order as for `now` keeps `now` from
    # exceeding `prior` by a rounding error.
    corner = torch.as_tensor(side, dtype=weight.dtype).expand_as(weight).contiguous()
    one, infinity = _sums(corner, how)
    # The Frobenius norm bounds the spectral norm. For a single kappa, it equals the Schur bound.
    two = round_up(float(corner.norm()), corner.numel()) if kind is nn.Linear and isinstance(side, Tensor) else math.inf
    return LipschitzBounds(now, _norms(one, infinity, two))


def _most(side: Side) -> float:
    """The largest kappa s_l of any unit."""
    return float(side.max()) if isinstance(side, Tensor) else side


def _batch_norm_bound(name: str, layer: Any, scale: Tensor, side: Side | None) -> LipschitzBounds:
    """max_c |scale_c| / sqrt(var_c + eps); for `prior`, the running variance may be any number of at least 0."""
    if layer.training or layer.running_var is None:
        raise _error(name, layer, "it normalizes by batch statistics; expected eval mode with running statistics")
    if not layer.affine:
        side = None if side is None else 1.0
    deviation = (layer.running_var.detach().cpu().double() + layer.eps).sqrt()
    if not (deviation > 0).all():
        raise _error(name, layer, "expected a positive running variance")
    now = _same(round_up(largest(scale / deviation)))
    if side is None:
        return LipschitzBounds(now)
    return LipschitzBounds(now, _same(round_up(_most(side) / math.sqrt(layer.eps)) if layer.eps > 0 else math.inf))


def _weight(name: str, layer: Any) -> Tensor:
    """The weight that the next forward pass uses, in float64; 1 for a layer without weight."""
    for hook in forward_pre_hooks(layer).values():
        if isinstance(hook, REPARAMETRIZING_HOOKS):  # layer.weight is stale until the hook runs
            hook(layer, ())
    weight = layer.weight
    if weight is None:
        return torch.ones((), dtype=torch.float64)
    if is_lazy(weight):
        raise _error(name, layer, "lazy layer without a shape; run one batch through the model first")
    if not weight.is_floating_point():
        raise _error(name, layer, f"weight: got dtype {weight.dtype}, expected real numbers")
    if not weight.isfinite().all():
        raise _error(name, layer, "weight: got non-finite entries, expected finite entries")
    full: Tensor = weight.detach().cpu().double().contiguous()
    return full


def _sums(weight: Tensor, how: _Map) -> tuple[float, float]:
    """norm_1 and norm_inf, rounded up.

    They are the largest sum of |weight| over the outputs that read one input entry, and over the input entries that
    one output reads.
    """
    if not weight.numel():
        return 0.0, 0.0
    size = weight.abs()
    columns = size.reshape(how.groups, -1, *size.shape[1:]).sum(1)
    one = round_up(largest(sum_by_residue(columns, how.stride, how.dilation)), size.numel())
    infinity = round_up(largest(size.flatten(1).sum(1)), size.numel())
    # A transposed convolution is the adjoint of the convolution with the same weight.
    return (infinity, one) if how.transposed else (one, infinity)


def _spectral(weight: Tensor, how: _Map) -> float:
    """norm_2 of a matrix, or the smaller of two bounds on that of a convolution, rounded up.

    Each bound is the largest over the groups of
        sqrt(sum_r (sum_t norm_2(K_t))^2) over the taps t that read an input entry of residue r: each tap is a matrix
            applied to a shifted input, and inputs of different residues are disjoint;
        sqrt(overlap) norm_2(K) with K as a matrix [out, in * kernel], applied to patches of the input that contain an
            entry at most `overlap` times.
    """
    if not weight.numel():
        return 0.0
    kernel = weight.shape[2:]
    blocks = weight.reshape(how.groups, -1, weight.shape[1], math.prod(kernel))
    by_tap = _spectral_norm(blocks.movedim(-1, 1)).reshape(how.groups, *kernel)
    by_residue = sum_by_residue(by_tap, how.stride, how.dilation).reshape(how.groups, -1)
    taps = max(math.hypot(*group) for group in by_residue.tolist())
    overlap = largest(sum_by_residue(torch.ones(kernel, dtype=torch.float64), how.stride, how.dilation))
    patches = math.sqrt(overlap) * largest(_spectral_norm(blocks.flatten(2))) if kernel else math.inf
    return round_up(min(taps, patches), 2 * by_tap.numel())


def _spectral_norm(matrices: Tensor) -> Tensor:
    """Upper bound on the largest singular value of each matrix, [..., m, n] -> [...].

    Power iteration gives lower bounds. LAPACK's singular values are those of a matrix that differs by a few m n u of
    the Frobenius norm, which is at most sqrt(min(m, n)) norm_2 (Higham, 2002, section 19.3). Adding ten times that
    gives an upper bound, tight to 1e-6 at 2048 x 2048.
    """
    m, n = matrices.shape[-2:]
    norms: Tensor = torch.linalg.matrix_norm(matrices, 2)
    return norms * (1 + 10 * m * n * math.sqrt(min(m, n)) * sys.float_info.epsilon)


def _norms(one: float, infinity: float, spectral: float = math.inf) -> Norms:
    """Bounds for all p; norm_2 <= sqrt(norm_1 norm_inf) by the Schur test."""
    schur = min(round_up(math.sqrt(one) * math.sqrt(infinity)), max(one, infinity))
    return {1: one, 2: min(schur, spectral), math.inf: infinity}


def _same(constant: float) -> Norms:
    return _norms(constant, constant)


def _product(factors: Iterable[Norms]) -> Norms:
    """The product for each p, rounded up; a factor of 0 gives 0, even if another is infinite."""
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


def _largest_column(name: str, layer: Any, local: str, sides: Sides) -> float:
    """The largest 1-norm of a column of a Linear's weight in the box, or of its bias; 0 without a bias."""
    if local == "bias" and layer.bias is None:
        return 0.0
    side = _side(layer, local, sides)
    if not isinstance(side, Tensor):
        if side == math.inf:
            raise _error(name, layer, f"its {local} is not clipped, so its change is unbounded")
        return float(layer.out_features * side)
    return round_up(float(side.expand_as(getattr(layer, local)).sum(0).max()), layer.out_features)


def _largest_norm(x: Tensor | float, width: int | None) -> float:
    """The largest 1-norm of the input vectors of the first Linear."""
    if not isinstance(x, Tensor):
        return check_number("x", x, zero=True)
    if width is None:
        return 0.0
    shape = tuple(x.shape)
    if not x.numel() or all(math.prod(shape[i:]) != width for i in range(len(shape))):
        raise ValueError(f"x: got shape {shape}, expected a batch of inputs with {width} features, or their 1-norm")
    norms = x.detach().cpu().double().abs().reshape(-1, width).sum(1)
    return check_number("x: largest 1-norm", round_up(largest(norms), width), zero=True)


def _contracts_to_zero(module: Any, kind: type[nn.Module]) -> bool:
    """Whether the module is 1-Lipschitz, 0 at 0, and unchanged by an update."""
    if kind not in (*ACTIVATIONS, *DROPOUTS, *RESHAPES):
        return False
    constant = CONSTANTS[kind](module)
    if not isinstance(constant, (int, float)) or constant > 1:
        return False
    return kind not in ACTIVATIONS or not module.forward(torch.zeros(1)).any()


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LINEAR = (nn.Linear, *_CONVOLUTIONS)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_KNOWN = {nn.Sequential, nn.PReLU, *CONSTANTS, *_LINEAR, *_BATCH_NORMS}
_COMPUTES = ("forward", CONV_FORWARD, "__call__")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return find_old_name(__name__, name)
