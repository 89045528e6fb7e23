"""Optimizers of pytorch_optimizer: each step ends in the box, or attaching raises an error."""

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

po = pytest.importorskip("pytorch_optimizer")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore")]

KAPPA, BOX = 0.5, 0.125

# Optimizers that require more arguments than parameters and a learning rate, or accept only matrices.
SPECIAL = {
    "adago", "adalomo", "adammini", "adamuon", "alig", "bsam", "demo", "distributedmuon", "lomo", "muon", "muonclip",
    "normuon", "ranger21", "spectralsphere",
}  # fmt: skip
NEED_A_CLOSURE = {"AliG", "BSAM", "LBFGS"}
UNSUPPORTED = {"accsgd": "already has a hyper-parameter kappa", "splus": "SPlus swaps the model's weights for a second"}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))


def train(model: nn.Module, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 3.0).square().sum()
            loss.backward(create_graph=type(optimizer).__name__ in ("AdaHessian", "SophiaH"))
            return loss

        if type(optimizer).__name__ in NEED_A_CLOSURE:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def largest(model: nn.Module) -> float:
    return max(p.abs().max().item() for p in model.parameters())


@pytest.mark.parametrize("name", sorted(set(po.get_supported_optimizers()) - SPECIAL - set(UNSUPPORTED)))
def test_every_step_ends_in_the_box(name: str) -> None:
    model = network()
    optimizer = po.load_optimizer(name)(model.parameters(), lr=0.5)
    wc.clip_weights(optimizer, model, KAPPA)
    for switch in ("train", "eval"):
        getattr(optimizer, switch, lambda: None)()
        if switch == "train":
            train(model, optimizer)
        assert largest(model) <= BOX


@pytest.mark.parametrize(("name", "message"), UNSUPPORTED.items())
def test_optimizers_that_cannot_be_clipped_raise_an_error_with_their_name(name: str, message: str) -> None:
    model = network()
    optimizer = po.load_optimizer(name)(model.parameters(), lr=0.5)
    with pytest.raises(ValueError, match=message):
        wc.clip_weights(optimizer, model, KAPPA)


WRAPPERS: dict[str, Any] = {
    "Lookahead": lambda optimizer: po.Lookahead(optimizer, k=2),
    "TRAC": po.TRAC,
    "OrthoGrad": po.OrthoGrad,
    "ScheduleFreeWrapper": po.ScheduleFreeWrapper,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_the_end_of_the_outer_step_is_in_the_box(wrap: Any) -> None:
    model = network()
    optimizer = wrap(torch.optim.Adam(model.parameters(), lr=0.5))
    wc.clip_weights(optimizer, model, KAPPA)
    if hasattr(optimizer, "train"):
        optimizer.train()
    for _ in range(5):
        train(model, optimizer, 1)
        assert largest(model) <= BOX
    if hasattr(optimizer, "eval"):
        optimizer.eval()
        assert largest(model) <= BOX
    if hasattr(optimizer, "backup_and_load_cache"):
        optimizer.backup_and_load_cache()
        assert largest(model) <= BOX


@pytest.mark.parametrize("name", ["Lookahead", "OrthoGrad", "ScheduleFreeWrapper"])
def test_checkpoints_of_wrappers_keep_measured_bounds(name: str) -> None:
    def make(kappa: float) -> tuple[nn.Module, Any, wc.Clipper]:
        model = network()
        optimizer = WRAPPERS[name](torch.optim.SGD(model.parameters(), lr=0.01))
        return model, optimizer, wc.clip_weights(optimizer, model, kappa, bounds="init")

    model, optimizer, clipper = make(0.5)
    if hasattr(optimizer, "train"):
        optimizer.train()
    train(model, optimizer)
    other_model, other, resumed = make(9.0)
    with torch.no_grad():
        other_model[0].weight.mul_(3.0)
    other.load_state_dict(optimizer.state_dict())
    assert {n: b.s for n, b in resumed.bounds.items()} == {n: b.s for n, b in clipper.bounds.items()}
    assert other.param_groups[0]["kappa"] == 0.5


def test_a_class_with_a_kappa_is_pickled() -> None:
    cls = wc.clipped(po.Lion)
    assert pickle.loads(pickle.dumps(cls)) is cls
    model = network()
    train(model, cls(model.parameters(), lr=0.5, kappa=KAPPA))
    assert largest(model) == BOX


@pytest.mark.parametrize("wrap", [po.TRAC, po.OrthoGrad, po.Lookahead], ids=["TRAC", "OrthoGrad", "Lookahead"])
def test_schedule_free_inside_a_wrapper_raises_an_error(wrap: Any) -> None:
    model = network()
    optimizer = wrap(po.ScheduleFreeAdamW(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="ScheduleFreeAdamW swaps the model's weights"):
        wc.clip_weights(optimizer, model, KAPPA)


def test_sam_with_separate_first_and_second_steps() -> None:
    model = network()
    optimizer = po.SAM(model.parameters(), base_optimizer=torch.optim.SGD, lr=0.5)
    wc.clip_weights(optimizer, model, KAPPA)
    for _ in range(3):
        for step in (optimizer.first_step, optimizer.second_step):
            (model(torch.ones(4, 16)) - 3.0).square().sum().backward()
            step(zero_grad=True)
        assert largest(model) <= BOX
    assert largest(model) == BOX


def test_lomo_updates_in_the_backward_pass() -> None:
    model = network()
    optimizer = po.LOMO(model, lr=0.5)
    wc.clip_weights(optimizer, model, KAPPA)
    for _ in range(3):
        optimizer.fused_backward((model(torch.ones(4, 16)) - 3.0).square().sum(), lr=0.5)
    assert largest(model) == BOX
