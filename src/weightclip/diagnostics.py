"""What is measured while a network learns: plasticity, norms, activations and ranks. Pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

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
def dormant_share(outputs: Iterable[Tensor], tau: float = 0.025) -> float:
    """The share of units that hardly answer (Sokar et al., 2023), over all layers; NaN where there are none.

    A unit is dormant if the mean of |h| over samples is at most tau times the mean of that over its layer's units.
    Outputs are [n, units] each, or [n, channels, height, width] of a convolution, whose units are its channels.

    Examples:
        >>> dormant_share([torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.01, 0.0]])])
        0.3333333333333333
    """

    def dormant(tensor: Tensor) -> Tensor:
        activity = tensor.abs().transpose(0, 1).flatten(1).mean(1)
        return activity <= tau * activity.mean()

    return _share((found, found) for found in map(dormant, outputs))


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


MOST_AT_ONCE = 64
"""Samples whose gradients are computed together: what a network computes on the way takes memory, too."""


def gradient_covariance(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: Sequence[Tensor | Sequence[Tensor]],
    memory: float = 1e9,
) -> Tensor:
    """C[i, j] = <g_i, g_j> / (|g_i| |g_j|), g_i the gradient of the loss of sample i in all parameters: [k, k].

    A gradient of zero has no direction: its row and column are 0. With batch normalisation, or anything else that mixes
    samples, a sample alone has another loss; put such models, and those with dropout, in `eval()` first.

    Args:
        model: called with a batch of one sample: `model(batch[0][i : i + 1])`.
        loss: called with what the model says and the other tensors, `loss(output, *rest)`: the loss of one sample, [].
        batch: inputs [k, ...], or several of them for a model that takes several, and what else the loss takes,
            [k, ...] each.
        memory: bytes that gradients may take; with fewer, parts of them are computed several times.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-2.0, 0.0]]), torch.tensor([[9.0], [9.0], [9.0]])
        >>> gradient_covariance(model, nn.functional.mse_loss, (x, y)).round().tolist()
        [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]
    """
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    inputs, rest = _check_samples(batch)
    if not parameters:
        raise ValueError("model: got no parameter that requires a gradient, expected one or more")
    for name, layer in model.named_modules():
        if layer.training and isinstance(layer, (_BatchNorm, _DropoutNd)):
            raise ValueError(f"model: got {type(layer).__name__} {name!r} while it trains, expected model.eval() first")
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
    # Two chunks of gradients are there at a time, and while one is put together, its parts are too.
    size = max(1, min(samples, MOST_AT_ONCE, int(memory / (3 * max(1, size_of_one)))))
    chunks = [slice(start, start + size) for start in range(0, samples, size)]
    matrix = torch.zeros(samples, samples, dtype=torch.float64)
    for i, rows in enumerate(chunks):
        left = directions(rows)
        own = (left @ left.T).double().cpu()
        matrix[rows, rows] = (own + own.T) / 2  # rounding is not the same on both sides
        for columns in chunks[i + 1 :]:
            matrix[rows, columns] = (left @ directions(columns).T).double().cpu()
            matrix[columns, rows] = matrix[rows, columns].T
    return matrix


def _check_samples(batch: Sequence[Tensor | Sequence[Tensor]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs, and what else the loss takes; a ValueError unless all are tensors with as many samples."""
    expected = "a sequence of tensors: inputs, and what else the loss takes"
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
        raise ValueError(f"batch: got parts with {lengths} samples, expected as many in each")
    return tuple(parts[: len(inputs)]), tuple(parts[len(inputs) :])


def off_diagonal(matrix: Tensor) -> float:
    """The mean of |C[i, j]| over i != j: [k, k] -> a number; NaN of a single sample."""
    others = matrix.abs().sum() - matrix.diagonal().abs().sum()
    entries = matrix.numel() - len(matrix)
    return float(others / entries) if entries else math.nan


def _to_unit_length(rows: Tensor) -> Tensor:
    """The rows themselves [k, n], each by its length; those of zeros stay."""
    for order in (math.inf, 2):  # by the largest entry first: squares of small ones would vanish
        lengths = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
        rows.div_(torch.where(lengths > 0, lengths, 1.0))
    return rows


def _total(sums: Iterable[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for part in sums:
        total = total + part.double().cpu()
    return total


def _share(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    counted = [(int(chosen.sum()), tensor.numel()) for chosen, tensor in parts]
    entries = sum(number for _, number in counted)
    return sum(count for count, _ in counted) / entries if entries else math.nan
