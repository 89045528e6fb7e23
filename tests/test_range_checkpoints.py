"""Checkpoints and range rules: a rule does not silently multiply the single kappa of a checkpoint."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

SCALED = r"param_groups have kappa=2, which multiplies graded\(0.5, 8, output=2\); .* set group\['kappa'\] = 1.0"


def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def saved(kappa: Any) -> dict[str, Any]:
    model, optimizer = make()
    wc.clip_weights(optimizer, model, kappa)
    return optimizer.state_dict()


def test_a_rule_attached_after_loading_a_single_kappa_warns() -> None:
    model, optimizer = make()
    optimizer.load_state_dict(saved(2.0))
    with pytest.warns(UserWarning, match=SCALED) as caught:
        wc.clip_weights(optimizer, model, wc.graded())
    assert caught[0].filename == __file__
    model, optimizer = make()
    optimizer.load_state_dict(saved(2.0))
    with pytest.warns(UserWarning, match="kappa=2, which multiplies hidden=5,output=1"):
        wc.clip_weights(optimizer, model, {"hidden": 5.0, "output": 1.0})


def test_loading_a_single_kappa_without_its_entry_warns() -> None:
    """As from `torch.distributed.checkpoint`, which keeps only the groups."""
    state = saved(2.0)
    del state["weightclip"]
    model, optimizer = make()
    clipper = wc.clip_weights(optimizer, model, wc.graded())
    with pytest.warns(UserWarning, match=SCALED):
        optimizer.load_state_dict(state)
    assert repr(clipper).startswith("Clipper(SGD, kappa=2 x graded(0.5, 8, output=2)")


def test_the_rule_of_a_checkpoint_and_its_scale_load_without_a_warning() -> None:
    model, optimizer = make()
    wc.clip_weights(optimizer, model, wc.graded(0.25, 4.0))
    optimizer.param_groups[0]["kappa"] = 0.5
    state = optimizer.state_dict()
    for entries in (state, {key: value for key, value in state.items() if key != "weightclip"}):
        for attach_first in (True, False):
            model, optimizer = make()
            if attach_first:
                clipper = wc.clip_weights(optimizer, model, wc.graded())
            optimizer.load_state_dict(copy.deepcopy(entries))
            if not attach_first:
                clipper = wc.clip_weights(optimizer, model, wc.graded())
            assert repr(clipper).startswith("Clipper(SGD, kappa=0.5 x graded(0.25, 4, output=2)")


def test_a_single_kappa_with_its_entry_replaces_the_rule_and_none_keeps_it() -> None:
    model, optimizer = make()
    clipper = wc.clip_weights(optimizer, model, wc.graded())
    optimizer.load_state_dict(make()[1].state_dict())  # of an optimizer without clipping
    assert clipper.rule == wc.graded()
    optimizer.load_state_dict(saved(2.0))
    assert (clipper.rule, optimizer.param_groups[0]["kappa"]) == (None, 2.0)


def test_a_kappa_that_the_user_sets_for_a_group_scales_the_rule() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "kappa": 2.0}, {"params": model[2].parameters(), "kappa": float("inf")}]
    with pytest.warns(UserWarning, match=SCALED):
        clipper = wc.clip_weights(torch.optim.SGD(groups, lr=0.1), model, wc.graded())
    with torch.no_grad():
        model[0].weight.fill_(9.0)
    clipper.clip()
    assert model[0].weight[0, 0] == 2 * 0.5 * 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipper.optimizer.param_groups[0]["kappa"] = 3.0  # after attaching, it is the user's own
        clipper.optimizer.load_state_dict(clipper.optimizer.state_dict())
        copy.deepcopy((model, clipper.optimizer, clipper))
