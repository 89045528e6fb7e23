import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightclip as wc


def members() -> list[nn.Sequential]:
    return [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)) for _ in range(5)]


def ensemble() -> tuple[nn.Sequential, dict[str, Tensor]]:
    models = members()
    params, _ = torch.func.stack_module_state(models)
    return models[0], params


def test_an_ensemble_has_the_bounds_of_a_member() -> None:
    member, params = ensemble()
    assert params["0.weight"].shape == (5, 3, 4)
    assert wc.resolve_bounds(wc.stacked(member, params)) == wc.resolve_bounds(member)
    paper = wc.resolve_bounds(wc.stacked(member, params), "paper")
    assert paper == wc.resolve_bounds(member, "paper")


def test_stacked_parameters_are_clipped() -> None:
    member, params = ensemble()
    optimizer = torch.optim.SGD(params.values(), lr=10.0)
    clipper = wc.clip_weights(optimizer, wc.stacked(member, params), kappa=1.0)
    x = torch.randn(8, 4)
    buffers = dict(member.named_buffers())

    def outputs(one: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(member, (one, buffers), (x,))

    member.eval()
    torch.vmap(outputs)(params).square().sum().backward()
    optimizer.step()
    assert params["0.weight"].abs().max() == 0.5
    assert params["2.bias"].abs().max() <= 1 / math.sqrt(3)
    assert clipper.bounds["1.weight"].reason.startswith("normalization layer")


def test_a_stack_may_have_several_leading_dimensions_or_none() -> None:
    member = nn.Linear(4, 2)
    params = {"weight": torch.zeros(6, 3, 2, 4, requires_grad=True), "bias": torch.zeros(2, requires_grad=True)}
    assert {bound.s for bound in wc.resolve_bounds(wc.stacked(member, params)).values()} == {0.5}


def test_nested_mappings_and_names_of_buffers() -> None:
    member, params = ensemble()
    nested = {
        "0": {"weight": params["0.weight"], "bias": params["0.bias"]},
        "1": {"running_mean": torch.zeros(5, 3)},
        "2": {"weight": params["2.weight"]},
    }
    assert list(wc.resolve_bounds(wc.stacked(member, nested))) == ["0.weight", "0.bias", "2.weight"]


def test_a_stack_with_a_plain_module() -> None:
    actor, (member, params) = nn.Linear(9, 1), ensemble()
    both = nn.ModuleList([actor, wc.stacked(member, params)])
    optimizer = torch.optim.SGD([*actor.parameters(), *params.values()], lr=1.0)
    bounds = wc.clip_weights(optimizer, both, kappa=1.0).bounds
    assert bounds["0.weight"].s == 1 / 3
    assert bounds["1.0.weight"].s == 0.5


def test_measured_bounds_are_over_the_whole_stack() -> None:
    member, params = ensemble()
    bounds = wc.resolve_bounds(wc.stacked(member, params), "init")
    assert bounds["0.weight"].s == params["0.weight"].abs().max().item()


def test_output_layers_are_found_in_a_member() -> None:
    member, params = ensemble()
    bounds = wc.resolve_bounds(wc.stacked(member, params), clip_output_layers=False)
    assert bounds["2.weight"].reason == "output layer (clip_output_layers=False)"
    assert bounds["0.weight"].s == 0.5


def test_a_member_may_have_submodules_of_any_name() -> None:
    member = nn.ModuleDict({"base": nn.Linear(4, 2)})
    params = {"base.weight": torch.zeros(3, 2, 4, requires_grad=True)}
    assert wc.resolve_bounds(wc.stacked(member, params))["base.weight"].s == 0.5


def test_a_member_on_the_meta_device_is_sufficient() -> None:
    member, params = ensemble()
    assert wc.resolve_bounds(wc.stacked(member.to("meta"), params))["0.weight"].s == 0.5


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        (
            nn.Linear(4, 2),
            {"wieght": torch.zeros(3, 2, 4)},
            "'wieght' is not a parameter of Linear; expected one of weight",
        ),
        (
            nn.Linear(4, 2),
            {"weight": torch.zeros(3, 4, 2)},
            r"'weight' has shape \(3, 4, 2\), expected \(\*ens",
        ),
        (nn.Linear(4, 2), {"weight": 3}, "'weight' is a int, expected a tensor"),
        (nn.Linear(4, 2), [torch.zeros(3)], "params: got list, expected a mapping"),
        ([nn.Linear(4, 2)], {}, "model: got list, expected a torch.nn.Module"),
    ],
)
def test_invalid_arguments(model: Any, params: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        wc.stacked(model, params)
