"""Checkpoints and range rules: loading restores the saved kappa, a number or a rule with its scale."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

KAPPAS: dict[str, Any] = {
    "number": 2.0,
    "graded": wc.graded(0.25, 4.0, output=(0.5, 2.0)),
    "other graded": wc.graded(),
    "by layer": {"output": 0.5, "hidden": 1.0},
}
TEXTS = {
    "number": "kappa=0.5",
    "graded": "kappa=0.5 x graded(0.25, 4, output=0.5-2)",
    "other graded": "kappa=0.5 x graded(0.5, 8, output=2)",
    "by layer": "kappa=0.5 x output=0.5,hidden=1",
}
"""The kappa in the representation of a clipper after 0.5 was assigned to the groups."""


def make(kappa: Any = None) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    if kappa is not None:
        wc.clip_weights(optimizer, model, kappa)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    for step in steps:
        for group in optimizer.param_groups:
            group["kappa"] *= 0.9  # a schedule
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        (model(x) - 5).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def saved(kappa: Any) -> dict[str, Any]:
    _, optimizer = make(kappa)
    for group in optimizer.param_groups:
        group["kappa"] = 0.5
    return optimizer.state_dict()


def groups_alone(state: dict[str, Any]) -> dict[str, Any]:
    """Keep only the parameter groups, as `torch.distributed.checkpoint` does."""
    return {key: value for key, value in state.items() if key != "weightclip"}


def attach_first(state: dict[str, Any], kappa: Any) -> wc.Clipper:
    model, optimizer = make()
    clipper = wc.clip_weights(optimizer, model, kappa)
    optimizer.load_state_dict(copy.deepcopy(state))
    return clipper


def load_first(state: dict[str, Any], kappa: Any) -> wc.Clipper:
    model, optimizer = make()
    optimizer.load_state_dict(copy.deepcopy(state))
    return wc.clip_weights(optimizer, model, kappa)


ORDERS: dict[str, Callable[[dict[str, Any], Any], wc.Clipper]] = {
    "attach first": attach_first,
    "load first": load_first,
    "groups alone": lambda state, kappa: attach_first(groups_alone(state), kappa),
}


@pytest.mark.parametrize("load", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("attached", KAPPAS)
@pytest.mark.parametrize("name", KAPPAS)
def test_a_checkpoint_restores_its_kappa_and_one_warning_names_both(
    name: str, attached: str, load: Callable[[dict[str, Any], Any], wc.Clipper]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clipper = load(saved(KAPPAS[name]), KAPPAS[attached])
    assert repr(clipper).startswith(f"Clipper(Adam, {TEXTS[name]}: ")
    _, expected = make(KAPPAS[name])
    original = wc.find_clipper(expected)
    assert original is not None
    assert clipper.rule == original.rule
    assert clipper.bounds == original.bounds
    assert [group["kappa"] for group in clipper.optimizer.param_groups] == [0.5, 0.5]
    if name == attached:
        assert not caught
    else:
        (warning,) = caught
        assert warning.filename == __file__
        other = str(wc.find_clipper(make(KAPPAS[attached])[1]))
        given = other.partition("Adam, ")[2].partition(": clips")[0]
        have = "the param_groups have" if load is load_first else "the checkpoint has"
        assert f"{have} {TEXTS[name]}, which replaces {given}; to use {given}, call remove()" in str(warning.message)


@pytest.mark.parametrize("load", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("attached", KAPPAS)
@pytest.mark.filterwarnings("ignore:kappa. the:UserWarning")
def test_after_remove_the_argument_applies(attached: str, load: Callable[[dict[str, Any], Any], wc.Clipper]) -> None:
    clipper = load(saved(KAPPAS["graded" if attached != "graded" else "number"]), KAPPAS[attached])
    clipper.remove()
    fresh, expected = make(), make(KAPPAS[attached])[1]
    groups = [{key: value for key, value in g.items() if key != "params"} for g in clipper.optimizer.param_groups]
    assert groups == [{key: value for key, value in g.items() if key != "params"} for g in fresh[1].param_groups]
    assert clipper.optimizer.defaults == fresh[1].defaults
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    for group, layer in zip(clipper.optimizer.param_groups, (model[0], model[2]), strict=True):
        group["params"] = list(layer.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = wc.clip_weights(clipper.optimizer, model, KAPPAS[attached])
    assert repr(again) == repr(wc.find_clipper(expected))


@pytest.mark.parametrize("name", KAPPAS)
@pytest.mark.parametrize("load", ORDERS.values(), ids=ORDERS)
def test_a_scheduled_kappa_resumes_bit_for_bit(name: str, load: Callable[[dict[str, Any], Any], wc.Clipper]) -> None:
    model, optimizer = make(KAPPAS[name])
    train(model, optimizer, range(5))
    weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = train(model, optimizer, range(5, 12))
    clipper = load(state, KAPPAS[name])
    resumed = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    resumed[0].weight, resumed[0].bias = clipper.optimizer.param_groups[0]["params"]
    resumed[2].weight, resumed[2].bias = clipper.optimizer.param_groups[1]["params"]
    resumed.load_state_dict(weights)
    assert all(
        torch.equal(*pair) for pair in zip(expected, train(resumed, clipper.optimizer, range(5, 12)), strict=True)
    )


def test_a_checkpoint_without_clipping_keeps_the_rule() -> None:
    model, optimizer = make()
    clipper = wc.clip_weights(optimizer, model, wc.graded())
    optimizer.param_groups[0]["kappa"] = 0.5
    optimizer.load_state_dict(make()[1].state_dict())
    assert repr(clipper).startswith("Clipper(Adam, kappa=0.5 x graded(0.5, 8, output=2), graded(0.5, 8, output=2):")


def test_a_loaded_kappa_that_is_deleted_from_the_groups_is_not_used() -> None:
    model, optimizer = make()
    optimizer.load_state_dict(saved(wc.graded(0.25, 4.0)))
    for group in optimizer.param_groups:
        del group["kappa"]
    assert wc.clip_weights(optimizer, model, 2.0).rule is None
    assert [group["kappa"] for group in optimizer.param_groups] == [2.0, 2.0]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
class TestCopies:
    """Copying an optimizer copies its groups and drops its hooks."""

    def copied(self, kappa: Any, duplicate: Callable[[Any], Any]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model, optimizer = make(kappa)
        for group in optimizer.param_groups:
            group["kappa"] = 0.5
        copies: tuple[nn.Sequential, torch.optim.Optimizer] = duplicate((model, optimizer))
        return copies

    @pytest.mark.parametrize("name", KAPPAS)
    def test_the_same_kappa_continues_without_a_warning(self, name: str, duplicate: Callable[[Any], Any]) -> None:
        model, optimizer = self.copied(KAPPAS[name], duplicate)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clipper = wc.clip_weights(optimizer, model, KAPPAS[name])
        assert repr(clipper).startswith(f"Clipper(Adam, {TEXTS[name]}: ")

    def test_a_single_kappa_does_not_multiply_a_rule(self, duplicate: Callable[[Any], Any]) -> None:
        model, optimizer = self.copied(2.0, duplicate)
        with pytest.warns(UserWarning, match=r"the param_groups have kappa=0.5, which replaces kappa=graded"):
            clipper = wc.clip_weights(optimizer, model, wc.graded())
        assert clipper.rule is None

    def test_the_scale_of_a_rule_does_not_become_a_single_kappa(self, duplicate: Callable[[Any], Any]) -> None:
        model, optimizer = self.copied(wc.graded(), duplicate)
        with pytest.warns(UserWarning, match="have the scale of a rule, but not the rule; kappa=2 is used"):
            clipper = wc.clip_weights(optimizer, model, 2.0)
        assert repr(clipper).startswith("Clipper(Adam, kappa=2: ")
        assert "kappa_scales_rule" not in optimizer.state_dict()["param_groups"][0]


def test_a_group_with_its_own_kappa_keeps_it_and_the_others_follow_the_rule() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "kappa": 3.0}, {"params": model[2].parameters()}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipper = wc.clip_weights(torch.optim.SGD(groups, lr=0.1), model, {"output": 0.5})
    assert repr(clipper).startswith("Clipper(SGD, kappa=3, output=0.5: clips 4 of 4")
    state = clipper.optimizer.state_dict()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(9.0)
    clipper.clip()
    assert model[0].weight[0, 0] == 3.0 * 0.5
    assert model[2].weight[0, 0].item() == pytest.approx(0.5 / 3**0.5)

    other = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    for attach_before in (True, False):
        optimizer = torch.optim.SGD([{"params": other[0].parameters()}, {"params": other[2].parameters()}], lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if attach_before:
                resumed = wc.clip_weights(optimizer, other, {"output": 0.5})
            optimizer.load_state_dict(copy.deepcopy(state))
            if not attach_before:
                resumed = wc.clip_weights(optimizer, other, {"output": 0.5})
        assert repr(resumed) == repr(clipper)
        assert resumed.bounds == clipper.bounds


def test_if_all_groups_have_their_own_kappa_the_rule_is_not_used_and_a_warning_is_issued() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "kappa": 2.0}, {"params": model[2].parameters(), "kappa": float("inf")}]
    with pytest.warns(UserWarning, match=r"have kappa=2, inf, which replaces kappa=graded\(0.5, 8, output=2\)"):
        clipper = wc.clip_weights(torch.optim.SGD(groups, lr=0.1), model, wc.graded())
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(9.0)
    clipper.clip()
    assert (model[0].weight == 2 * 0.5).all()
    assert (model[2].weight == 9.0).all()


def test_a_group_added_later_scales_the_rule() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.0)
    clipper = wc.clip_weights(optimizer, model, {"*": 3.0})
    optimizer.add_param_group({"params": model[2].parameters(), "kappa": 0.5})
    with torch.no_grad():
        model[2].bias.fill_(9.0)
    optimizer.step()
    assert model[2].bias[0].item() == pytest.approx(1.5 / 3**0.5)
    assert repr(clipper).startswith("Clipper(SGD, kappa=*=3, 0.5 x *=3: clips 4 of 4")


def test_a_group_added_after_loading_has_the_kappa_of_the_checkpoint() -> None:
    state = saved(2.0)
    for attached, loaded, expected in ((wc.graded(), state, 0.5), (2.0, saved(wc.graded()), 1.0)):
        model, optimizer = make()
        model.append(nn.Linear(2, 2))
        clipper = wc.clip_weights(optimizer, model, attached)  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match="which replaces"):
            optimizer.load_state_dict(loaded)
        optimizer.add_param_group({"params": model[3].parameters()})
        optimizer.step()
        assert optimizer.param_groups[2]["kappa"] == expected
        assert (clipper.rule is None) == (loaded is state)


def test_a_failed_attachment_leaves_the_groups_unchanged() -> None:
    model, optimizer = make()
    optimizer.load_state_dict(saved(wc.graded(0.25, 4.0)))
    before = copy.deepcopy(optimizer.state_dict()["param_groups"])
    with pytest.raises(ValueError, match="it does not own 2 of the optimizer"):
        wc.clip_weights(optimizer, nn.Sequential(model[0]), wc.graded(0.25, 4.0))
    assert optimizer.state_dict()["param_groups"] == before


class TestClippedClasses:
    def make(self, kappa: Any) -> tuple[nn.Sequential, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        return model, wc.clipped(torch.optim.SGD)(model.named_parameters(), lr=0.1, kappa=kappa)

    @pytest.mark.parametrize("attached", [2.0, wc.graded(output="1.*"), {"1.*": 3.0}], ids=str)
    @pytest.mark.parametrize("kept", [2.0, wc.graded(output="1.*"), {"1.*": 3.0}], ids=str)
    def test_a_checkpoint_restores_its_kappa(self, kept: Any, attached: Any) -> None:
        _, original = self.make(kept)
        original.param_groups[0]["kappa"] = 0.5
        _, optimizer = self.make(attached)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.load_state_dict(original.state_dict())
        assert repr(optimizer.clipper) == repr(original.clipper)
        assert len(caught) == (kept != attached)
        assert repr(copy.deepcopy(optimizer).clipper) == repr(original.clipper)
