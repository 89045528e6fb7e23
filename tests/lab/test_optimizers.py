import inspect

import pytest
import torch
from torch import nn

from weightclip.clipping import find_clipper
from weightclip.lab.methods import OPTIMIZERS, TORCH, Components, TorchPart, parse_method
from weightclip.lab.optimizers import make_optimizer, optimizer_class
from weightclip.madam import Madam


def test_every_pytorch_optimizer_is_available_by_its_lower_case_name() -> None:
    kinds = [one for one in vars(torch.optim).values() if isinstance(one, type)]
    named = {one.__name__.lower() for one in kinds if issubclass(one, torch.optim.Optimizer)}
    assert set(OPTIMIZERS) - {"madam"} == named - {"lbfgs", "sparseadam", "optimizer"}
    assert optimizer_class("rmsprop") is torch.optim.RMSprop
    assert optimizer_class("madam") is Madam


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_settings_of_an_optimizer_are_its_numeric_arguments(name: str) -> None:
    parameters = inspect.signature(optimizer_class(name)).parameters
    numbers = {key for key, one in parameters.items() if isinstance(one.default, float | int)}
    numbers |= {"beta1", "beta2"} if "betas" in parameters else set()
    execution = {"foreach", "maximize", "capturable", "differentiable", "fused"}  # they do not affect training
    names = {*OPTIMIZERS[name].settings, *OPTIMIZERS[name].options}
    assert set(names) == numbers - execution


def test_an_optimizer_missing_from_this_pytorch_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"method: got 'muon', but PyTorch .* has no torch\.optim\.Muon"):
        optimizer_class("muon")


def test_settings_are_passed_to_the_optimizer_and_the_regularizers() -> None:
    model = nn.Linear(4, 2)
    settings = {"lr": 0.1, "beta1": 0.5, "eps": 1e-3, "kappa": 2.0}
    optimizer = make_optimizer(model, parse_method("adam+wc", TORCH), settings, bounds="paper", track_clipped=True)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["kappa"]) == (0.1, (0.5, 0.999), 1e-3, 2.0)
    clipper = find_clipper(optimizer)
    assert clipper is not None
    assert clipper.track_clipped
    assert {bound.rule for bound in clipper.bounds.values()} == {"paper"}


def test_kappa_is_passed_to_madam() -> None:
    optimizer = make_optimizer(nn.Linear(4, 2), parse_method("madam", TORCH), {"lr": 0.1, "kappa": 3.0})
    assert optimizer.param_groups[0]["kappa"] == 3.0


def test_settings_that_the_optimizer_does_not_accept_are_reported() -> None:
    with pytest.raises(ValueError, match="settings: got 'momentum', expected one of"):
        make_optimizer(nn.Linear(4, 2), parse_method("adam", TORCH), {"lr": 0.1, "momentum": 0.9})
    with pytest.raises(ValueError, match=r"method: sgd with .*momentum"):
        make_optimizer(nn.Linear(4, 2), parse_method("sgd", TORCH), {"lr": 0.1, "momentum": -1.0})


def test_integers_and_booleans_are_passed_to_the_optimizer_unchanged() -> None:
    optimizer = make_optimizer(nn.Linear(4, 2), parse_method("adam", TORCH), {"lr": 0.1, "amsgrad": 1.0})
    assert optimizer.param_groups[0]["amsgrad"] is True
    optimizer = make_optimizer(nn.Linear(4, 2, bias=False), parse_method("muon", TORCH), {"lr": 0.1, "ns_steps": 3.0})
    assert repr(optimizer.param_groups[0]["ns_steps"]) == "3"


def test_madams_largest_update_is_a_setting() -> None:
    optimizer = make_optimizer(
        nn.Linear(4, 2), parse_method("madam", TORCH), {"lr": 0.1, "kappa": 3.0, "max_update": 5.0}
    )
    assert 5.0 in optimizer.param_groups[0].values()


def test_a_regularizer_without_a_constructor_raises_an_error() -> None:
    """Clipping is not used as a fallback."""
    components = Components(OPTIMIZERS, {"l1": TorchPart("l1", {"kappa": None})})
    with pytest.raises(ValueError, match="method: got the regularizer 'l1', expected l2, l2init, sp or wc"):
        make_optimizer(nn.Linear(4, 2), parse_method("adam+l1", components), {"lr": 0.1, "kappa": 1.0})
