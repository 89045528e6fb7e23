"""Optimizer checkpoints of version 0.1.0 load, and training continues bit for bit as with 0.1.0."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Adam, Optimizer

import weightclip as wc

FOLDER = Path(__file__).parent / "fixtures" / "checkpoints_0_1_0"
Attach = Callable[[Optimizer, nn.Module], Any]

ATTACH: dict[str, Attach] = {
    "clip": lambda o, m: wc.clip_weights(o, m, 9.0),
    "clip_per_group": lambda o, m: wc.clip_weights(o, m, 9.0),
    "clip_init": lambda o, m: wc.clip_weights(o, m, 9.0, bounds="init"),
    "clip_every_3": lambda o, m: wc.clip_weights(o, m, 9.0, bounds="init", every=3),
    "clip_graded": lambda o, m: wc.clip_weights(o, m, wc.graded()),
    "clip_by_layer": lambda o, m: wc.clip_weights(o, m, {"output": 9.0}),
    "l2": lambda o, m: wc.l2(o, 9.0),
    "l2_init": lambda o, m: wc.l2_init(o, 9.0),
    "l2_init_paper": lambda o, m: wc.l2_init(o, 9.0, variant="paper"),
    "shrink_and_perturb": lambda o, m: wc.shrink_and_perturb(o, 0.9, 9.0, every=2),
    "shrink_and_perturb_paper": lambda o, m: wc.shrink_and_perturb(o, 0.9, 9.0, variant="paper"),
    "l2_and_clip": lambda o, m: (wc.l2(o, 9.0), wc.clip_weights(o, m, 9.0)),
    "madam": lambda o, m: None,
}
"""Settings that differ from the checkpoint, which restores its settings."""

IN_GROUPS = ("clip", "clip_per_group", "clip_init", "clip_every_3", "clip_graded", "clip_by_layer", "l2", "l2_and_clip")
"""Checkpoints whose groups contain the whole state, so that the optimizer may be loaded before attaching."""


def load(name: str) -> tuple[nn.Sequential, Optimizer, dict[str, Any]]:
    saved = torch.load(FOLDER / f"{name}.pt", weights_only=True)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))
    if name == "madam":
        return model, wc.Madam(model.parameters(), lr=0.9, kappa=9.0), saved
    return model, Adam([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.9), saved


def check_next_steps(model: nn.Module, optimizer: Optimizer, saved: dict[str, Any]) -> None:
    for gradient, expected in zip(saved["gradients"], saved["weights"], strict=True):
        for p in model.parameters():
            p.grad, gradient = gradient[: p.numel()].view_as(p), gradient[p.numel() :]
        optimizer.step()
        assert torch.equal(parameters_to_vector(model.parameters()), expected)


def restores(name: str) -> AbstractContextManager[object]:
    """Expect a warning with the checkpoint's rule if it differs from the attached one, and none for a number."""
    rules = {"clip_graded": r"kappa=graded\(0.25, 4, output=0.5-2\)", "clip_by_layer": "kappa=output=0.5,hidden=1"}
    return pytest.warns(UserWarning, match=f"{rules[name]}, which replaces") if name in rules else nullcontext()


def test_every_file_is_loaded() -> None:
    files = list(FOLDER.glob("*.pt"))
    assert {file.stem for file in files} == set(ATTACH)
    assert sum(file.stat().st_size for file in files) < 100_000


@pytest.mark.parametrize("name", ATTACH)
def test_training_continues(name: str) -> None:
    model, optimizer, saved = load(name)
    ATTACH[name](optimizer, model)
    vector_to_parameters(saved["model"], model.parameters())
    with restores(name):
        optimizer.load_state_dict(saved["optimizer"])
    check_next_steps(model, optimizer, saved)


@pytest.mark.parametrize("name", IN_GROUPS)
def test_training_continues_if_the_optimizer_was_loaded_first(name: str) -> None:
    model, optimizer, saved = load(name)
    vector_to_parameters(saved["model"], model.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    with restores(name):
        ATTACH[name](optimizer, model)
    check_next_steps(model, optimizer, saved)


@pytest.mark.parametrize(
    ("name", "kappa", "message"),
    [
        ("clip", wc.graded(), "kappa=0.5, which replaces kappa=graded"),
        ("clip_graded", 9.0, r"kappa=graded\(0.25, 4, output=0.5-2\), which replaces kappa=9"),
    ],
)
def test_a_loaded_number_replaces_an_attached_rule_and_vice_versa(name: str, kappa: Any, message: str) -> None:
    model, optimizer, saved = load(name)
    vector_to_parameters(saved["model"], model.parameters())
    wc.clip_weights(optimizer, model, kappa)
    with pytest.warns(UserWarning, match=message):
        optimizer.load_state_dict(saved["optimizer"])
    check_next_steps(model, optimizer, saved)

    model, optimizer, saved = load(name)
    vector_to_parameters(saved["model"], model.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    with pytest.warns(UserWarning, match=message):
        wc.clip_weights(optimizer, model, kappa)
    check_next_steps(model, optimizer, saved)


def test_madams_settings_are_renamed() -> None:
    _, optimizer, saved = load("madam")
    assert saved["optimizer"]["param_groups"][0]["largest"] == 1.2
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.param_groups[0]["max_update"] == 1.2
    assert "largest" not in optimizer.param_groups[0]
