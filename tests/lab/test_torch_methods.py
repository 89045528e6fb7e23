import pytest
import torch
from torch import nn

from weightclip.clipping import find_clipper
from weightclip.lab.methods import make_optimizer, optimizers, split_method
from weightclip.rivals.madam import Madam


def test_every_optimizer_of_pytorch_is_there_by_its_lower_case_name() -> None:
    found = optimizers()
    assert found["sgd"] is torch.optim.SGD
    assert found["rmsprop"] is torch.optim.RMSprop
    assert found["madam"] is Madam
    assert not {"lbfgs", "sparseadam", "optimizer"} & set(found)


def test_a_name_is_split_into_its_parts() -> None:
    assert split_method("adamw") == ("adamw", ())
    assert split_method("sgd+l2init+wc") == ("sgd", ("l2init", "wc"))
    with pytest.raises(ValueError, match=r"method: got 'adma', .*did you mean 'adam"):
        split_method("adma")


def test_settings_reach_the_optimizer_and_the_remedies() -> None:
    model = nn.Linear(4, 2)
    settings = {"lr": 0.1, "beta1": 0.5, "eps": 1e-3, "kappa": 2.0}
    made = make_optimizer(model, "adam", ["wc"], settings, bounds="paper", statistics=True)
    group = made.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["kappa"]) == (0.1, (0.5, 0.999), 1e-3, 2.0)
    clipper = find_clipper(made)
    assert clipper is not None
    assert clipper.statistics
    assert {bound.rule for bound in clipper.bounds.values()} == {"paper"}


def test_madams_kappa_is_its_own() -> None:
    made = make_optimizer(nn.Linear(4, 2), "madam", [], {"lr": 0.1, "kappa": 3.0})
    assert made.param_groups[0]["kappa"] == 3.0


def test_what_the_optimizer_does_not_take_is_told() -> None:
    with pytest.raises(ValueError, match="settings: got 'momentum', expected one of"):
        make_optimizer(nn.Linear(4, 2), "adam", [], {"lr": 0.1, "momentum": 0.9})
    with pytest.raises(ValueError, match=r"method: sgd with .*momentum"):
        make_optimizer(nn.Linear(4, 2), "sgd", [], {"lr": 0.1, "momentum": -1.0})
