"""Limits per unit: unit dimensions, the cost of clipping, and changes of kappa."""

import math
import statistics
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import weightclip as wc
from vectors import unit_range
from weightclip import _ranges


class Conv1D(nn.Module):
    """Like Hugging Face's layer, whose weight is [in, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(inputs, outputs)), nn.Parameter(torch.zeros(outputs))


Conv1D.__module__ = "transformers.pytorch_utils"


def attach(layer: nn.Module, kappa: object = None) -> wc.Clipper:
    rule = wc.graded(0.5, 8.0, output_layers="1.*") if kappa is None else kappa
    model = nn.ModuleList([layer, nn.Linear(2, 2)])
    return wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.0), model, rule)  # type: ignore[arg-type]


LARGE = {
    "rows": lambda: nn.Linear(150, 200),
    "transposed": lambda: nn.ConvTranspose2d(60, 50, 3),
    "transposed, 1 x 1": lambda: nn.ConvTranspose1d(300, 100, 1),
    "inputs first": lambda: Conv1D(150, 200),
    "channels last": lambda: nn.Conv2d(60, 50, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    "transposed, channels last": lambda: nn.ConvTranspose2d(60, 50, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    "long runs": lambda: nn.ConvTranspose1d(10, 20, 100),
    "small": lambda: nn.ConvTranspose2d(3, 5, 3),
    "half precision": lambda: nn.ConvTranspose2d(60, 50, 3).bfloat16(),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_each_entry_is_clipped_to_the_limit_of_its_unit(make: Callable[[], nn.Module], kappa: float) -> None:
    layer = make()
    clipper = attach(layer)
    clipper.optimizer.param_groups[0]["kappa"] = kappa
    weight = layer.weight
    assert isinstance(weight, Tensor)
    dim = 0 if isinstance(layer, (nn.Linear, nn.Conv2d)) else 1
    s = clipper.bounds["0.weight"].s
    assert s is not None
    limits = torch.tensor([kappa * unit_range(i, 0.5, 8.0) * s for i in range(weight.shape[dim])], dtype=torch.float64)
    limits = limits.reshape([-1 if d == dim else 1 for d in range(weight.dim())])
    with torch.no_grad():
        weight.normal_().mul_(4 * s)
        weight.flatten()[:1].fill_(math.nan)
    before = weight.detach().double()
    clipper.clip()
    after = weight.detach().double()
    expected = before.clamp(-limits, limits)
    torch.testing.assert_close(
        after, expected, rtol=1e-6 if weight.dtype == torch.float32 else 1e-2, atol=0, equal_nan=True
    )
    assert ((after.abs() <= limits) | after.isnan()).all()  # rounded toward 0
    assert torch.equal(after[before.abs() <= limits * 0.99], before[before.abs() <= limits * 0.99])


def test_a_tensor_with_gaps_in_memory_is_clipped() -> None:
    layer = nn.Linear(300, 200)
    layer.weight = nn.Parameter(torch.full((200, 600), 9.0)[:, ::2])
    attach(layer).clip()
    expected = torch.tensor([unit_range(i, 0.5, 8.0) for i in range(200)]) / math.sqrt(300)
    torch.testing.assert_close(layer.weight.detach(), expected[:, None].expand(200, 300))


def test_clipping_by_unit_costs_little_more_than_by_one_kappa_for_any_unit_dimension() -> None:
    """The expected factor is below 2; a regression with transposed convolutions had 17."""
    layer = nn.ConvTranspose2d(256, 128, 3)
    clips = {name: attach(layer, kappa).clip for name, kappa in (("one", 2.0), ("graded", None))}
    times: dict[str, list[float]] = {name: [] for name in clips}
    for _ in range(60):
        for name, clip in clips.items():
            start = time.perf_counter()
            clip()
            times[name].append(time.perf_counter() - start)
    assert statistics.median(times["graded"]) < 5 * statistics.median(times["one"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_limits_of_large_tensors_stay_in_the_l1_cache(dtype: torch.dtype) -> None:
    """Short rows of limits are repeated because each row has an overhead; rows beyond 4 KB are slower."""
    layer = nn.ConvTranspose1d(512, 100, 1).to(dtype)
    clipper = attach(layer)
    (limits,) = (high for part, _, high in clipper._boxes[0].plan if part.numel() == layer.weight.numel())
    assert isinstance(limits, Tensor)
    assert 1024 < limits.numel() * limits.element_size() <= 4096


def test_changing_kappa_does_not_recompute_the_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    clipper = attach(nn.Linear(4, 3))
    clipper.clip()

    def unit_kappa(i: int, low: float, high: float) -> float:
        raise AssertionError("the ranges do not depend on kappa")

    monkeypatch.setattr(_ranges, "unit_kappa", unit_kappa)
    for kappa in (0.5, math.inf, 2.0):
        clipper.optimizer.param_groups[0]["kappa"] = kappa
        clipper.clip()
