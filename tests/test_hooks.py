import copy
import gc
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import weightclip as wc


def linear() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def step(model: nn.Linear, optimizer: torch.optim.Optimizer, gradient: float = 0.0) -> float:
    model.weight.grad = torch.full((1, 4), gradient)
    optimizer.step()
    return model.weight[0, 0].item()


def push_out(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.add_(10.0)


def test_clipping_acts_after_hooks_registered_later() -> None:
    model, optimizer = linear()
    wc.clip_weights(optimizer, model, kappa=1.0)
    optimizer.register_step_post_hook(push_out)
    assert step(model, optimizer) == 0.5


@pytest.mark.parametrize("statistics", [False, True])
def test_clipping_acts_after_global_optimizer_hooks(statistics: bool) -> None:
    model, optimizer = linear()
    clipper = wc.clip_weights(optimizer, model, kappa=1.0, track_clipped=statistics)
    handle = register_optimizer_step_post_hook(push_out)
    try:
        assert step(model, optimizer) == 0.5
        if statistics:
            assert clipper.clipped_fraction == 1.0
    finally:
        handle.remove()


def test_clipping_acts_after_regularizers_attached_later() -> None:
    model, optimizer = linear()
    wc.clip_weights(optimizer, model, kappa=1.0)
    wc.shrink_and_perturb(optimizer, 0.0, 100.0)
    assert abs(step(model, optimizer)) == 0.5


def test_regularizers_act_in_the_order_of_attachment() -> None:
    """The reference weights are recorded after the first step, and after shrinking if that is attached first."""
    results = []
    for order in (1, -1):
        model, optimizer = linear()
        attach = [
            lambda o: wc.shrink_and_perturb(o, 0.5, 0.0),
            lambda o: wc.l2_init(o, 1.0, variant="paper"),
        ][::order]
        for each in attach:
            each(optimizer)
        results.append(step(model, optimizer, gradient=-0.5))
    assert results == [0.5 / 2 + 0.5 / 2, (0.5 + 0.5) / 2]


class Wrapped(torch.optim.SGD):
    """An optimizer whose step calls the step of its base class, so that PyTorch runs the hooks twice."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("with_closure", [False, True])
def test_an_optimizer_that_calls_its_base_class_counts_one_step(with_closure: bool) -> None:
    plain, other = nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False)
    other.load_state_dict(plain.state_dict())
    for model, optimizer in (
        (plain, torch.optim.SGD(plain.parameters(), lr=1.0)),
        (other, Wrapped(other.parameters(), lr=1.0)),
    ):
        wc.l2(optimizer, 0.1)
        wc.l2_init(optimizer, 0.1, variant="paper")
        wc.shrink_and_perturb(optimizer, 0.1, 0.1)
        wc.clip_weights(optimizer, model, kappa=2.0, every=2)

        def closure(model: nn.Linear = model) -> float:
            model.weight.grad = torch.full((1, 4), 0.1)
            return 0.0

        for _ in range(3):
            if with_closure:
                optimizer.step(closure)
            else:
                step(model, optimizer, 0.1)
    assert torch.equal(plain.weight, other.weight)


def test_a_gradient_is_adjusted_again_after_a_step_that_failed() -> None:
    model, optimizer = linear()
    wc.l2(optimizer, 1.0)

    def fail(optimizer: Any, args: Any, kwargs: Any) -> None:
        raise OSError("no data")

    handle = optimizer.register_step_pre_hook(fail)
    with pytest.raises(OSError, match="no data"):
        step(model, optimizer)
    handle.remove()
    assert step(model, optimizer) == 0.0  # 0.5 - 0.5


def test_a_step_that_fails_does_not_stop_the_next_one_from_clipping() -> None:
    model, optimizer = linear()
    wc.clip_weights(optimizer, model, kappa=1.0)

    def broken() -> float:
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        optimizer.step(broken)
    assert step(model, optimizer, gradient=-3.0) == 0.5


def test_a_clipped_optimizer_is_garbage_collected() -> None:
    model, optimizer = linear()
    wc.clip_weights(optimizer, model, kappa=1.0)
    step(model, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_importing_does_not_affect_other_optimizers() -> None:
    model, optimizer = linear()
    before = repr(optimizer)
    assert step(model, optimizer, gradient=-3.0) == 3.5
    assert repr(optimizer) == before


SCRIPT = Path(__file__).with_name("interrupted_training.py")


def test_save_kill_load_resume(tmp_path: Path) -> None:
    """A process that is killed in the middle of a step resumes from its checkpoint and reaches the same weights."""
    killed = subprocess.run([sys.executable, SCRIPT, tmp_path / "killed", "--kill-at", "7"])
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, SCRIPT, tmp_path / "killed"], check=True)
    subprocess.run([sys.executable, SCRIPT, tmp_path / "whole"], check=True)
    a, b = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("killed", "whole"))
    assert a["step"] == b["step"] == 12
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in b["model"])


class Scale(wc.Regularizer):
    """A custom regularizer that counts its steps and scales the weights after each step."""

    key, group_keys = "scale", ("scale_factor",)

    def __init__(self, optimizer: torch.optim.Optimizer, factor: float) -> None:
        super().__init__(optimizer, scale_factor=factor)
        self.steps = 0

    @torch.no_grad()
    def after_step(self) -> None:
        self.steps += 1
        for group, p in self.updated_parameters():
            p.mul_(group["scale_factor"])

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_a_custom_regularizer_composes_with_clipping_and_is_saved() -> None:
    model, optimizer = linear()
    wc.clip_weights(optimizer, model, kappa=1.0)
    regularizer = Scale(optimizer, 4.0).attach()
    assert step(model, optimizer) == 0.5  # clip(4 * 0.5)
    saved = optimizer.state_dict()
    assert saved["weightclip"]["scale"] == {"steps": 1}

    other, resumed = linear()
    own = Scale(resumed, 1.0).attach()
    resumed.load_state_dict({**saved, "weightclip": {"scale": saved["weightclip"]["scale"]}})
    assert own.steps == 1
    assert step(other, resumed) == 2.0
    regularizer.remove()
    assert "scale_factor" not in optimizer.param_groups[0]


def test_a_custom_regularizer_raises_the_same_errors_as_built_in_ones() -> None:
    _, optimizer = linear()
    Scale(optimizer, 1.0).attach()
    with pytest.raises(ValueError, match="optimizer: scale is already attached"):
        Scale(optimizer, 1.0)
    with pytest.raises(TypeError, match="optimizer: got str, expected"):
        Scale("adam", 1.0)  # type: ignore[arg-type]


def test_a_lost_custom_regularizer_is_named_by_its_class() -> None:
    model, optimizer = linear()
    Scale(optimizer, 1.0).attach()
    model, optimizer = copy.deepcopy((model, optimizer))
    with pytest.warns(RuntimeWarning, match="scale no longer acts on this SGD.*Call Scale on it again"):
        step(model, optimizer)
