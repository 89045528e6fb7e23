import math
from typing import Any

import pytest
import torch
from torch import nn

from weightclip import clip_weights, graded
from weightclip.lab import checkpoint
from weightclip.lab.checkpoint import (
    Checkpoint,
    CheckpointSchedule,
    flatten,
    inexact_reason,
    load_training_state,
    numerics,
    training_state,
    unflatten,
)
from weightclip.lab.runner import how_resumed


@pytest.mark.parametrize("costs", [[1.0] * 60, [0.01 * n for n in range(1, 200)], [5.0, *[0.1] * 200]])
def test_checkpoints_take_a_fiftieth_of_the_time(costs: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether their cost is constant, grows like a replay buffer, or falls; but for the last one."""
    now = 100.0
    monkeypatch.setattr(checkpoint, "MAX_FRACTION", 0.02)
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: now)
    schedule, spent = CheckpointSchedule(), 0.0
    assert schedule.is_due()
    for cost in costs:
        with schedule.writing():
            now += cost
        assert spent <= 0.02 * (now - cost - 100.0) + 1e-9
        spent += cost
        while not schedule.is_due():
            now += 0.5


@pytest.mark.parametrize(
    ("before", "device", "reason"),
    [
        ({}, "cpu", None),
        ({"threads": "64"}, "cpu", "threads was 64, is 1"),
        ({"torch": "2.6.0"}, "cpu", f"torch was 2.6.0, is {numerics()['torch']}"),
        ({"device": "cuda"}, "cuda", "sums on a GPU differ from run to run"),
        ({"weightclip": "0.1.0"}, "cpu", f"weightclip was 0.1.0, is {numerics()['weightclip']}"),
        ({"compiled code": "a"}, "cpu", "compiled code was a, is kernel"),
        (None, "cpu", "the checkpoint has no versions"),
    ],
)
@pytest.mark.parametrize("earlier", ["never", "exact", "inexact", "restarted episodes"])
def test_how_a_run_is_resumed(before: dict[str, str] | None, device: str, reason: str | None, earlier: str) -> None:
    now = numerics(device, kernel="kernel")
    saved = None if before is None else {**numerics(kernel="kernel"), **before}
    assert inexact_reason(saved, now) == reason
    lines: list[str] = []
    found = how_resumed(Checkpoint("", [], {}, 0.0, earlier, saved), "run", now, None, lines.append)
    worst = earlier if earlier in ("inexact", "restarted episodes") else "exact"
    assert found == ("inexact" if reason is not None and worst == "exact" else worst)
    assert lines == ([] if reason is None else [f"run: the last digits may differ from an uninterrupted run: {reason}"])
    assert how_resumed(Checkpoint("", [], {}, 0.0, earlier, saved), "run", now, "why", lines.append) == (
        "restarted episodes"
    )
    new_episodes = "run: starting new episodes, so the numbers differ from an uninterrupted run: why"
    assert (new_episodes in lines) == (earlier != "restarted episodes")  # reported only once


def test_a_checkpoint_without_the_version_is_inexact() -> None:
    """Those of 0.2.0 before its version was saved."""
    saved = {name: value for name, value in numerics().items() if name != "weightclip"}
    assert inexact_reason(saved, numerics()) == f"weightclip was unknown, is {numerics()['weightclip']}"


def test_a_nested_state_is_restored_with_its_types() -> None:
    tree = {
        "model": {"0.weight": torch.randn(2, 3), "0.bias": torch.zeros(2, dtype=torch.float64)},
        "state": {0: {"step": 3, "v": torch.tensor(2.0)}, 12: {"rate": 0.1, "on": True}},
        "measured": {},
        "ranges": [["hidden", math.inf], ["output", 1.0]],
        "generators": {"cpu": torch.Generator().get_state()},
    }
    back = unflatten(flatten(tree))
    assert list(back) == list(tree)
    assert torch.equal(back["model"]["0.weight"], tree["model"]["0.weight"])
    assert back["model"]["0.bias"].dtype == torch.float64
    assert back["state"][0]["step"] == 3
    assert type(back["state"][0]["step"]) is int
    assert back["state"][0]["v"].shape == ()
    assert back["state"][12] == {"rate": 0.1, "on": True}
    assert back["measured"] == {}
    assert back["ranges"] == tree["ranges"]
    assert torch.equal(back["generators"]["cpu"], tree["generators"]["cpu"])


def test_objects_that_require_pickling_are_rejected() -> None:
    with pytest.raises(TypeError, match="a/b: got object"):
        flatten({"a": {"b": object()}})


def test_training_resumes_in_any_memory_format() -> None:
    """A fused optimizer requires the same memory layout of a parameter and its state."""

    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.Adam(model.parameters(), lr=0.1, fused=True)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    one, other = make(0), make(1)
    step(*one, seed=0)
    load_training_state(*other, training_state(*one))
    for trained in (one, other):
        step(*trained, seed=1)
    assert torch.equal(one[0].weight, other[0].weight)


@pytest.mark.parametrize("kappa", [2.0, {"output": 1.0, "hidden": math.inf}, graded(output=(0.25, 8.0))])
def test_training_resumes_with_any_range(kappa: Any) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        clip_weights(optimizer, model, kappa=kappa)
        return model, optimizer

    one, other = make(), make()
    one[0](torch.ones(1, 3)).sum().backward()
    one[1].step()
    load_training_state(*other, training_state(*one))
    assert training_state(*other).keys() == training_state(*one).keys()
    assert other[1].state_dict()["weightclip"] == one[1].state_dict()["weightclip"]
