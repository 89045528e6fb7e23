"""What is measured while a network learns: plasticity, norms, activations and ranks. Pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

SATURATED = 0.95
"""A tanh unit whose output is at least that far from 0 is saturated."""

SMALLEST_LOSS = 1e-8
"""Losses below are taken for that large where plasticity divides by them."""


@torch.no_grad()
def sample_plasticity(before: Tensor, after: Tensor) -> Tensor:
    """max(1 - after / max(before, 1e-8), 0): the share of a sample's loss that the update on it removed.

    Losses of the same samples before and after the update, of one shape -> that shape. NaN stays NaN.

    Examples:
        >>> sample_plasticity(torch.tensor([2.0, 2.0, 0.0]), torch.tensor([0.5, 3.0, 0.0])).tolist()
        [0.75, 0.0, 1.0]
    """
    return (1 - after / before.clamp(min=SMALLEST_LOSS)).clamp(min=0)


def weight_matrices(model: nn.Module) -> list[Tensor]:
    """The parameters with two or more dimensions: weights without biases."""
    return [p.detach() for p in model.parameters() if p.ndim >= 2]


def gradient_matrices(model: nn.Module) -> list[Tensor]:
    """The gradients of the weight matrices, where they have one."""
    return [p.grad for p in model.parameters() if p.ndim >= 2 and p.grad is not None]


@torch.no_grad()
def l2_norm(tensors: Iterable[Tensor]) -> Tensor:
    """sqrt(sum of w^2 over all entries of all tensors), in float64: [...], [...], ... -> []."""
    return _total(tensor.square().sum() for tensor in tensors).sqrt()


@torch.no_grad()
def l1_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of |w| over all entries of all tensors, in float64: [...], [...], ... -> []."""
    return _total(tensor.abs().sum() for tensor in tensors)


@torch.no_grad()
def negative_share(pre_activations: Iterable[Tensor]) -> float:
    """The share of entries below 0, over all tensors; NaN where there are none."""
    return _share((tensor < 0, tensor) for tensor in pre_activations)


@torch.no_grad()
def saturated_share(outputs: Iterable[Tensor], beyond: float = SATURATED) -> float:
    """The share of tanh outputs with |h| >= 0.95 (or another `beyond`), over all tensors; NaN where there are none."""
    return _share((tensor.abs() >= beyond, tensor) for tensor in outputs)


@torch.no_grad()
def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(old || new) from actions of the old policy: the mean of (r - 1) - log r, which is never negative.

    log r [..., n], the logarithm of new / old probability of n actions -> [...].

    Examples:
        >>> approximate_kl(torch.tensor([0.5, -0.5]).log1p())  # doctest: +ELLIPSIS
        tensor(0.14...)
    """
    return (log_ratio.expm1() - log_ratio).mean(-1)


@torch.no_grad()
def singular_values(matrix: Tensor) -> Tensor:
    """The singular values in float64, the largest first: [m, n] -> [min(m, n)]. NaN if an entry is not finite.

    In float32 and below, as the roots of the eigenvalues of W W^T in float64, in a third of the time of a singular
    value decomposition. That squares the matrix, so a value is good to about 1e-8 of the largest: ten times finer than
    what float32 can tell apart.
    """
    if not matrix.isfinite().all():
        return torch.full((min(matrix.shape),), math.nan, dtype=torch.float64)
    wide = matrix.double() if matrix.shape[0] <= matrix.shape[1] else matrix.double().T
    if matrix.dtype == torch.float64:
        values: Tensor = torch.linalg.svdvals(wide)
    else:
        values = torch.linalg.eigvalsh(wide @ wide.T).clamp(min=0).sqrt().flip(0)
    return values


@torch.no_grad()
def rank(matrix: Tensor, values: Tensor | None = None) -> int:
    """How many singular values exceed max(m, n) eps sigma_max, with eps that of the matrix's dtype: [m, n] -> a count.

    This is the rank by the default tolerance of `torch.linalg.matrix_rank`. `values` are the matrix's singular values
    where they are known already.

    Examples:
        >>> rank(torch.outer(torch.ones(3), torch.arange(4.0)))
        1
    """
    values = singular_values(matrix) if values is None else values
    if values.isnan().any():
        raise ValueError("matrix: got entries that are not finite, which have no rank")
    if not values.numel():
        return 0
    tolerance = max(matrix.shape) * torch.finfo(matrix.dtype).eps * values.max()
    return int((values > tolerance).sum())


def _total(sums: Iterable[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for part in sums:
        total = total + part.double().cpu()
    return total


def _share(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    counted = [(int(chosen.sum()), tensor.numel()) for chosen, tensor in parts]
    entries = sum(number for _, number in counted)
    return sum(count for count, _ in counted) / entries if entries else math.nan
