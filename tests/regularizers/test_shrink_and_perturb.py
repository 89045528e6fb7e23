import pytest
import torch
from torch import nn

import weightclip as wc


def perturbed(seed: int, device_noise: int = 0) -> torch.Tensor:
    model = nn.Linear(100, 100, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wc.shrink_and_perturb(optimizer, 0.0, 2.0, seed=seed)
    torch.manual_seed(device_noise)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    return model.weight.detach()


def test_the_noise_is_normal_with_the_given_standard_deviation() -> None:
    w = perturbed(0)
    assert w.std().item() == pytest.approx(2.0, rel=0.03)
    assert w.mean().item() == pytest.approx(0.0, abs=0.06)


def test_the_seed_determines_the_noise_independently_of_other_draws() -> None:
    assert torch.equal(perturbed(1, device_noise=1), perturbed(1, device_noise=2))
    assert not torch.equal(perturbed(1), perturbed(2))


def test_perturbing_every_nth_step_and_immediately() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    regularizer = wc.shrink_and_perturb(optimizer, 0.5, 0.0, every=2)
    sizes = []
    for _ in range(4):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        sizes.append(model.weight.item())
    assert sizes == [1.0, 0.5, 0.5, 0.25]
    regularizer.apply()
    assert model.weight.item() == 0.125


def test_loading_a_checkpoint_restores_the_noise() -> None:
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wc.shrink_and_perturb(optimizer, 0.0, 1.0, every=2)
    start, results = (model.weight.detach().clone(), optimizer.state_dict()), []
    for _ in range(2):
        with torch.no_grad():
            model.weight.copy_(start[0])
        optimizer.load_state_dict(start[1])
        for _ in range(3):  # an odd number, so that the step count must also be restored
            model.weight.grad = torch.zeros_like(model.weight)
            optimizer.step()
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


def test_the_seed_must_be_a_number() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="seed: got 'x', expected a whole number"):
        wc.shrink_and_perturb(optimizer, 0.1, 0.1, seed="x")  # type: ignore[arg-type]
