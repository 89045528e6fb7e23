"""Behavior shared by all regularizers and clipping: names, settings in the groups, warnings."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import weightclip as wc

Attach = Callable[..., Any]

REGULARIZERS: dict[str, tuple[Attach, dict[str, float]]] = {
    "l2": (lambda o, **k: wc.l2(o, 0.5, **k), {"l2_decay": 0.5}),
    "l2_init": (lambda o, **k: wc.l2_init(o, 0.5, **k), {"l2_init_decay": 0.5}),
    "l2_init, paper": (lambda o, **k: wc.l2_init(o, 0.5, variant="paper", **k), {"l2_init_decay": 0.5}),
    "shrink_and_perturb": (
        lambda o, **k: wc.shrink_and_perturb(o, 0.5, 0.25, **k),
        {"sp_decay": 0.5, "sp_sigma": 0.25},
    ),
    "shrink_and_perturb, paper": (
        lambda o, **k: wc.shrink_and_perturb(o, 0.5, 0.25, variant="paper", **k),
        {"sp_decay": 0.5, "sp_sigma": 0.25},
    ),
}
every_regularizer = pytest.mark.parametrize(
    ("attach", "settings"), REGULARIZERS.values(), ids=[name.replace(" ", "") for name in REGULARIZERS]
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> dict[str, torch.Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        model(x).square().sum().backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def plain_step() -> dict[str, torch.Tensor]:
    model = network()
    return train(model, sgd(model), 1)


@every_regularizer
@pytest.mark.parametrize("choose", [{"include": "0.weight"}, {"exclude": ["2.*", "*bias"]}])
def test_only_selected_parameters_are_regularized(attach: Attach, settings: Any, choose: Any) -> None:
    model = network()
    optimizer = sgd(model)
    attach(optimizer, model=model, **choose)
    if "l2_init" in next(iter(settings)):
        model[0].weight.data.add_(1.0)  # moves away from the initial weights
        plain_model = network()
        plain_model[0].weight.data.add_(1.0)
        plain = train(plain_model, sgd(plain_model), 1)
    else:
        plain = plain_step()
    found = train(model, optimizer, 1)
    assert {name for name in found if not torch.equal(found[name], plain[name])} == {"0.weight"}


@every_regularizer
def test_names_may_be_taken_from_the_optimizer(attach: Attach, settings: Any) -> None:
    model = network()
    attach(torch.optim.SGD(model.named_parameters(), lr=0.1), exclude="*bias")
    with pytest.raises(ValueError, match=r"include, exclude: the parameters have no names; pass model="):
        attach(sgd(model), exclude="*bias")
    with pytest.raises(ValueError, match=r"exclude: '\*bais' matches no parameter"):
        attach(sgd(model), model=model, exclude="*bais")


@every_regularizer
def test_parameters_added_later_are_selected_by_name(attach: Attach, settings: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    attach(optimizer, model=model, include="*.weight")
    optimizer.add_param_group({"params": model[2].parameters()})
    found, plain = train(model, optimizer, 2), train(other := network(), sgd(other), 2)
    assert not torch.equal(found["2.weight"], plain["2.weight"])
    assert all(optimizer.param_groups[1][key] == value for key, value in settings.items())


@every_regularizer
def test_settings_are_in_the_groups_and_survive_checkpoints(attach: Attach, settings: dict[str, float]) -> None:
    model = network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), **dict.fromkeys(settings, 0.125)}, {"params": model[2].parameters()}], lr=0.1
    )
    attach(optimizer)
    first, second = optimizer.param_groups
    assert {key: first[key] for key in settings} == dict.fromkeys(settings, 0.125)
    assert {key: second[key] for key in settings} == settings
    train(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = train(model, optimizer)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network()
    resumed.load_state_dict(saved["model"])
    other = torch.optim.SGD([{"params": resumed[0].parameters()}, {"params": resumed[2].parameters()}], lr=0.1)
    attach(other)
    other.load_state_dict(saved["optimizer"])
    found = train(resumed, other)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@every_regularizer
def test_settings_can_be_scheduled(attach: Attach, settings: dict[str, float]) -> None:
    model = network()
    optimizer = sgd(model)
    attach(optimizer)
    for key in settings:
        optimizer.param_groups[0][key] = 0.0
    found, plain = train(model, optimizer), train(other := network(), sgd(other))
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    for key in settings:
        optimizer.param_groups[0][key] = -1.0
        with pytest.raises(ValueError, match=r"(decay|sigma): got -1.0, expected a number of at least 0"):
            train(model, optimizer)
        optimizer.param_groups[0][key] = 0.0


@every_regularizer
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_an_optimizer_copied_without_its_regularizer_warns(
    attach: Attach, settings: dict[str, float], duplicate: Any
) -> None:
    model = network()
    optimizer = sgd(model)
    name = attach(optimizer).key
    other_model, other = duplicate((model, optimizer))
    key = next(iter(settings))
    with pytest.warns(RuntimeWarning, match=rf"{name} no longer acts on this SGD.*'{key}'.*weightclip\.{name}"):
        train(other_model, other)
    attach(other)
    train(other_model, other)


@every_regularizer
def test_remove_restores_the_optimizer(attach: Attach, settings: dict[str, float]) -> None:
    model = network()
    optimizer = sgd(model)
    before = repr(optimizer)
    attach(optimizer).remove()
    assert repr(optimizer) == before
    assert not set(settings) & set(optimizer.defaults)


@every_regularizer
def test_a_group_without_the_setting_is_not_regularized(attach: Attach, settings: dict[str, float]) -> None:
    model = network()
    optimizer = sgd(model)
    attach(optimizer)
    for key in settings:
        del optimizer.param_groups[0][key]
    found, plain = train(model, optimizer), train(other := network(), sgd(other))
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@every_regularizer
def test_a_model_that_does_not_own_the_parameters_raises_an_error(attach: Attach, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="model: it does not own all parameters of the optimizer"):
        attach(sgd(network()), model=network(), exclude="*bias")


def test_a_scheduled_decay_of_shrink_and_perturb_is_at_most_one() -> None:
    model = network()
    optimizer = sgd(model)
    wc.shrink_and_perturb(optimizer, 0.5, 0.1)
    optimizer.param_groups[0]["sp_decay"] = 3.0
    with pytest.raises(ValueError, match=r"decay: got 3.0, expected at most 1"):
        train(model, optimizer)


def test_one_warning_names_all_lost_regularizers() -> None:
    model = network()
    optimizer = sgd(model)
    wc.l2(optimizer, 0.1)
    wc.clip_weights(optimizer, model, kappa=1.0)
    model, optimizer = copy.deepcopy((model, optimizer))
    with pytest.warns(RuntimeWarning, match="l2 and clip_weights no longer act|clip_weights and l2 no longer act"):
        train(model, optimizer)
    train(model, optimizer)
