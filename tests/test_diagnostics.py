import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from weightclip import diagnostics

LOSSES = st.floats(0, 100)


@given(LOSSES, LOSSES)
def test_plasticity_is_the_fraction_of_the_loss_that_was_reduced(before: float, after: float) -> None:
    losses = torch.tensor([before, after], dtype=torch.float64)
    expected = max(1 - after / max(before, 1e-8), 0.0)
    assert diagnostics.sample_plasticity(losses[0], losses[1]).item() == pytest.approx(expected)


def test_plasticity_keeps_the_shape_and_propagates_nan() -> None:
    before, after = torch.tensor([[1.0, math.nan], [math.inf, 2.0]]), torch.tensor([[0.25, 1.0], [math.inf, math.nan]])
    measured = diagnostics.sample_plasticity(before, after)
    assert measured.shape == (2, 2)
    assert measured[0, 0] == 0.75
    assert measured.isnan().tolist() == [[False, True], [True, True]]


def test_norms_are_over_matrices_without_biases() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, -4.0]]))
        model[1].weight.fill_(12.0)
        for layer in model:
            layer.bias.fill_(100.0)
    weights = diagnostics.weight_matrices(model)
    assert diagnostics.l2_norm(weights).item() == 13.0
    assert diagnostics.l1_norm(weights).item() == 19.0
    assert diagnostics.gradient_matrices(model) == []
    model(torch.tensor([[1.0, 2.0]])).sum().backward()
    gradients = diagnostics.gradient_matrices(model)
    assert [tuple(g.shape) for g in gradients] == [(1, 2), (1, 1)]
    hidden = 3.0 - 8.0 + 100.0  # the gradient of the second weight; the first has 12 and 24
    assert diagnostics.l2_norm(gradients).item() == pytest.approx(math.sqrt(12**2 + 24**2 + hidden**2))


def test_norms_are_accurate_in_float32() -> None:
    tensors = [torch.rand(300, 784) - 0.5, torch.rand(150, 300) - 0.5]
    double = [tensor.double() for tensor in tensors]
    for norm in (diagnostics.l2_norm, diagnostics.l1_norm):
        assert norm(tensors).item() == pytest.approx(norm(double).item(), rel=3e-7)
    assert diagnostics.l2_norm([]).item() == 0


def test_fractions_count_entries_over_all_tensors() -> None:
    layers = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([[-0.5]])]
    assert diagnostics.negative_fraction(layers) == 0.5
    outputs = [torch.tensor([0.95, -0.96, 0.94, 0.0]), torch.tensor([-1.0, 1.0, 0.1, 0.2])]
    assert diagnostics.saturated_fraction(outputs) == 0.5
    assert diagnostics.saturated_fraction([torch.tensor([0.9, -0.91, 0.95, 0.5])], beyond=0.9) == 0.75
    assert math.isnan(diagnostics.negative_fraction([]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 3), (40, 25), (25, 40), (1, 7)])
def test_singular_values_match_the_decomposition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape, dtype=dtype)
    expected = torch.linalg.svdvals(matrix.double())
    values = diagnostics.singular_values(matrix)
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, expected, rtol=0, atol=2e-8 * expected[0].item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [0, 1, 7, 20])
def test_the_rank_equals_pytorchs(rank: int, dtype: torch.dtype) -> None:
    for rows, columns in ((30, 20), (20, 30)):
        matrix = torch.randn(rows, rank, dtype=dtype) @ torch.randn(rank, columns, dtype=dtype)
        assert diagnostics.rank(matrix) == rank == torch.linalg.matrix_rank(matrix)


@given(st.integers(1, 12), st.integers(2, 30), st.integers(2, 30))
def test_singular_values_count_down_to_the_tolerance(decades: int, m: int, n: int) -> None:
    """If singular values span many decades, exactly those above max(m, n) eps sigma_max are counted."""
    generator = torch.Generator().manual_seed(decades)
    k = min(m, n)
    u = torch.linalg.qr(torch.randn(m, k, dtype=torch.float64, generator=generator))[0]
    v = torch.linalg.qr(torch.randn(n, k, dtype=torch.float64, generator=generator))[0]
    matrix = (u * torch.logspace(0, -decades, k, dtype=torch.float64)) @ v.T
    for dtype in (torch.float32, torch.float64):
        stored = matrix.to(dtype)
        exact = torch.linalg.svdvals(stored.double())
        tolerance = max(m, n) * torch.finfo(dtype).eps * exact[0]
        low, high = (int((exact > tolerance * (1 + slack)).sum()) for slack in (0.2, -0.2))
        assert low <= diagnostics.rank(stored) <= high


def test_the_rank_can_use_given_singular_values() -> None:
    matrix = torch.randn(6, 5)
    assert diagnostics.rank(matrix, diagnostics.singular_values(matrix)) == 5


def test_weights_that_are_not_finite_have_no_rank() -> None:
    matrix = torch.randn(4, 3)
    matrix[1, 2] = math.nan
    assert diagnostics.singular_values(matrix).isnan().all()
    with pytest.raises(ValueError, match="matrix: got non-finite entries"):
        diagnostics.rank(matrix)


def test_the_approximate_kl_is_close_to_the_exact_one_and_nonnegative() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.distributions.Normal(torch.zeros(2), torch.tensor([1.0, 0.5]))
    new = torch.distributions.Normal(torch.tensor([0.2, -0.1]), torch.tensor([1.1, 0.6]))
    actions = torch.randn(200_000, 2, generator=generator) * old.scale
    log_ratio = (new.log_prob(actions) - old.log_prob(actions)).T
    expected = torch.distributions.kl_divergence(old, new)
    torch.testing.assert_close(diagnostics.approximate_kl(log_ratio), expected, rtol=0.03, atol=0)
    few = torch.randn(50, 4, generator=generator)
    assert (diagnostics.approximate_kl(few) >= 0).all()
    assert diagnostics.approximate_kl(torch.zeros(4)) == 0


@pytest.mark.parametrize(
    ("loss", "batch", "message"),
    [
        (partial(nn.functional.mse_loss, reduction="none"), (3, 3), "loss: got shape [1, 1] for one sample"),
        (nn.functional.mse_loss, (3, 4), "batch: got [3, 4] samples, expected equal numbers"),
    ],
)
def test_invalid_losses_of_a_gradient_covariance_raise_an_error(
    loss: Callable[..., Tensor], batch: tuple[int, int], message: str
) -> None:
    parts = (torch.ones(batch[0], 2), torch.ones(batch[1], 1))
    with pytest.raises(ValueError, match=re.escape(message)):
        diagnostics.gradient_covariance(nn.Linear(2, 1), loss, parts)


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        (torch.ones(3, 2), "Tensor"),
        ({"x": torch.ones(3, 2), "y": torch.ones(3, 1)}, "dict"),
        ((), "tuple"),
        ((torch.ones(3, 2), np.ones((3, 1))), "ndarray in it"),
    ],
)
def test_an_invalid_batch_for_a_gradient_covariance_raises_an_error(batch: Any, got: str) -> None:
    message = f"batch: got {got}, expected a sequence of tensors: the inputs, then the other arguments of the loss"
    with pytest.raises(ValueError, match=re.escape(message)):
        diagnostics.gradient_covariance(nn.Linear(2, 1), nn.functional.mse_loss, batch)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.Dropout(0.1)])
def test_batch_norm_and_dropout_must_be_in_eval_mode_for_a_gradient_covariance(layer: nn.Module) -> None:
    model, batch = nn.Sequential(nn.Linear(2, 2), layer, nn.Linear(2, 1)), (torch.randn(3, 2), torch.ones(3, 1))
    with pytest.raises(
        ValueError, match=rf"model: got {type(layer).__name__} '1' in training mode, expected eval mode"
    ):
        diagnostics.gradient_covariance(model, nn.functional.mse_loss, batch)
    assert diagnostics.gradient_covariance(model.eval(), nn.functional.mse_loss, batch).shape == (3, 3)


class Added(nn.Linear):
    """A linear map of the concatenation of two inputs."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([x, z], dim=1))


def test_models_with_several_inputs_have_a_gradient_covariance() -> None:
    x, z, y = torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 1)
    two, one = Added(5, 1), nn.Linear(5, 1)
    one.load_state_dict(two.state_dict())
    found = diagnostics.gradient_covariance(two, nn.functional.mse_loss, ((x, z), y))
    expected = diagnostics.gradient_covariance(one, nn.functional.mse_loss, (torch.cat([x, z], dim=1), y))
    torch.testing.assert_close(found, expected)


def test_without_trainable_parameters_there_is_no_gradient_covariance() -> None:
    frozen = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(ValueError, match="model: got no parameter that requires a gradient"):
        diagnostics.gradient_covariance(frozen, nn.functional.mse_loss, (torch.ones(3, 2), torch.ones(3, 1)))


def test_the_gradient_covariance_matches_gradients_computed_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    x, y = torch.randn(7, 2, 4, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    gradients = []
    for i in range(7):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    expected = torch.tensor([[nn.functional.cosine_similarity(a, b, dim=0) for b in gradients] for a in gradients])
    model.zero_grad()
    entries = sum(p.numel() for p in model.parameters())
    for memory_limit in (1e9, 3 * 4 * entries * 3, 1.0):  # all at once, three at a time, one by one
        found = diagnostics.gradient_covariance(model, nn.functional.cross_entropy, (x, y), memory_limit)
        torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(
        diagnostics.off_diagonal(expected), (expected.abs().sum().item() - expected.diagonal().sum().item()) / 42
    )


@pytest.mark.parametrize("scale", [1e-9, 1e-15, 1e-30])
def test_small_gradients_have_a_direction(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(5, 1)
    x, y = torch.randn(4, 5, generator=generator), 3 + torch.rand(4, 1, generator=generator)
    expected = diagnostics.gradient_covariance(model, nn.functional.mse_loss, (x, y))

    def scaled(output: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return scale * nn.functional.mse_loss(output, goal)

    found = diagnostics.gradient_covariance(model, scaled, (x, y))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.diagonal(), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_chunks_of_gradients_stay_within_the_memory_limit(dtype: torch.dtype, size: int) -> None:
    model = nn.Linear(10, 1, bias=False, dtype=dtype)
    seen = []

    def loss(output: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return (output - goal).square().sum()

    diagnostics.gradient_covariance(
        model, loss, (torch.randn(6, 10, dtype=dtype), torch.randn(6, 1, dtype=dtype)), 3 * size * 10 * 3
    )
    assert len(seen) == 3  # two chunks of three: pairs (first, first), (first, second), (second, second)


def test_a_sample_with_zero_gradient_has_zero_covariance() -> None:
    model = nn.Linear(2, 1, bias=False)
    x, y = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0], [50.0]])
    found = diagnostics.gradient_covariance(model, nn.functional.mse_loss, (x, y))
    assert found.tolist() == [[0.0, 0.0], [0.0, pytest.approx(1.0)]]
    assert math.isnan(diagnostics.off_diagonal(torch.ones(1, 1)))


def test_dormant_units_are_judged_by_their_layer() -> None:
    one = torch.tensor([[10.0, 0.05, 0.0], [10.0, 0.05, 0.0]])
    channels = torch.zeros(2, 2, 3, 3)
    channels[:, 0] = 1.0
    assert diagnostics.dormant_fraction([one]) == pytest.approx(2 / 3)
    assert diagnostics.dormant_fraction([one], tau=0.001) == pytest.approx(1 / 3)
    assert diagnostics.dormant_fraction([one, channels]) == pytest.approx(3 / 5)
    assert math.isnan(diagnostics.dormant_fraction([]))
