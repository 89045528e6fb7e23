import math
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc


def test_weights_keep_their_sign_and_zeros_stay_zero() -> None:
    model = nn.Linear(50, 20)
    nn.init.zeros_(model.bias)
    signs = model.weight.sign()
    optimizer = wc.Madam(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (model(torch.randn(4, 50)) - 1).square().sum().backward()
        optimizer.step()
    assert torch.equal(model.weight.sign(), signs)
    assert model.bias.abs().max() == 0


def test_weights_stay_within_kappa_times_their_initial_root_mean_square() -> None:
    model = nn.Linear(50, 20, bias=False)
    bound = 1.5 * model.weight.square().mean().sqrt().item()
    optimizer = wc.Madam(model.parameters(), lr=1.0, kappa=1.5)
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.ones(4, 50)) - 100).square().sum().backward()
        optimizer.step()
    assert model.weight.abs().max().item() == pytest.approx(bound, rel=1e-6)


def test_madam_reduces_the_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = wc.Madam(model.parameters(), lr=0.01)
    x = torch.randn(64, 4)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        losses.append(optimizer.step(lambda loss=loss: loss.item()))
    assert losses[-1] < 0.2 * losses[0]


def test_madam_resumes_from_a_checkpoint_bit_for_bit() -> None:
    def run(save_at: int | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = wc.Madam(model.parameters(), lr=0.1)
        for step in range(6):
            if step == save_at:
                saved = optimizer.state_dict()
                optimizer = wc.Madam(model.parameters(), lr=0.5, kappa=9.0)
                optimizer.load_state_dict(saved)
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(run(None), run(3))


def test_copies_do_not_warn() -> None:
    """Madam's kappa does not belong to a lost clipper."""
    import copy

    optimizer = copy.deepcopy(wc.Madam(nn.Linear(2, 2).parameters()))
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa": 0}, "kappa: got 0, expected a positive number"),
        ({"lr": -0.1}, r"lr: got -0\.1, expected a number of at least 0"),
        ({"beta": 1.0}, r"beta: got 1\.0, expected a number below 1"),
        ({"max_update": math.nan}, "max_update: got nan"),
    ],
)
def test_errors_name_the_invalid_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wc.Madam(nn.Linear(2, 2).parameters(), **options)


def test_sparse_gradients_raise_an_error() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    optimizer = wc.Madam(model.parameters())
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_an_update_is_limited() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = wc.Madam(model.parameters(), lr=0.01, kappa=100.0, max_update=1.2, beta=0.99)
    for gradient in (1e-3, -1.0):  # the second g_hat would be -1.41
        before = model.weight.item()
        model.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
    assert model.weight.item() == pytest.approx(before * math.exp(0.012))


def test_a_nan_gradient_makes_the_weight_nan() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = wc.Madam(model.parameters())
    model.weight.grad = torch.full((1, 1), math.nan)
    optimizer.step()
    assert model.weight.isnan().all()
