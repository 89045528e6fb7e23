"""L2 and L2 Init: behavior that is not covered by the reference values."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightclip as wc


def linear(value: float = 0.5) -> nn.Linear:
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, value)
    return model


def step(model: nn.Linear, optimizer: torch.optim.Optimizer, gradient: float = 0.0) -> float:
    model.weight.grad = torch.full_like(model.weight, gradient)
    optimizer.step()
    return model.weight[0, 0].item()


def test_l2_equals_the_weight_decay_of_adam_bit_for_bit() -> None:
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    a = torch.optim.Adam(ours.parameters(), lr=0.1)
    b = torch.optim.Adam(theirs.parameters(), lr=0.1, weight_decay=0.3)
    wc.l2(a, 0.3)
    for _ in range(5):
        for model, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            model(torch.ones(2, 5)).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


def test_l2_init_is_the_gradient_of_its_penalty() -> None:
    """The weights equal those with lambda |w - w_0|^2 in the loss."""
    ours, theirs = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()
    theirs.load_state_dict(ours.state_dict())
    start = [p.detach().clone() for p in theirs.parameters()]
    a = torch.optim.Adam(ours.parameters(), lr=0.1)
    b = torch.optim.Adam(theirs.parameters(), lr=0.1)
    wc.l2_init(a, 0.3)
    x = torch.ones(2, 5, dtype=torch.float64)
    for _ in range(5):
        a.zero_grad()
        ours(x).square().sum().backward()
        a.step()
        b.zero_grad()
        penalty = sum((p - w).square().sum() for p, w in zip(theirs.parameters(), start, strict=True))
        (theirs(x).square().sum() + 0.3 * penalty).backward()
        b.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=1e-14)


def test_with_sgd_the_papers_l2_init_is_half_of_kumars() -> None:
    """Except for the first step, after which the paper's variant records w_0."""
    paper, kumar = linear(), linear()
    a = torch.optim.SGD(paper.parameters(), lr=0.1)
    b = torch.optim.SGD(kumar.parameters(), lr=0.1)
    wc.l2_init(a, 0.4, variant="paper")
    wc.l2_init(b, 0.2)
    assert step(paper, a) == pytest.approx(0.5 * (1 - 0.04) * (1 + 0.04))
    assert step(kumar, b) == 0.5
    start = 0.5 * (1 - 0.04)
    with torch.no_grad():
        kumar.weight.copy_(paper.weight)
    b._weightclip.regularizers[0]._initial[kumar.weight].fill_(start)  # type: ignore[attr-defined]
    for gradient in (0.3, -0.2):
        assert step(paper, a, gradient) == pytest.approx(step(kumar, b, gradient), rel=1e-12)


def test_maximize_does_not_reverse_the_penalty() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    wc.l2(optimizer, 1.0)
    assert step(model, optimizer) == pytest.approx(0.45)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_does_not_scale_the_penalty(fused: bool) -> None:
    results = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        wc.l2_init(optimizer, 0.3, variant="paper")
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 4)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(model.weight.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


def test_a_step_skipped_by_a_fused_optimizer_does_not_count() -> None:
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    wc.l2_init(optimizer, 0.3, variant="paper")
    wc.shrink_and_perturb(optimizer, 0.3, 0.3)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 4)).sum() * math.inf).backward()
    scaler.step(optimizer)
    assert torch.equal(model.weight, before)


def test_closures_apply_the_penalty_at_each_call() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wc.l2(optimizer, 1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        model.weight.grad = torch.zeros_like(model.weight)
        return torch.tensor(3.0)

    assert optimizer.step(closure=closure).item() == 3.0
    assert model.weight[0, 0].item() == pytest.approx(0.45)


def test_l2_init_with_a_line_search_raises_an_error() -> None:
    """A line search compares losses, which do not contain our penalty."""
    optimizer = torch.optim.LBFGS(linear().parameters(), line_search_fn="strong_wolfe")
    with pytest.raises(ValueError, match="optimizer: a line search needs the penalty in the loss"):
        wc.l2_init(optimizer, 0.1)
    assert not optimizer._optimizer_step_post_hooks


def test_parameters_without_a_gradient_are_skipped() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wc.l2(optimizer, 1.0)
    wc.shrink_and_perturb(optimizer, 0.5, 0.5)
    optimizer.step()
    assert model.weight[0, 0].item() == 0.5


def test_sparse_gradients_are_penalized_only_at_their_entries() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    start = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wc.l2(optimizer, 1.0)
    (model(torch.tensor([1, 1])) * 0).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight, start * torch.tensor([[1.0], [0.9], [1.0]]))


def test_parameters_added_later_are_pulled_toward_their_values_at_that_time() -> None:
    first, second = linear(0.5), linear(0.5)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    wc.l2_init(optimizer, 1.0)
    nn.init.constant_(second.weight, 3.0)
    optimizer.add_param_group({"params": second.parameters()})
    assert step(second, optimizer) == 3.0
    nn.init.constant_(second.weight, 4.0)
    assert step(second, optimizer) == pytest.approx(4.0 - 0.1 * 2 * 1.0)


def test_a_tensor_learning_rate() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, dtype=torch.float64))
    wc.l2_init(optimizer, 0.3, variant="paper")
    wc.shrink_and_perturb(optimizer, 0.0, 0.0, variant="paper")
    assert step(model, optimizer) == pytest.approx(0.5 * 0.97 * 1.03)


@pytest.mark.parametrize(
    ("attach", "message"),
    [
        (lambda o: wc.l2(o, -1.0), r"decay: got -1\.0, expected a number of at least 0"),
        (lambda o: wc.l2_init(o, math.inf), "decay: got inf"),
        (lambda o: wc.l2_init(o, 0.1, variant="other"), r"variant: got 'other', expected one of kumar, paper"),
        (lambda o: wc.shrink_and_perturb(o, 0.1, -0.1), r"sigma: got -0\.1"),
        (lambda o: wc.shrink_and_perturb(o, 1.5, 0.1), r"decay: got 1\.5, expected at most 1"),
        (lambda o: wc.shrink_and_perturb(o, 0.1, 0.1, every=2, variant="paper"), "every: got 2, expected 1"),
        (lambda o: (wc.l2(o, 0.1), wc.l2(o, 0.1)), "l2 is already attached"),
    ],
)
def test_errors_name_the_invalid_argument(attach: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attach(torch.optim.SGD(linear().parameters(), lr=0.1))


def test_the_gradient_is_restored_after_the_step() -> None:
    """The penalty is added only during the step: several steps on one gradient equal weight decay."""
    ours, theirs = linear(), linear()
    a = torch.optim.SGD(ours.parameters(), lr=0.1)
    b = torch.optim.SGD(theirs.parameters(), lr=0.1, weight_decay=1.0)
    wc.l2(a, 1.0)
    for model in (ours, theirs):
        model.weight.grad = torch.full_like(model.weight, 0.25)
    gradient = ours.weight.grad
    for _ in range(5):
        a.step()
        b.step()
    assert ours.weight.grad is gradient
    assert gradient is not None
    assert gradient[0, 0].item() == 0.25
    assert torch.equal(ours.weight, theirs.weight)


def test_gradients_changed_inside_a_step_are_not_penalized_twice() -> None:
    class Clipping(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 100.0)
            return super().step(closure)

    model = linear(1.0)
    optimizer = Clipping(model.parameters(), lr=0.1)
    wc.l2(optimizer, 1.0)
    assert step(model, optimizer) == pytest.approx(0.9)


def test_hooks_that_clear_the_gradients_do_not_stop_a_regularizer() -> None:
    model = linear(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
    wc.shrink_and_perturb(optimizer, 0.5, 0.0)
    assert step(model, optimizer) == 0.5


@pytest.mark.parametrize(
    "attach",
    [
        lambda o: wc.l2(o, 0.1),
        lambda o: wc.l2_init(o, 0.1, variant="paper"),
        lambda o: wc.shrink_and_perturb(o, 0.1, 0.1, variant="paper"),
    ],
)
def test_every_penalty_with_a_line_search_raises_an_error(attach: Any) -> None:
    with pytest.raises(ValueError, match="a line search"):
        attach(torch.optim.LBFGS(linear().parameters(), line_search_fn="strong_wolfe"))


def test_attaching_without_a_learning_rate_raises_an_error() -> None:
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    del optimizer.param_groups[0]["lr"]
    with pytest.raises(ValueError, match="has no 'lr' in its groups"):
        wc.l2_init(optimizer, 0.1, variant="paper")
