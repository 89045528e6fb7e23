"""The monitor in its surroundings: hooks of others, wrapped optimizers, copied models, inputs that are the data."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightclip as wc


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))


def train(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def steps_of(monitor: wc.Monitor) -> list[int]:
    return sorted({row["step"] for row in monitor.table()})


def test_two_monitors_of_one_optimizer_measure_the_same() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8)
    first, second = (wc.Monitor(optimizer, model, every=2, closure=lambda: model(x).square().mean()) for _ in range(2))
    train(optimizer, model, 6)
    assert steps_of(first) == steps_of(second) == [2, 4, 6]
    assert str(first.table()) == str(second.table())  # with NaN


def test_clipping_attached_later_acts_before_both_monitors() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    monitors = [wc.Monitor(optimizer, model, every=2) for _ in range(2)]
    wc.clip_weights(optimizer, model, kappa=1.0)
    train(optimizer, model, 6)
    assert all(row["beyond_1"] == 0 for monitor in monitors for row in monitor.table())


class CallsBase(torch.optim.SGD):
    """Runs the hooks twice per step, and changes the weights at the end."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.zero_()
        return result


def test_a_step_that_calls_the_step_of_its_base_class_is_one_step() -> None:
    model = network()
    torch.optim.SGD(model.parameters(), lr=0.1)  # now the step of the base class runs hooks
    optimizer = CallsBase(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    train(optimizer, model, 4)
    assert steps_of(monitor) == [1, 2, 3, 4]
    assert all(row["norm_ratio"] == 0 for row in monitor.table())


@pytest.mark.parametrize("make", [torch.optim.SGD, CallsBase])
def test_a_step_that_raises_is_not_counted(make: Callable[..., torch.optim.Optimizer]) -> None:
    model = network()
    optimizer = make(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)

    def fail() -> float:
        raise RuntimeError("no loss")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no loss"):
            optimizer.step(fail)
    train(optimizer, model, 3)
    assert steps_of(monitor) == [1, 2, 3]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_a_monitor_can_be_removed_by_any_hook(before: bool, register: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitors: list[wc.Monitor] = []
    done: list[int] = []

    def hook(*_: object) -> None:
        done.append(1)
        if len(done) == 3:
            monitors[0].remove()

    if before:
        getattr(optimizer, register)(hook)
    monitors.append(wc.Monitor(optimizer, model, every=1))
    if not before:
        getattr(optimizer, register)(hook)
    train(optimizer, model, 5)
    assert steps_of(monitors[0])[-1] in (2, 3)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_many_monitors_in_a_row_leave_one_hook() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        with wc.Monitor(optimizer, model, every=1):
            train(optimizer, model, 1)
    assert len(optimizer._optimizer_step_post_hooks) == len(optimizer._optimizer_step_pre_hooks) == 1
    assert not any("weightclip" in name for name in copy.deepcopy(optimizer).__dict__)


class Wrapper(torch.optim.Optimizer):
    """Like Accelerate's wrapper and many a Lookahead: does not call Optimizer.__init__."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def test_the_optimizer_inside_a_wrapper_is_measured() -> None:
    model = network()
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    monitor = wc.Monitor(optimizer, model, every=1)
    train(optimizer, model, 3)
    assert steps_of(monitor) == [1, 2, 3]
    with pytest.raises(TypeError, match=r"optimizer: Wrapper does not call Optimizer\.__init__, so its steps run no"):
        wc.Monitor(Wrapper(None), model)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: the weights are moved, moved back and updated."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p += 100.0

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.first_step()
        closure()
        self.second_step()


@pytest.mark.parametrize("whole", [True, False])
def test_both_steps_of_sam_are_one_step(whole: bool) -> None:
    model, x = network(), torch.randn(4, 8)
    optimizer = SAM(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)

    def backward() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()

    for _ in range(3):
        before = model[0].weight.detach().clone()
        backward()
        with torch.no_grad():
            if whole:
                optimizer.step(lambda: None)
            else:
                optimizer.first_step()
                optimizer.second_step()
    assert steps_of(monitor) == [1, 2, 3]
    change = float((model[0].weight.detach() - before).norm() / before.norm())
    assert monitor.table()[-3]["relative_update"] == pytest.approx(change, rel=1e-4)


@pytest.mark.parametrize("save", [lambda m: torch.save(m, io.BytesIO()), copy.deepcopy])
def test_an_armed_model_can_be_saved_and_copied(save: Callable[[nn.Module], Any]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wc.Monitor(optimizer, model, every=1)
    save(model)


def test_copies_of_an_armed_model_are_not_measured() -> None:
    """Target networks and weight averages are copies."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = wc.Monitor(optimizer, model, every=1)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    targets = [copy.deepcopy(model), torch.load(buffer, weights_only=False)]
    x = torch.randn(64, 8)
    model(x).square().mean().backward()
    for target in targets:
        with torch.no_grad():
            target[0].bias.fill_(-100)
        assert target(x).shape == (64, 3)
    optimizer.step()
    assert monitor.table()[1]["dormant"] < 0.5
    state = copy.copy(model[0])  # shares the hooks
    state(x)


class Recurrent(nn.Module):
    """An LSTM and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x[:, None])[0][:, -1])
        return out


class Twins(nn.Module):
    """Two critics of the same state and action, as in SAC."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = network(), network()

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x[:, :4], x[:, 4:]], 1)
        out: Tensor = torch.maximum(self.one(both), self.two(both))
        return out


class Pieces(nn.Module):
    """Layers that are called one by one, not through the model, as in policies of Stable-Baselines3."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU()), nn.Linear(6, 3)

    def values(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def frozen() -> nn.Sequential:
    model = network()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "forward", "known"),
    [
        (network, lambda m, x: m(x), ["2.weight", "4.weight"]),
        (frozen, lambda m, x: m(x), ["2.weight", "4.weight"]),
        (Recurrent, lambda m, x: m(x), ["head.weight"]),
        (Twins, lambda m, x: m(x), ["one.2.weight", "one.4.weight", "two.2.weight", "two.4.weight"]),
        (Pieces, lambda m, x: m.values(x), ["head.weight"]),
        (
            lambda: nn.ModuleList([network(), network()]),
            lambda m, x: m[0](x) + m[1](x),
            ["0.2.weight", "0.4.weight", "1.2.weight", "1.4.weight"],
        ),
        (
            lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 2)),
            lambda m, x: m((x.abs() * 2).long()),
            ["2.weight", "4.weight"],
        ),
    ],
)
def test_dormant_units_are_known_where_the_inputs_are_hidden_units(
    make: Callable[[], nn.Module], forward: Callable[[nn.Module, Tensor], Tensor], known: list[str]
) -> None:
    model = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    for _ in range(2):
        forward(model, torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    found = {row["layer"] for row in monitor.table() if not math.isnan(row["dormant"])}
    assert found == set(known)


def test_dormant_units_are_unknown_in_vmap() -> None:
    model, x = network(), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    params = dict(model.named_parameters())
    gradients = torch.func.grad(lambda p, one: torch.func.functional_call(model, p, (one,)).sum())
    for name, each in torch.func.vmap(gradients, (None, 0))(params, x).items():
        params[name].grad = each.mean(0)
    optimizer.step()
    assert all(math.isnan(row["dormant"]) for row in monitor.table())


def test_scripted_parts_of_a_model_get_no_hooks() -> None:
    model = nn.Sequential(torch.jit.script(nn.ReLU()), *network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    train(optimizer, model, 1)
    assert [math.isnan(row["dormant"]) for row in monitor.table()] == [True, False, False]


def test_a_replaced_layer_is_measured() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    train(optimizer, model, 2)
    model[4] = nn.Linear(5, 4)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    before = model[4].weight.detach().clone()
    train(optimizer, model, 2)  # the step after the change is already being measured with the old layer
    last = monitor.table()[-1]
    assert last["layer"] == "4.weight"
    assert last["relative_update"] > 0
    assert last["norm_ratio"] == pytest.approx(float(model[4].weight.detach().norm() / before.norm()), rel=0.05)
    assert not math.isnan(last["dormant"])


def test_a_layer_without_a_gradient_is_not_dead() -> None:
    model = nn.ModuleList([network(), network()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    train(optimizer, model[0], 5)
    assert math.isnan(monitor.table()[-1]["relative_update"])
    assert "dead layer" not in monitor.verdict().text


def test_the_first_line_shows_every_loss() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1, closure=lambda: math.nan)
    train(optimizer, model, 3)
    assert str(monitor).startswith("step 3, loss nan, plasticity nan")
    assert "diverged; the loss is nan" in str(monitor)
