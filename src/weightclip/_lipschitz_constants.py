"""Known Lipschitz constants of modules without weights, rounded up."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Constant = Callable[[Any], "float | tuple[float, float] | str"]
"""Module -> its Lipschitz constant for every p, or those for p = 1 and infinity, or the reason why it has none."""


def round_up(value: float, roundings: int = 8) -> float:
    """Enlarge `value` by more than the error of that many rounded operations on non-negative terms."""
    return value * (1 + (roundings + 4) * sys.float_info.epsilon)


def largest(values: Tensor) -> float:
    """Largest absolute value; 0 without entries."""
    return float(values.abs().max()) if values.numel() else 0.0


def sum_by_residue(taps: Tensor, stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Sums over the taps that read one input entry, for each residue, [..., *kernel] -> [..., *residues].

    Output o reads input o * stride + t * dilation at tap t, so an entry is read by the taps of one residue mod stride.
    """
    for dim, (step, spread) in enumerate(zip(stride, dilation, strict=True), start=taps.dim() - len(stride)):
        residues = torch.arange(taps.shape[dim]) * spread % step
        sums = torch.zeros(*taps.shape[:dim], step, *taps.shape[dim + 1 :], dtype=taps.dtype)
        taps = sums.index_add(dim, residues, taps)
    return taps


def _is(constant: float) -> Constant:
    return lambda module: constant


def _softplus(module: nn.Softplus) -> float | str:
    # At the threshold, the output drops from softplus to x. For a threshold of at least 20 the drop is less than
    # 2.1e-9 / beta, which is within rounding.
    if module.beta > 0 and module.threshold >= 20:
        return 1.0
    return f"got beta={module.beta}, threshold={module.threshold}, expected beta > 0 and a threshold of at least 20"


def _dropout(module: nn.Dropout) -> float:
    """The constant for any fixed mask."""
    if not module.training or module.p == 0:
        return 1.0
    return 0.0 if module.p == 1 else round_up(1 / (1 - module.p))


def _celu(module: nn.CELU) -> float | str:
    return 1.0 if module.alpha > 0 else f"got alpha={module.alpha}, expected a positive number"


def _max_pool(dims: int, pool: Any) -> tuple[float, float] | str:
    if pool.return_indices:
        return "got return_indices=True, expected False"
    return _overlap(dims, pool, _each(pool.dilation, dims)), 1.0


def _avg_pool(dims: int, pool: Any) -> tuple[float, float]:
    overlap, size = _overlap(dims, pool, (1,) * dims), math.prod(_each(pool.kernel_size, dims))
    if divisor := getattr(pool, "divisor_override", None):
        return round_up(overlap / abs(divisor)), round_up(size / abs(divisor))
    # A window over the edge may divide by the number of entries inside, which may be 1.
    whole = not pool.ceil_mode and (pool.count_include_pad or not any(_each(pool.padding, dims)))
    return round_up(overlap / size) if whole else overlap, 1.0


def _adaptive_pool(pool: Any) -> float | str:
    if getattr(pool, "return_indices", False):
        return "got return_indices=True, expected False"
    sizes = pool.output_size if isinstance(pool.output_size, (tuple, list)) else (pool.output_size,)
    return 1.0 if set(sizes) <= {1, None} else f"output_size: got {pool.output_size}, expected 1"


def _overlap(dims: int, pool: Any, dilation: Sequence[int]) -> float:
    """Largest number of windows that contain one entry."""
    window = torch.ones(_each(pool.kernel_size, dims), dtype=torch.float64)
    return largest(sum_by_residue(window, _each(pool.stride, dims), dilation))


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _by_dims(rule: Callable[[int, Any], Any], *kinds: type[nn.Module]) -> dict[type[nn.Module], Constant]:
    return {kind: partial(rule, dims) for dims, kind in enumerate(kinds, start=1)}


# The largest absolute slope, rounded up.
ACTIVATIONS: dict[type[nn.Module], Constant] = {
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

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
RESHAPES = (nn.Flatten, nn.Unflatten)

CONSTANTS: dict[type[nn.Module], Constant] = {
    **ACTIVATIONS,
    **dict.fromkeys(DROPOUTS, _dropout),
    **dict.fromkeys(RESHAPES, _is(1.0)),
    # The Jacobian is diag(y) - y y^T, whose rows and columns sum to 2 y (1 - y) in absolute value.
    **dict.fromkeys((nn.Softmax, nn.Softmax2d), _is(1 / 2)),
    **_by_dims(_max_pool, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    **_by_dims(_avg_pool, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _adaptive_pool),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _adaptive_pool),
}
