"""Diagnostics of learning networks: plasticity, norms, activations, ranks and gradient covariance. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from weightclip._renamed import find_old_name
from weightclip._torch_private import BatchNorm, Dropout

SATURATED = 0.95
"""A tanh unit is saturated if its absolute output is at least this large."""

SMALLEST_LOSS = 1e-8
"""Lower limit of the loss by which plasticity divides."""


@torch.no_grad()
def sample_plasticity(before: Tensor, after: Tensor) -> Tensor:
    """Fraction of each sample's loss that the update on it removed: max(1 - after / max(before, 1e-8), 0).

    Losses of the same samples before and after the update, [...] and [...] -> [...]. NaN stays NaN.

    Examples:
        >>> sample_plasticity(torch.tensor([2.0, 2.0, 0.0]), torch.tensor([0.5, 3.0, 0.0])).tolist()
        [0.75, 0.0, 1.0]
    """
    return (1 - after / before.clamp(min=SMALLEST_LOSS)).clamp(min=0)


def weight_matrices(model: nn.Module) -> list[Tensor]:
    """The parameters with two or more dimensions, which excludes biases."""
    return [p.detach() for p in model.parameters() if p.ndim >= 2]


def gradient_matrices(model: nn.Module) -> list[Tensor]:
    """The gradients of the weight matrices that have one."""
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
def negative_fraction(pre_activations: Iterable[Tensor]) -> float:
    """Fraction of entries below 0 over all tensors, [...], [...], ... -> a number; NaN without entries."""
    return _fraction((tensor < 0, tensor) for tensor in pre_activations)


@torch.no_grad()
def saturated_fraction(outputs: Iterable[Tensor], beyond: float = SATURATED) -> float:
    """Fraction of tanh outputs with |h| >= `beyond` over all tensors, [...], ... -> a number; NaN without entries."""
    return _fraction((tensor.abs() >= beyond, tensor) for tensor in outputs)


@torch.no_grad()
def dormant_fraction(outputs: Iterable[Tensor], tau: float = 0.025) -> float:
    """Fraction of dormant units (Sokar et al., 2023) over all layers; NaN without units.

    Unit i is dormant if mean_n |h_ni| <= tau * mean_j mean_n |h_nj|, with j over the units of its layer. Outputs are
    [n, units], or [n, channels, height, width] for a convolution, whose units are its channels.

    Examples:
        >>> dormant_fraction([torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.01, 0.0]])])
        0.3333333333333333
    """

    def dormant(tensor: Tensor) -> Tensor:
        activity = tensor.abs().transpose(0, 1).flatten(1).mean(1)
        return activity <= tau * activity.mean()

    return _fraction((found, found) for found in map(dormant, outputs))


@torch.no_grad()
def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(old || new) from actions of the old policy: mean of (r - 1) - log r, which is never negative.

    log r [..., n], the log-ratio of the new to the old probability of n actions -> [...].

    Examples:
        >>> approximate_kl(torch.tensor([0.5, -0.5]).log1p())  # doctest: +ELLIPSIS
        tensor(0.14...)
    """
    return (log_ratio.expm1() - log_ratio).mean(-1)


@torch.no_grad()
def singular_values(matrix: Tensor) -> Tensor:
    """Singular values in float64 in descending order, [m, n] -> [min(m, n)]; NaN if an entry is not finite.

    For float32 and below, they are the square roots of the eigenvalues of W W^T in float64, which takes a third of the
    time of a singular value decomposition. Their error is about 1e-8 of the largest, a tenth of float32's resolution.
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
    """Number of singular values above max(m, n) eps sigma_max, with eps of the matrix's dtype, [m, n] -> a count.

    This is the default tolerance of `torch.linalg.matrix_rank`. `values` are the matrix's singular values, if known.

    Examples:
        >>> rank(torch.outer(torch.ones(3), torch.arange(4.0)))
        1
    """
    values = singular_values(matrix) if values is None else values
    if values.isnan().any():
        raise ValueError("matrix: got non-finite entries, expected finite entries")
    if not values.numel():
        return 0
    tolerance = max(matrix.shape) * torch.finfo(matrix.dtype).eps * values.max()
    return int((values > tolerance).sum())


MOST_AT_ONCE = 64
"""Largest number of samples whose gradients are computed together; activations take memory as well."""


def gradient_covariance(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: Sequence[Tensor | Sequence[Tensor]],
    memory: float = 1e9,
) -> Tensor:
    """C[i, j] = <g_i, g_j> / (|g_i| |g_j|), with g_i the gradient of sample i's loss over all parameters, [k, k].

    The row and column of a zero gradient are 0. Layers that mix samples, such as batch normalization, change the loss
    of a single sample; call `eval()` first for such models, and for models with dropout.

    Args:
        model: called with a batch of one sample: `model(batch[0][i : i + 1])`.
        loss: called as `loss(output, *rest)`; returns the loss of one sample, [].
        batch: inputs [k, ...], or a sequence of them for a model with several inputs, then the other arguments of the
            loss, [k, ...] each.
        memory: bytes for gradients; with less memory, some gradients are computed several times.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-2.0, 0.0]]), torch.tensor([[9.0], [9.0], [9.0]])
        >>> gradient_covariance(model, nn.functional.mse_loss, (x, y)).round().tolist()
        [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]
    """
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    inputs, rest = _check_samples(batch)
    if not parameters:
        raise ValueError("model: got no parameter that requires a gradient, expected at least one")
    for name, layer in model.named_modules():
        if layer.training and isinstance(layer, (BatchNorm, Dropout)):
            raise ValueError(f"model: got {type(layer).__name__} {name!r} in training mode, expected eval mode")
    others = {name: p.detach() for name, p in (*model.named_parameters(), *model.named_buffers())}
    size_of_one = sum(p.numel() * p.element_size() for p in parameters.values())

    def of_one(changed: dict[str, Tensor], sample: tuple[Tensor, ...]) -> Tensor:
        parts = [part.unsqueeze(0) for part in sample]
        output = functional_call(model, {**others, **changed}, tuple(parts[: len(inputs)]))
        found = loss(output, *parts[len(inputs) :])
        if found.dim():
            raise ValueError(f"loss: got shape {list(found.shape)} for one sample, expected a single number, []")
        return found

    def directions(rows: slice) -> Tensor:
        found = vmap(grad(of_one), in_dims=(None, 0), randomness="error")(
            parameters, tuple(x[rows] for x in (*inputs, *rest))
        )
        return _to_unit_length(torch.cat([gradient.flatten(1) for gradient in found.values()], dim=1))

    samples = len(inputs[0])
    # Two chunks of gradients are in memory at a time, and the parts of one during concatenation.
    size = max(1, min(samples, MOST_AT_ONCE, int(memory / (3 * max(1, size_of_one)))))
    chunks = [slice(start, start + size) for start in range(0, samples, size)]
    matrix = torch.zeros(samples, samples, dtype=torch.float64)
    for i, rows in enumerate(chunks):
        left = directions(rows)
        own = (left @ left.T).double().cpu()
        matrix[rows, rows] = (own + own.T) / 2  # symmetric despite rounding
        for columns in chunks[i + 1 :]:
            matrix[rows, columns] = (left @ directions(columns).T).double().cpu()
            matrix[columns, rows] = matrix[rows, columns].T
    return matrix


def _check_samples(batch: Sequence[Tensor | Sequence[Tensor]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs and the other arguments of the loss; raises a ValueError unless all are tensors of equal length."""
    expected = "a sequence of tensors: the inputs, then the other arguments of the loss"
    if not isinstance(batch, Sequence) or not batch:
        raise ValueError(f"batch: got {type(batch).__name__}, expected {expected}")
    inputs = batch[0] if isinstance(batch[0], (tuple, list)) else batch[:1]
    parts: list[Tensor] = []
    for part in (*inputs, *batch[1:]):
        if not isinstance(part, Tensor):
            raise ValueError(f"batch: got {type(part).__name__} in it, expected {expected}")
        parts.append(part)
    lengths = [len(part) for part in parts]
    if len(set(lengths)) != 1:
        raise ValueError(f"batch: got {lengths} samples, expected equal numbers")
    return tuple(parts[: len(inputs)]), tuple(parts[len(inputs) :])


def off_diagonal(matrix: Tensor) -> float:
    """Mean of |C[i, j]| over i != j, [k, k] -> a number; NaN for a single sample."""
    others = matrix.abs().sum() - matrix.diagonal().abs().sum()
    entries = matrix.numel() - len(matrix)
    return float(others / entries) if entries else math.nan


def _to_unit_length(rows: Tensor) -> Tensor:
    """Divide each row [k, n] by its length in place; zero rows stay."""
    for order in (math.inf, 2):  # by the largest entry first, because squares of small entries underflow
        lengths = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
        rows.div_(torch.where(lengths > 0, lengths, 1.0))
    return rows


def _total(sums: Iterable[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for part in sums:
        total = total + part.double().cpu()
    return total


def _fraction(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    counted = [(int(chosen.sum()), tensor.numel()) for chosen, tensor in parts]
    entries = sum(number for _, number in counted)
    return sum(count for count, _ in counted) / entries if entries else math.nan


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return find_old_name(__name__, name)
