import copy
import io
import math
import pickle
import re
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import weightclip as wc
from weightclip._box import clamp_all_, limit
from weightclip.bounds import Bound


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator)).square().sum().backward()
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def in_box(model: nn.Module, kappa: float) -> bool:
    return all(
        p.abs().max().item() <= kappa * (wc.resolve_bounds(model)[n].s or math.inf) for n, p in model.named_parameters()
    )


def test_every_step_ends_in_the_box() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    wc.clip_weights(optimizer, model, kappa=1.5)
    for _ in range(5):
        train(model, optimizer)
        assert in_box(model, 1.5)
    assert any((p.abs() == p.abs().max()).sum() > 1 for p in model.parameters())  # entries at the bound


def test_infinite_kappa_is_bit_identical_to_no_clipping() -> None:
    plain, clipped = network(), network()
    a = torch.optim.Adam(plain.parameters(), lr=0.5)
    b = torch.optim.Adam(clipped.parameters(), lr=0.5)
    wc.clip_weights(b, clipped, kappa=math.inf)
    train(plain, a, 10)
    train(clipped, b, 10)
    assert same(weights(plain), weights(clipped))


def test_entries_inside_the_box_are_bit_identical_and_the_others_at_the_bound() -> None:
    plain, clipped = network(), network()
    a = torch.optim.SGD(plain.parameters(), lr=0.1)
    b = torch.optim.SGD(clipped.parameters(), lr=0.1)
    wc.clip_weights(b, clipped, kappa=1.0)
    train(plain, a)
    train(clipped, b)
    bounds = wc.resolve_bounds(clipped)
    cut = 0
    for (name, p), q in zip(clipped.named_parameters(), plain.parameters(), strict=True):
        bound = limit(1.0, bounds[name], p.dtype)
        inside = q.abs() <= bound
        assert torch.equal(p[inside], q[inside])
        assert torch.equal(p[~inside], q[~inside].sign() * bound)
        cut += int((~inside).sum())
    assert cut > 0


def test_clipping_twice_equals_clipping_once() -> None:
    model = network()
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=0.5)
    clipper.clip()
    once = weights(model)
    clipper.clip()
    assert same(once, weights(model))
    assert in_box(model, 0.5)


def test_clipping_is_applied_after_weight_decay_and_momentum() -> None:
    """Decay toward 0 would shrink the clipped weights; momentum moves them out of the box again."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
    wc.clip_weights(optimizer, model, kappa=1.0)
    model.weight.grad = torch.full((1, 4), -1.0)
    optimizer.step()
    assert model.weight.tolist() == [[0.5] * 4]  # 0.5 + 1 - 0.05, clipped
    model.weight.grad = torch.zeros(1, 4)
    optimizer.step()
    assert model.weight.tolist() == [[0.5] * 4]  # momentum alone would give 1.305
    assert optimizer.state[model.weight]["momentum_buffer"][0, 0].item() == pytest.approx(-0.9 * 0.95 + 0.05)


@given(
    st.floats(1e-3, 1e3),
    st.integers(1, 10_000),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_limit_is_the_largest_number_not_above_the_bound(kappa: float, fan_in: int, dtype: torch.dtype) -> None:
    s = 1 / math.sqrt(fan_in)
    bound = limit(kappa, Bound(s), dtype)
    assert bound <= kappa * s
    assert torch.tensor(bound, dtype=dtype).item() == bound
    above = torch.nextafter(torch.tensor(bound, dtype=dtype), torch.tensor(math.inf, dtype=dtype)).item()
    assert above > kappa * s


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_low_precision_weights_stay_in_the_box(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=0.7)
    clipper.clip()
    assert in_box(model, 0.7)


def test_the_foreach_implementation_equals_the_loop() -> None:
    """The foreach path, which runs on accelerators, agrees with the loop on the CPU, including NaN."""
    tensors = [torch.tensor([-2.0, -0.1, math.nan, math.inf]), torch.tensor([3.0])]
    expected = [t.clamp(-bound, bound) for t, bound in zip(tensors, (0.5, 0.25), strict=True)]
    clamp_all_(tensors, [0.5, 0.25])
    for a, b in zip(tensors, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert tensors[1].item() == 0.25


class TestKappa:
    def test_is_stored_in_the_groups_and_may_differ(self) -> None:
        model = network()
        groups = [{"params": model[0].parameters(), "kappa": 0.5}, {"params": model[2].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=10.0)
        wc.clip_weights(optimizer, model, kappa=2.0)
        train(model, optimizer)
        assert [group["kappa"] for group in optimizer.param_groups] == [0.5, 2.0]
        assert in_box(model[0], 0.5)
        assert in_box(model[2], 2.0)
        assert not in_box(model[2], 1.9)

    def test_can_be_scheduled(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        wc.clip_weights(optimizer, model, kappa=2.0)
        for kappa in (2.0, 1.0, 0.5, 3.0):
            optimizer.param_groups[0]["kappa"] = kappa
            train(model, optimizer)
            assert in_box(model, kappa)
            assert not in_box(model, 0.99 * kappa)

    @pytest.mark.parametrize("bad", [-1.0, None])
    def test_an_invalid_value_raises_an_error(self, bad: float | None) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        wc.clip_weights(optimizer, model, kappa=2.0)
        optimizer.param_groups[0]["kappa"] = bad
        with pytest.raises(ValueError, match=rf"kappa: got {bad}, expected a positive number"):
            train(model, optimizer)

    @pytest.mark.parametrize(
        "kappa", [0, -1.0, math.nan, "2", None, True, torch.tensor([2.0]), torch.tensor(-2.0), torch.tensor(True)]
    )
    def test_must_be_a_positive_number(self, kappa: Any) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(ValueError, match=r"kappa: got .*, expected a positive number"):
            wc.clip_weights(optimizer, model, kappa=kappa)
        assert "kappa" not in optimizer.param_groups[0]
        assert not optimizer._optimizer_step_post_hooks

    def test_may_be_a_scalar_tensor(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        wc.clip_weights(optimizer, model, kappa=torch.tensor(2.0))
        assert optimizer.param_groups[0]["kappa"] == 2.0
        optimizer.param_groups[0]["kappa"] = kappa = torch.tensor(1.0)
        train(model, optimizer)
        assert in_box(model, 1.0)
        kappa.fill_(0.5)
        train(model, optimizer)
        assert in_box(model, 0.5)
        assert optimizer.state_dict()["param_groups"][0]["kappa"] == 0.5


class TestClippedFraction:
    def test_is_the_fraction_of_entries_clipped_by_the_last_step(self) -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, track_clipped=True)
        assert clipper.clipped_fraction == 0.0
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        model.weight.grad = torch.tensor([[1.0, 0.4, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
        model.bias.grad = torch.tensor([0.0, 9.0])
        optimizer.step()
        assert clipper.clipped_fraction == 3 / 10
        assert clipper.clipped_fractions == {"weight": 2 / 8, "bias": 1 / 2}
        optimizer.zero_grad()
        optimizer.step()
        assert clipper.clipped_fraction == 0.0

    def test_small_and_large_tensors_of_all_kinds_are_counted_equally(self) -> None:
        """Small tensors of one dtype and device are counted together, in chunks."""
        shapes = [(3, 4), (200, 200), (1, 7), (130, 129), (5, 1), (2, 6), *[(90, 100)] * 130]
        layers = [nn.Linear(inputs, outputs) for outputs, inputs in shapes]
        model = nn.ModuleList([layer.to(torch.bfloat16) if i % 3 == 1 else layer for i, layer in enumerate(layers)])
        clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=0.5, track_clipped=True)
        model[0].weight.data[0, 0] = math.nan
        model[2].weight.data[0, 0] = math.inf
        expected = {
            name: math.nan if p.isnan().any() else float((p.abs() > limit(0.5, bound, p.dtype)).sum()) / p.numel()
            for (name, p), bound in zip(model.named_parameters(), wc.resolve_bounds(model).values(), strict=True)
            if bound.s is not None
        }
        clipper.clip()
        assert clipper.clipped_fractions == pytest.approx(expected, abs=0, rel=1e-6, nan_ok=True)
        assert 0.4 < expected["1.weight"] < 0.6

    def test_are_reset_until_bounds_are_resolved_again(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, track_clipped=True)
        train(model, optimizer)
        model[0].register_parameter("weight", model[0].weight)
        assert clipper.clipped_fraction == 0.0
        train(model, optimizer)
        copied = copy.deepcopy((model, optimizer, clipper))[2]
        assert copied.clipped_fraction == 0.0 < clipper.clipped_fraction

    def test_the_device_is_not_synchronized_until_they_are_read(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, track_clipped=True)
        read = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                read.append(func is torch.ops.aten._local_scalar_dense.default)
                return func(*args, **(kwargs or {}))

        clipper.clip()  # the limits are computed once for each kappa
        with Watch():
            clipper.clip()
        assert read
        assert not any(read)

    def test_if_disabled_reading_them_raises_an_error(self) -> None:
        model = network()
        clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=1.0)
        clipper.clip()
        with pytest.raises(RuntimeError, match="track_clipped=True"):
            _ = clipper.clipped_fraction

    def test_a_nan_stays_and_is_reported(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, track_clipped=True)
        model[0].weight.data[0, 0] = math.nan
        clipper.clip()
        assert model[0].weight[0, 0].isnan()
        assert math.isnan(clipper.clipped_fraction)
        assert math.isnan(clipper.clipped_fractions["0.weight"])
        assert clipper.clipped_fractions["2.weight"] == 0.0
        assert "1 NaN" in str(clipper)


def test_every_nth_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    wc.clip_weights(optimizer, model, kappa=1.0, every=3)
    in_the_box = []
    for _ in range(6):
        train(model, optimizer)
        in_the_box.append(in_box(model, 1.0))
    assert in_the_box == [False, False, True, False, False, True]


def test_remove_restores_the_optimizer() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    untouched = repr(optimizer)
    with wc.clip_weights(optimizer, model, kappa=1.0):
        train(model, optimizer)
        assert in_box(model, 1.0)
    assert repr(optimizer) == untouched
    assert "weightclip" not in optimizer.state_dict()
    train(model, optimizer)
    assert not in_box(model, 1.0)
    again = wc.clip_weights(optimizer, model, kappa=1.0)
    again.remove()
    other = wc.clip_weights(optimizer, model, kappa=1.0)
    again.remove()  # does not affect the other
    train(model, optimizer)
    assert in_box(model, 1.0)
    other.remove()


def test_closures_schedulers_and_gradient_accumulation_work() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    wc.clip_weights(optimizer, model, kappa=1.0)

    def closure() -> float:
        optimizer.zero_grad()
        for _ in range(2):
            loss = model(torch.ones(2, 6)).square().sum()
            loss.backward()
        return loss.item()

    assert optimizer.step(closure) > 0
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 5.0
    assert in_box(model, 1.0)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(fused: bool) -> None:
    """Skipped steps change nothing, although fused optimizers run their hooks."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, fused=fused)
    wc.clip_weights(optimizer, model, kappa=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = weights(model)
    for overflow in (True, False):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).square().sum()
        scaler.scale(loss * (math.inf if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert same(before, weights(model)) == overflow
        assert in_box(model, 1.0)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_implementations_of_adam(options: dict[str, bool]) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, **options)
    wc.clip_weights(optimizer, model, kappa=1.0)
    train(model, optimizer, 2)
    assert in_box(model, 1.0)


class TestCheckpoints:
    def test_a_plain_checkpoint_loads_into_a_clipped_optimizer_which_keeps_its_kappa(self) -> None:
        model = network()
        plain = torch.optim.Adam(model.parameters(), lr=0.1)
        train(model, plain)
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
        wc.clip_weights(optimizer, model, kappa=0.5)
        saved = plain.state_dict()
        optimizer.load_state_dict(saved)
        assert "kappa" not in saved["param_groups"][0]
        assert optimizer.param_groups[0]["kappa"] == 0.5
        assert optimizer.param_groups[0]["lr"] == 0.1
        train(model, optimizer)
        assert in_box(model, 0.5)

    def test_a_clipped_checkpoint_loads_into_a_plain_optimizer(self) -> None:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        wc.clip_weights(optimizer, model, kappa=0.5, bounds="init")
        train(model, optimizer)
        saved = optimizer.state_dict()

        other = network()
        plain = torch.optim.Adam(other.parameters(), lr=1.0)
        plain.load_state_dict(saved)
        with pytest.warns(RuntimeWarning, match="or it loaded the checkpoint of an optimizer with them"):
            train(other, plain)
        assert not in_box(other, 0.5)

        plain = torch.optim.Adam(other.parameters(), lr=1.0)
        plain.load_state_dict(saved)
        del plain.param_groups[0]["kappa"]
        train(other, plain)  # intended, so there is no warning

    def test_a_new_optimizer_that_loads_a_checkpoint_warns_while_the_old_one_exists(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        wc.clip_weights(optimizer, model, kappa=0.5)
        other = torch.optim.SGD(model.parameters(), lr=10.0)
        other.load_state_dict(optimizer.state_dict())
        with pytest.warns(RuntimeWarning, match="clip_weights no longer acts on this SGD"):
            train(model, other)

    def test_fractions_are_zero_until_the_next_step(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=0.5, track_clipped=True)
        train(model, optimizer)
        assert clipper.clipped_fraction > 0
        optimizer.load_state_dict(optimizer.state_dict())
        assert clipper.clipped_fraction == 0.0

    def test_kappa_and_measured_bounds_are_restored(self) -> None:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        clipper = wc.clip_weights(optimizer, model, kappa=0.5, bounds="init", every=2)
        optimizer.param_groups[0]["kappa"] = 0.75
        train(model, optimizer, 3)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)

        other = torch.optim.Adam(model.parameters(), lr=0.1)
        resumed = wc.clip_weights(other, model, kappa=9.0, bounds="init", every=2)
        assert resumed.bounds != clipper.bounds
        other.load_state_dict(torch.load(file, weights_only=True))
        assert resumed.bounds == clipper.bounds
        assert other.param_groups[0]["kappa"] == 0.75
        train(model, other)  # the fourth step, which clips
        limits = {name: 0.75 * (bound.s or 0) for name, bound in clipper.bounds.items()}
        assert all(p.abs().max() <= limits[name] for name, p in model.named_parameters())

    def test_an_incompatible_checkpoint_changes_nothing(self) -> None:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        clipper = wc.clip_weights(optimizer, model, kappa=0.5, bounds="init")
        before = clipper.bounds
        other = torch.optim.Adam([torch.zeros(3, requires_grad=True)])
        with pytest.raises(ValueError, match="size of optimizer's group"):
            optimizer.load_state_dict(other.state_dict())
        assert clipper.bounds == before
        assert optimizer.param_groups[0]["kappa"] == 0.5


class TestParametersAddedLater:
    def test_parameters_of_the_model_are_resolved(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
        assert "2.weight  3x5  not in this optimizer" in str(clipper)
        optimizer.add_param_group({"params": model[2].parameters()})
        train(model, optimizer)
        assert in_box(model, 1.0)
        assert "skipped" not in str(clipper)

    def test_layers_added_to_the_model_later_are_resolved(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, exclude="0.*", bounds="init")
        measured = clipper.bounds["2.weight"]
        model.append(nn.Linear(3, 3))
        optimizer.add_param_group({"params": model[3].parameters(), "kappa": 0.5})
        train(model, optimizer)
        assert clipper.bounds["2.weight"] == measured
        assert clipper.bounds["0.weight"].s is None
        assert model[3].weight.abs().max() <= 0.5 * (clipper.bounds["3.weight"].s or 0)

    def test_a_parameter_that_replaces_another_is_resolved(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
        model[2] = nn.Linear(5, 2)
        optimizer.param_groups[0]["params"][2:] = model[2].parameters()
        train(model, optimizer)
        assert in_box(model, 1.0)
        assert clipper.bounds["2.weight"].s == 1 / math.sqrt(5)

    def test_loaded_measured_bounds_are_kept(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, bounds="init")
        state = optimizer.state_dict()
        state["weightclip"]["clip_weights"]["measured"][0] = 0.125
        optimizer.load_state_dict(state)
        optimizer.add_param_group({"params": model[2].parameters()})
        train(model, optimizer)
        assert clipper.bounds["0.weight"].s == 0.125
        assert model[0].weight.abs().max() == 0.125

    def test_unfrozen_parameters_are_resolved(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
        train(model, optimizer)
        assert "frozen" in clipper.bounds["0.weight"].reason
        model[0].requires_grad_(True)
        train(model, optimizer)
        assert in_box(model, 1.0)
        assert clipper.bounds["0.weight"].s == 1 / math.sqrt(6)

    def test_newly_frozen_parameters_are_skipped(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
        train(model, optimizer)
        model[0].requires_grad_(False)
        model[0].weight.fill_(7.0)
        optimizer.zero_grad()
        train(model, optimizer)
        assert model[0].weight.tolist() == [[7.0] * 6] * 5
        assert "frozen" in clipper.bounds["0.weight"].reason
        model[0].requires_grad_(True)
        train(model, optimizer)
        assert in_box(model, 1.0)

    @pytest.mark.parametrize(
        "reparametrize",
        [
            lambda layer: nn.utils.parametrizations.orthogonal(layer),
            lambda layer: nn.utils.parametrizations.weight_norm(layer),
            lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
            lambda layer: nn.utils.spectral_norm(layer),
        ],
        ids=["orthogonal", "weight_norm", "pruning", "spectral_norm"],
    )
    def test_layers_reparametrized_later_raise_an_error(self, reparametrize: Any) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        wc.clip_weights(optimizer, model, kappa=1.0)
        train(model, optimizer)
        reparametrize(model[2])
        with pytest.raises(ValueError, match=r"its layer is reparametrized|it does not own 1 of the optimizer's"):
            train(model, optimizer)

    def test_in_a_copy_layers_reparametrized_later_raise_an_error(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=1.0)
        model, optimizer, clipper = copy.deepcopy((model, optimizer, clipper))
        train(model, optimizer)
        nn.utils.spectral_norm(model[0])
        with pytest.raises(ValueError, match="its layer is reparametrized"):
            train(model, optimizer)

    def test_fractions_are_correct_after_a_group_changes(self) -> None:
        model = network()
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=10.0)
        clipper = wc.clip_weights(optimizer, model, kappa=0.5, track_clipped=True)
        train(model, optimizer)
        optimizer.zero_grad()
        model[2].weight.requires_grad_(False)
        train(model, optimizer)
        assert set(clipper.clipped_fractions) == {"0.weight", "0.bias", "2.bias"}
        assert clipper.clipped_fraction > 0

    def test_parameters_of_another_model_raise_an_error(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        wc.clip_weights(optimizer, model, kappa=1.0)
        optimizer.add_param_group({"params": [torch.zeros(7, requires_grad=True)]})
        with pytest.raises(ValueError, match=r"does not own 1 of .* .parameter 4, shape 7.*kappa=float\('inf'\)"):
            train(model, optimizer)
        optimizer.param_groups[1]["kappa"] = math.inf
        train(model, optimizer)
        assert in_box(model, 1.0)


class TestAttachErrors:
    def assert_raises(self, message: str, optimizer: Any, model: Any, **options: Any) -> None:
        groups = copy.deepcopy(
            [{k: v for k, v in g.items() if k != "params"} for g in getattr(optimizer, "param_groups", [])]
        )
        with pytest.raises((ValueError, TypeError), match=message):
            wc.clip_weights(optimizer, model, **{"kappa": 1.0, **options})
        if groups:
            assert groups == [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    def test_an_optimizer_of_another_model(self) -> None:
        self.assert_raises(
            "got none of the model's parameters", torch.optim.SGD(network().parameters(), lr=1.0), network()
        )

    def test_no_optimizer(self) -> None:
        self.assert_raises(r"optimizer: got Sequential, expected a torch\.optim\.Optimizer", network(), network())

    def test_a_differentiable_optimizer(self) -> None:
        model = network()
        self.assert_raises(
            "differentiable=True", torch.optim.SGD(model.parameters(), lr=1.0, differentiable=True), model
        )

    def test_a_second_clipper(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        wc.clip_weights(optimizer, model, kappa=1.0)
        self.assert_raises("already attached", optimizer, model)

    def test_nothing_to_clip(self) -> None:
        model = nn.LayerNorm(3)
        self.assert_raises(
            "nothing to clip; skipped:\nweight  3  normal", torch.optim.SGD(model.parameters(), lr=1.0), model
        )

    def test_every_below_one(self) -> None:
        model = network()
        self.assert_raises(
            "every: got 0, expected a whole", torch.optim.SGD(model.parameters(), lr=1.0), model, every=0
        )

    def test_an_optimizer_with_a_kappa_hyperparameter(self) -> None:
        model = network()
        self.assert_raises("Madam already has a hyper-parameter kappa", wc.Madam(model.parameters()), model)

    def test_swapped_arguments(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(TypeError, match=r"the arguments are swapped; call clip_weights\(optimizer, model, kappa\)"):
            wc.clip_weights(model, optimizer, kappa=1.0)  # type: ignore[arg-type]

    def test_an_optimizer_that_skips_the_constructor_of_its_base_class(self) -> None:
        class Bare(torch.optim.Optimizer):
            def __init__(self, params: Any) -> None:
                self.param_groups = [{"params": list(params)}]
                self.defaults = {}

        model = network()
        self.assert_raises(r"Bare does not call Optimizer\.__init__", Bare(model.parameters()), model)


class TestStrict:
    """Parameters that the model does not own and models without anything to clip."""

    def split(self) -> tuple[nn.Sequential, nn.Parameter, torch.optim.Optimizer]:
        model, foreign = network(), nn.Parameter(torch.full((2, 2), 9.0))
        return model, foreign, torch.optim.SGD([*model.parameters(), foreign], lr=10.0)

    def test_foreign_parameters_raise_an_error_when_attaching(self) -> None:
        model, _, optimizer = self.split()
        with pytest.raises(ValueError, match=r"does not own 1 of the optimizer's 5 parameters .parameter 4, shape 2x2"):
            wc.clip_weights(optimizer, model, kappa=1.0)
        assert "kappa" not in optimizer.param_groups[0]
        assert "kappa" not in optimizer.defaults
        assert not optimizer._optimizer_step_post_hooks
        assert "weightclip" not in optimizer.state_dict()

    def test_a_failed_attachment_restores_the_defaults(self) -> None:
        model, _, optimizer = self.split()
        optimizer.defaults["kappa"] = 1.5
        with pytest.raises(ValueError, match="does not own 1"):
            wc.clip_weights(optimizer, model, kappa=1.0)
        assert optimizer.defaults["kappa"] == 1.5

    def test_a_foreign_layer_added_to_the_model_later_is_clipped(self) -> None:
        model, layer = network(), nn.Linear(3, 3)
        optimizer = torch.optim.SGD([*model.parameters(), *layer.parameters()], lr=10.0)
        wc.clip_weights(optimizer, model, kappa=1.0, strict=False)
        model.append(layer)
        train(model, optimizer)
        assert in_box(model, 1.0)

    def test_if_not_strict_foreign_parameters_are_skipped_and_listed(self) -> None:
        model, foreign, optimizer = self.split()
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, strict=False)
        train(model, optimizer)
        assert in_box(model, 1.0)
        assert foreign.tolist() == [[9.0, 9.0]] * 2
        assert "parameter 4  2x2  not a parameter of the given model" in str(clipper)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
        train(model, optimizer)

    def test_if_not_strict_there_may_be_nothing_to_clip(self) -> None:
        """One optimizer per parameter, as in optimizer-in-backward training."""
        model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
        optimizers = [torch.optim.SGD([p], lr=10.0) for p in model.parameters()]
        with pytest.raises(ValueError, match="nothing to clip"):
            wc.clip_weights(optimizers[2], model, kappa=1.0)
        for optimizer in optimizers:
            wc.clip_weights(optimizer, model, kappa=1.0, strict=False)
        model(torch.ones(2, 6)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        assert in_box(model[0], 1.0)

    def test_a_group_with_an_infinite_kappa_may_contain_any_parameters(self) -> None:
        model, foreign = network(), nn.Parameter(torch.full((2, 2), 9.0))
        groups = [{"params": model.parameters()}, {"params": [foreign], "kappa": math.inf}]
        wc.clip_weights(torch.optim.SGD(groups, lr=1.0), model, kappa=1.0)


class TestUnknownLayers:
    class CustomLayer(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.ones(n, n))

    def test_many_entries_in_layers_without_a_rule_warn_with_their_names(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), self.CustomLayer(3))
        with pytest.warns(UserWarning, match=r"skips 23% of the weight entries.*: 1\.matrix; .*register_bound"):
            wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=1.0)

    def test_few_entries_do_not_warn(self) -> None:
        model = nn.Sequential(nn.Linear(30, 30), self.CustomLayer(3), nn.Embedding(100, 8), nn.LayerNorm(8))
        wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=1.0)

    def test_the_advice_of_the_warning_clips_all_layers(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), self.CustomLayer(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.warns(UserWarning, match=re.escape("bounds={name: number, '*': 'fan_in'}")):
            wc.clip_weights(optimizer, model, kappa=1.0).remove()
        clipper = wc.clip_weights(optimizer, model, kappa=1.0, bounds={"1.matrix": 0.5, "*": "fan_in"})
        assert all(bound.s is not None for bound in clipper.bounds.values())

    def test_warnings_as_errors_leave_the_optimizer_unchanged(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), self.CustomLayer(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(UserWarning, match="skips 23%"):  # pytest raises warnings as errors
            wc.clip_weights(optimizer, model, kappa=1.0)
        assert wc.find_clipper(optimizer) is None
        assert "kappa" not in optimizer.param_groups[0]

    def test_excluded_layers_do_not_warn(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), self.CustomLayer(3))
        wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=1.0, exclude="1.*")


def test_the_text_of_a_clipper_is_a_table() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))
    nn.init.constant_(model[0].weight, 0.7)
    nn.init.constant_(model[0].bias, -0.7)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    clipper = wc.clip_weights(optimizer, model, kappa=1.2)
    assert str(clipper) == (
        "Clipper(SGD, kappa=1.2: clips 2 of 4 tensors)\n"
        "tensor    shape  rule    s    kappa  bound  outside now  at the bound\n"
        "0.weight  2x4    fan_in  0.5  1.2    0.6    8 of 8       0\n"
        "0.bias    2      fan_in  0.5  1.2    0.6    2 of 2       0\n"
        "skipped:\n"
        "1.weight  2  normalization layer: its scale is initialized to 1, outside a box around 0\n"
        "1.bias    2  normalization layer: its scale is initialized to 1, outside a box around 0"
    )


def test_the_text_of_a_clipper_on_the_meta_device_is_a_table() -> None:
    model = nn.Linear(4, 2, device="meta")
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=1.0), model, kappa=2.0)
    assert "weight  2x4    fan_in  0.5  2      1      -            -" in str(clipper)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_warns_until_clipping_is_reattached(duplicate: Any) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    wc.clip_weights(optimizer, model, kappa=1.0)
    optimizer.param_groups[0]["kappa"] = 0.5
    model, optimizer = duplicate((model, optimizer))
    with pytest.warns(RuntimeWarning, match=r"clip_weights no longer acts on this Adam.*weightclip\.clip_weights"):
        train(model, optimizer)
    train(model, optimizer)  # once is enough
    wc.clip_weights(optimizer, model, kappa=1.0)
    train(model, optimizer)
    assert in_box(model, 0.5)  # the copy has the kappa of the group


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda all_three: pickle.loads(pickle.dumps(all_three))])
def test_a_copied_clipper_keeps_clipping(duplicate: Any) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    wc.l2_init(optimizer, 0.1)
    noise = wc.shrink_and_perturb(optimizer, 0.1, 0.1)
    clipper = wc.clip_weights(optimizer, model, kappa=0.5, bounds="init", every=2)
    train(model, optimizer)
    other, other_optimizer, other_clipper, *_ = duplicate((model, optimizer, clipper, noise, noise.optimizer))
    assert wc.find_clipper(other_optimizer) is other_clipper
    assert other_clipper.bounds == clipper.bounds
    train(other, other_optimizer)
    limits = {name: 0.5 * (bound.s or 0) for name, bound in clipper.bounds.items()}
    assert all(p.abs().max() <= limits[name] for name, p in other.named_parameters())
    clipper.remove()
    assert wc.find_clipper(optimizer) is None
    assert wc.find_clipper(duplicate((optimizer, clipper))[0]) is None


class TestWrappers:
    """Optimizers that wrap another optimizer in `.optimizer`."""

    @staticmethod
    def push_out(optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.add_(5.0)

    class Unhooked(torch.optim.Optimizer):
        """Moves the weights after the inner step without running hooks."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self) -> Any:
            return self.optimizer.param_groups

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.optimizer.zero_grad(set_to_none)

        def step(self, closure: Any = None) -> None:
            self.optimizer.step(closure)
            TestWrappers.push_out(self)

    def test_weights_are_clipped_at_the_end_of_the_outer_step(self) -> None:
        model = network()
        outer = self.Unhooked(torch.optim.SGD(model.parameters(), lr=0.1))
        wc.clip_weights(outer, model, kappa=0.5)
        train(model, outer)
        assert in_box(model, 0.5)

    def test_schedulers_may_replace_the_outer_step_before_and_after(self) -> None:
        model = network()
        outer = self.Unhooked(torch.optim.SGD(model.parameters(), lr=0.1))
        before = torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
        wc.clip_weights(outer, model, kappa=0.5)
        after = torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
        train(model, outer)
        before.step()
        after.step()
        assert in_box(model, 0.5)

    def test_removing_the_clipper_restores_the_outer_step(self) -> None:
        model = network()
        outer = self.Unhooked(torch.optim.SGD(model.parameters(), lr=0.1))
        wc.clip_weights(outer, model, kappa=0.5).remove()
        assert set(outer.__dict__) == {"optimizer"}

    def test_a_copy_steps_itself_and_not_the_original(self) -> None:
        model = network()
        outer = self.Unhooked(torch.optim.SGD(model.parameters(), lr=0.1))
        wc.clip_weights(outer, model, kappa=0.5)
        other_step = copy.copy(outer.step.__func__)  # type: ignore[attr-defined]
        other_model = network()
        other = self.Unhooked(torch.optim.SGD(other_model.parameters(), lr=0.1))
        before = weights(model)
        other_step(other)
        assert same(before, weights(model))
        assert not in_box(other_model, 0.5)

    def test_a_wrapper_that_calls_only_step_hooks_is_clipped_and_saved(self) -> None:
        """Like Lookahead, TRAC and OrthoGrad of pytorch_optimizer."""

        class Partial(self.Unhooked):  # type: ignore[name-defined, misc]
            def __init__(self, optimizer: torch.optim.Optimizer) -> None:
                self.optimizer = optimizer
                self.defaults = optimizer.defaults
                self._optimizer_step_pre_hooks: dict[int, Any] = OrderedDict()
                self._optimizer_step_post_hooks: dict[int, Any] = OrderedDict()
                self._patch_step_function()

            def state_dict(self) -> Any:
                return {"base": self.optimizer.state_dict()}

            def load_state_dict(self, state: Any) -> None:
                self.optimizer.load_state_dict(state["base"])

        model = network()
        outer = Partial(torch.optim.SGD(model.parameters(), lr=0.1))
        clipper = wc.clip_weights(outer, model, kappa=0.5, bounds="init", every=2)
        train(model, outer)
        assert not in_box(model, 0.5)
        saved = outer.state_dict()
        assert saved["base"]["weightclip"]["clip_weights"]["steps"] == 1

        again = Partial(torch.optim.SGD(model.parameters(), lr=0.1))
        resumed = wc.clip_weights(again, model, kappa=9.0, bounds="init", every=2)
        again.load_state_dict(saved)
        assert resumed.bounds == clipper.bounds
        train(model, again)
        limits = {name: 0.5 * (bound.s or 0) for name, bound in clipper.bounds.items()}
        assert all(p.abs().max() <= limits[name] for name, p in model.named_parameters())


def test_wrapped_optimizers_are_unwrapped() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    clipper = wc.clip_weights(Wrapper(optimizer), model, kappa=0.5)
    assert clipper is wc.find_clipper(optimizer) is wc.find_clipper(Wrapper(optimizer))
    train(model, optimizer)
    assert in_box(model, 0.5)

    def test_a_copied_clipper_clips_at_the_end_of_the_outer_step(self) -> None:
        model = network()
        outer = self.Unhooked(torch.optim.SGD(model.parameters(), lr=0.1))
        clipper = wc.clip_weights(outer, model, kappa=0.5)
        model, outer, clipper = copy.deepcopy((model, outer, clipper))
        train(model, outer)
        assert clipper.is_attached()
        assert in_box(model, 0.5)

    def test_removing_the_clipper_after_a_scheduler_replaced_the_step(self) -> None:
        model = network()
        outer = self.Unhooked(torch.optim.SGD(model.parameters(), lr=0.1))
        clipper = wc.clip_weights(outer, model, kappa=0.5)
        torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
        clipper.remove()
        train(model, outer)
        assert not in_box(model, 0.5)

    def test_a_wrapper_that_swaps_the_weights_raises_an_error(self) -> None:
        class Averaging(self.Unhooked):  # type: ignore[name-defined, misc]
            def train(self) -> None: ...

            def eval(self) -> None: ...

        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=r"Averaging swaps the model's weights.*together with SGD"):
            wc.clip_weights(Averaging(optimizer), model, kappa=0.5)
        assert "kappa" not in optimizer.param_groups[0]

    @pytest.mark.parametrize("method", ["second_step", "fused_backward"])
    def test_other_methods_that_update_the_weights_are_clipped(self, method: str) -> None:
        class Other(torch.optim.SGD):
            pass

        setattr(Other, method, lambda self: TestWrappers.push_out(self))
        model = network()
        optimizer = Other(model.parameters(), lr=0.1)
        wc.clip_weights(optimizer, model, kappa=0.5)
        getattr(optimizer, method)()
        assert in_box(model, 0.5)


class TestModelChanges:
    def test_a_group_added_before_a_checkpoint_is_loaded_is_clipped(self) -> None:
        def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
            model = network()
            optimizer = torch.optim.SGD(model[0].parameters(), lr=10.0)
            wc.clip_weights(optimizer, model, kappa=0.8)
            optimizer.add_param_group({"params": model[2].parameters()})
            return model, optimizer

        saved = make()[1].state_dict()
        model, optimizer = make()
        optimizer.load_state_dict(saved)
        train(model, optimizer)
        assert in_box(model, 0.8)

    def test_a_model_that_changes_its_dtype_stays_in_the_box(self) -> None:
        for kappa in (0.3, 0.7, 1.1):
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
            clipper = wc.clip_weights(optimizer, model, kappa=kappa)
            clipper.clip()
            model.to(torch.bfloat16)
            clipper.clip()
            assert in_box(model, kappa)

    def test_a_parameter_with_new_data_is_clipped(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
        wc.clip_weights(optimizer, model, kappa=1.0)
        train(model, optimizer)
        model[2].weight.data = torch.full((3, 5), 9.0)
        train(model, optimizer)
        assert in_box(model, 1.0)

    @pytest.mark.parametrize("freeze", [False, True])
    def test_zero_biases_and_frozen_layers_resume_with_their_previous_bounds(self, freeze: bool) -> None:
        def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
            model = network()
            for layer in (model[0], model[2]):
                nn.init.orthogonal_(layer.weight)
                nn.init.zeros_(layer.bias)
            return model, torch.optim.Adam(model.parameters(), lr=0.1)

        model, optimizer = make()
        model[0].requires_grad_(not freeze)
        clipper = wc.clip_weights(optimizer, model, kappa=0.8, bounds="init")
        train(model, optimizer, 2)
        model[0].requires_grad_(True)
        train(model, optimizer, 2)
        saved_model, saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        train(model, optimizer, 3, seed=5)

        resumed, other = make()
        resumed.load_state_dict(saved_model)
        resumed[0].requires_grad_(not freeze)
        again = wc.clip_weights(other, resumed, kappa=0.8, bounds="init")
        other.load_state_dict(saved)
        resumed[0].requires_grad_(True)
        train(resumed, other, 3, seed=5)
        assert {n: b.s for n, b in again.bounds.items()} == {n: b.s for n, b in clipper.bounds.items()}
        assert same(weights(model), weights(resumed))


def test_a_wrapper_that_acts_after_the_inner_step_is_clipped() -> None:
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer
            super().__init__(optimizer.param_groups, {})

        def step(self, closure: Any = None) -> None:
            self.optimizer.step()
            push_out(self)

    def push_out(optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.add_(5.0)

    model = network()
    outer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    wc.clip_weights(outer, model, kappa=0.5)
    train(model, outer)  # the inner optimizer does not warn
    assert in_box(model, 0.5)


def test_a_subclass_of_an_optimizer_with_its_own_kappa_neither_warns_nor_is_clipped() -> None:
    class Other(wc.Madam):
        def __init__(self, params: Any, **options: Any) -> None:
            super().__init__(params, **options)

    model = network()
    optimizer = Other(model.parameters())
    train(model, optimizer)
    with pytest.raises(ValueError, match="Other already has a hyper-parameter kappa"):
        wc.clip_weights(optimizer, model, kappa=1.0)


def test_a_removed_clipper_raises_an_error() -> None:
    model = network()
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, kappa=1.0)
    clipper.remove()
    with pytest.raises(RuntimeError, match="was removed"):
        clipper.clip()


def test_an_infinite_entry_is_clipped_and_counted() -> None:
    model = network()
    clipper = wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, kappa=9.0, track_clipped=True)
    model[0].weight.data[0, 0] = math.inf
    clipper.clip()
    assert clipper.clipped_fractions["0.weight"] == 1 / 30


def test_both_clips_of_a_step_are_counted() -> None:
    """A hook after ours moves other entries out of the box, which are clipped again."""
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    clipper = wc.clip_weights(optimizer, model, kappa=1.0, track_clipped=True)
    nn.init.zeros_(model.weight)

    def push(*_: Any) -> None:
        model.weight.data[0, 1] = 7.0

    optimizer.register_step_post_hook(push)
    model.weight.grad = torch.tensor([[5.0, 0.0, 0.0, 0.0]])
    optimizer.step()
    assert clipper.clipped_fraction == 2 / 4


def test_numpy_numbers_are_accepted() -> None:
    numpy = pytest.importorskip("numpy")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wc.clip_weights(optimizer, model, kappa=numpy.float32(1.0), every=numpy.int64(2))
    optimizer.param_groups[0]["kappa"] = numpy.float64(0.5)
    train(model, optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["param_groups"][0]["kappa"] == 0.5


def test_a_number_that_is_too_large_raises_an_error() -> None:
    model = network()
    with pytest.raises(ValueError, match="kappa: got 1000"):
        wc.clip_weights(torch.optim.SGD(model.parameters(), lr=0.1), model, kappa=10**400)


@pytest.mark.parametrize("fused", [False, True])
def test_every_does_not_count_steps_skipped_by_grad_scaler(fused: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0, fused=fused)
    wc.clip_weights(optimizer, model, kappa=1.0, every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    in_the_box = []
    for overflow in (True, False, False):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 6)).square().sum() * (math.inf if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        in_the_box.append(in_box(model, 1.0))
    assert in_the_box[1:] == [False, True]
