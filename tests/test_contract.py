"""Contract test: every torch.optim optimizer with every regularizer."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import weightclip as wc
from optimizers import CASES, Case
from weightclip._box import limit
from weightclip._hooks import Regularizer

Attach = Callable[[Case, Optimizer, nn.Module], Regularizer]

REGULARIZERS: dict[str, Attach] = {
    "clip": lambda case, o, m: wc.clip_weights(o, m, kappa=0.8, **case.clip),
    "clip, measured": lambda case, o, m: wc.clip_weights(o, m, kappa=0.8, **{"bounds": "init", **case.clip}),
    "l2": lambda case, o, m: wc.l2(o, 0.1),
    "l2_init": lambda case, o, m: wc.l2_init(o, 0.1),
    "l2_init, paper": lambda case, o, m: wc.l2_init(o, 0.1, variant="paper"),
    "shrink_and_perturb": lambda case, o, m: wc.shrink_and_perturb(o, 0.01, 0.02),
    "shrink_and_perturb, paper": lambda case, o, m: wc.shrink_and_perturb(o, 0.01, 0.2, variant="paper"),
}
IDLE: dict[str, Attach] = {
    "clip": lambda case, o, m: wc.clip_weights(o, m, kappa=float("inf"), **case.clip),
    "l2": lambda case, o, m: wc.l2(o, 0.0),
    "l2_init": lambda case, o, m: wc.l2_init(o, 0.0),
    "l2_init, paper": lambda case, o, m: wc.l2_init(o, 0.0, variant="paper"),
    "shrink_and_perturb": lambda case, o, m: wc.shrink_and_perturb(o, 0.0, 0.0),
    "shrink_and_perturb, paper": lambda case, o, m: wc.shrink_and_perturb(o, 0.0, 0.0, variant="paper"),
}

every_optimizer = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_regularizer = pytest.mark.parametrize("attach", REGULARIZERS.values(), ids=REGULARIZERS.keys())


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def start_from(plain_model: nn.Module, plain: Optimizer, model: nn.Module, optimizer: Optimizer) -> None:
    """Copy the weights and the optimizer state to the plain optimizer."""
    plain_model.load_state_dict(model.state_dict())
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # otherwise both would share tensors
    for group in plain.param_groups:
        group.pop("kappa", None)


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


@every_optimizer
def test_a_clipped_step_is_a_plain_step_followed_by_a_clip(case: Case) -> None:
    """Bit for bit, at each step from the same weights and state."""
    model, optimizer = case.make()
    plain_model, plain = case.make()
    clipper = wc.clip_weights(optimizer, model, kappa=0.8, **case.clip)
    cut = 0
    for number in range(4):
        start_from(plain_model, plain, model, optimizer)
        case.step(plain_model, plain, number)
        case.step(model, optimizer, number)
        for (name, p), q in zip(model.named_parameters(), plain_model.parameters(), strict=True):
            bound = clipper.bounds.get(name)
            s = limit(0.8, bound, p.dtype) if bound else float("inf")
            cut += int((q.abs() > s).sum())
            assert torch.equal(p, q.clamp(-s, s)), name
    assert cut > 0


@every_optimizer
@pytest.mark.parametrize("attach", IDLE.values(), ids=IDLE.keys())
def test_a_regularizer_of_strength_zero_is_bit_identical_to_none(case: Case, attach: Attach) -> None:
    model, optimizer = case.make()
    plain_model, plain = case.make()
    attach(case, optimizer, model)
    for number in range(3):
        case.step(plain_model, plain, number)
        case.step(model, optimizer, number)
    assert_same(weights(model), weights(plain_model))


@every_optimizer
@every_regularizer
def test_a_regularizer_acts_until_it_is_removed(case: Case, attach: Attach) -> None:
    model, optimizer = case.make()
    plain_model, plain = case.make()
    regularizer = attach(case, optimizer, model)
    for number in range(3):
        case.step(plain_model, plain, number)
        case.step(model, optimizer, number)
    assert any(not torch.equal(a, b) for a, b in zip(weights(model), weights(plain_model), strict=True))
    regularizer.remove()
    start_from(plain_model, plain, model, optimizer)
    for number in range(3, 6):
        case.step(plain_model, plain, number)
        case.step(model, optimizer, number)
    assert_same(weights(model), weights(plain_model))


@every_optimizer
@every_regularizer
def test_training_resumes_from_a_checkpoint_bit_for_bit(case: Case, attach: Attach) -> None:
    model, optimizer = case.make()
    attach(case, optimizer, model)
    for number in range(3):
        case.step(model, optimizer, number)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    for number in range(3, 7):
        case.step(model, optimizer, number)

    file.seek(0)
    saved: dict[str, Any] = torch.load(file, weights_only=True)
    resumed_model, resumed = case.make()
    with torch.no_grad():
        for p in resumed_model.parameters():
            p.mul_(1.5)  # everything recorded when attaching must be restored
    attach(case, resumed, resumed_model)
    resumed_model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for number in range(3, 7):
        case.step(resumed_model, resumed, number)
    assert_same(weights(model), weights(resumed_model))


@every_optimizer
def test_all_regularizers_together_end_in_the_box(case: Case) -> None:
    model, optimizer = case.make()
    clipper = wc.clip_weights(optimizer, model, kappa=0.8, **case.clip)
    wc.l2(optimizer, 0.01)
    wc.l2_init(optimizer, 0.01)
    wc.shrink_and_perturb(optimizer, 0.01, 0.5)
    for number in range(3):
        case.step(model, optimizer, number)
        for name, p in model.named_parameters():
            if name in clipper.bounds:
                assert p.abs().max().item() <= 0.8 * (clipper.bounds[name].s or 0)


def test_every_torch_optimizer_is_covered() -> None:
    assert {"Adam", "SGD", "LBFGS", "SparseAdam", "Adafactor"} <= set(CASES)
    assert ("Muon" in CASES) == hasattr(torch.optim, "Muon")
