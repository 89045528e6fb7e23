import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weightclip as wc
from weightclip.monitor import BUDGET, LOSS_BUDGET, effective_rank


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def train(lr: float, tasks: int, *, new_labels: bool, kappa: float | None = None, closure: bool = True) -> wc.Monitor:
    """Train a classifier of 512 points, whose labels are fixed or redrawn every 200 steps."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(512, 20, generator=generator), torch.randn(20, 5, generator=generator)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batch: dict[str, Tensor] = {}

    def loss() -> Tensor:
        return cross_entropy(model(batch["x"]), batch["y"])

    monitor = wc.Monitor(optimizer, model, every=100, closure=loss if closure else None)
    if kappa is not None:
        wc.clip_weights(optimizer, model, kappa)
    for _ in range(tasks):
        y = torch.randint(5, (512,), generator=generator) if new_labels else (x @ w).argmax(1)
        for _ in range(200):
            i = torch.randint(512, (16,), generator=generator)
            batch |= {"x": x[i], "y": y[i]}
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return monitor


def test_a_network_that_stops_learning_new_labels_has_lost_plasticity_and_clipping_is_suggested() -> None:
    monitor = train(0.01, 15, new_labels=True)
    verdict = monitor.verdict()
    assert verdict.problem
    assert "plasticity fell" in verdict.text
    assert "growing weights" in verdict.text
    assert verdict.suggestion.startswith("suggestion: clip_weights(optimizer, model, kappa=")
    assert verdict.text in str(monitor)


def test_layers_are_measured_after_clipping() -> None:
    monitor = train(0.01, 3, new_labels=True, kappa=1.0)
    assert all(row["beyond_1"] == 0 for row in monitor.table())  # measured after clipping, which was attached later


def test_a_network_that_has_converged_has_no_problem() -> None:
    """The updates are small because there is little left to learn."""
    assert not train(0.001, 10, new_labels=False).verdict().problem


def test_training_is_not_changed() -> None:
    def trained(monitored: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if monitored:
            wc.Monitor(optimizer, model, every=2, closure=lambda: model(torch.ones(1, 20)).sum())
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 20)).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for a, b in zip(trained(True), trained(False), strict=True):
        assert torch.equal(a, b)


def one_step(model: nn.Module, x: Tensor, lr: float = 0.1, **options: Any) -> tuple[wc.Monitor, list[dict[str, Any]]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    monitor = wc.Monitor(optimizer, model, every=1, **options)
    model(x).square().mean().backward()
    optimizer.step()
    return monitor, monitor.table()


def test_metrics_of_a_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    before = [layer.weight.detach().clone() for layer in (model[0], model[2])]
    _, rows = one_step(model, torch.randn(8, 4), lr=1.0)
    for row, layer, old in zip(rows, (model[0], model[2]), before, strict=True):
        w = layer.weight.detach()
        s = 1 / math.sqrt(w.shape[1])
        assert row["step"] == 1
        assert row["norm_ratio"] == pytest.approx(float(w.norm() / old.norm()), rel=1e-5)
        assert row["relative_update"] == pytest.approx(float((w - old).norm() / old.norm()), rel=1e-5)
        assert row["beyond_1"] == pytest.approx(float((w.abs() > s).float().mean()))
        assert row["effective_rank"] == pytest.approx(effective_rank(w))


def test_dormant_units_are_inputs_of_a_layer_with_small_activations() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias.fill_(1.0)
        model[0].bias[:2] = -1.0  # units 0 and 1 are never active
    _, (first, second) = one_step(model, 0.1 * torch.randn(16, 4))
    assert math.isnan(first["dormant"])  # the inputs are the data
    assert second["dormant"] == pytest.approx(2 / 5)


def test_channels_are_the_units_of_a_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    with torch.no_grad():
        model[0].weight.fill_(0.1)
        model[0].weight[0] = 0
        model[0].bias.zero_()
    _, (_, second) = one_step(model, torch.rand(2, 1, 6, 6))
    assert second["dormant"] == pytest.approx(1 / 4)


@pytest.mark.parametrize("second", [nn.Conv2d(4, 2, 3), nn.ConvTranspose2d(4, 2, 3)])
@pytest.mark.parametrize("shape", [(2, 1, 6, 7), (1, 6, 7)])  # with and without a batch
def test_channels_are_the_units_of_all_convolutions(second: nn.Module, shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), second)
    with torch.no_grad():
        model[0].weight.fill_(0.1)
        model[0].bias.zero_()
        model[0].bias[1:3] = -100.0
    _, (_, last) = one_step(model, torch.rand(shape), lr=0.0)
    assert last["dormant"] == pytest.approx(2 / 4)


@pytest.mark.parametrize("scale", [0.0, 1e-3])
def test_a_layer_initialized_close_to_zero_is_compared_with_the_default_initialization(scale: float) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        for p in model[2].parameters():
            p.mul_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model, every=1)
    for _ in range(9):
        optimizer.zero_grad()
        (model(torch.ones(4, 4)) - 1).square().mean().backward()
        optimizer.step()
    norm = float(model[2].weight.detach().norm())
    assert monitor.table()[-1]["norm_ratio"] == pytest.approx(norm / (math.sqrt(1 / 8) * math.sqrt(16 / 3)), rel=1e-5)
    assert all(row["relative_update"] < 1e6 or math.isnan(row["relative_update"]) for row in monitor.table())
    assert not monitor.verdict().problem


def test_weights_that_are_not_finite_are_a_problem() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    monitor, _ = one_step(model, 1e20 * torch.ones(2, 4), lr=1e30)
    verdict = monitor.verdict()
    assert verdict.problem
    assert "diverged; 0.weight has NaN or infinite entries" in verdict.text
    assert "nan times" not in str(monitor)


def test_no_fraction_of_nan_is_beyond_a_range() -> None:
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, math.nan)
    _, rows = one_step(model, torch.ones(2, 4))
    assert math.isnan(rows[0]["beyond_1"])


@pytest.mark.parametrize("prepare", [lambda m: m.eval(), lambda m: torch.compile(m, backend="eager")])
def test_dormant_units_are_unknown_without_hooks_in_training_mode(prepare: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    prepared = prepare(model)
    prepared(torch.randn(8, 4))  # compiled without hooks
    _, rows = one_step(prepared, torch.randn(8, 4))
    assert math.isnan(rows[1]["dormant"])


def test_the_effective_rank_matches_the_singular_values() -> None:
    w = torch.randn(6, 9, dtype=torch.float64)
    sigma = torch.linalg.svdvals(w)
    p = sigma / sigma.sum()
    assert effective_rank(w) == pytest.approx(math.exp(float(-(p * p.log()).sum())), rel=1e-6)
    assert effective_rank(torch.ones(4, 7)) == pytest.approx(1.0, abs=1e-3)
    assert effective_rank(torch.randn(3, 2, 5, 5)) <= 3.0001
    assert math.isnan(effective_rank(torch.tensor([[math.nan, 1.0], [0.0, 1.0]])))


class Clock:
    """A clock with a given duration of a step, a layer measurement and a loss measurement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, layer: float, loss: float | None = None) -> None:
        self.now = self.spent = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr("weightclip.monitor.effective_rank", lambda w: self.measure(layer))
        model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        closure = None if loss is None else lambda: self.measure(loss)
        self.monitor = wc.Monitor(self.optimizer, model, closure=closure)
        self.start, self.spent = self.now, 0.0

    def measure(self, seconds: float) -> float:
        self.now += seconds
        self.spent += seconds
        return 1.0

    def train(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.now += seconds
            self.optimizer.step()

    def trained(self) -> float:
        return self.now - self.start - self.spent


@pytest.mark.parametrize("loss", [None, 0.3])
@pytest.mark.parametrize("layer", [0.5, 10.0, 1000.0])
def test_measurements_never_exceed_their_budget(
    layer: float, loss: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Including the first measurement, and if the steps become faster."""
    clock = Clock(monkeypatch, layer, loss)
    for seconds in (1.0, 0.05, 2.0):
        for _ in range(300):
            clock.train(10, seconds)
            assert clock.spent <= (BUDGET + LOSS_BUDGET) * clock.trained() + 1e-9
    assert clock.monitor.table() or layer == 1000.0
    assert clock.spent > 0.8 * (BUDGET + LOSS_BUDGET) * clock.trained() or layer == 1000.0  # the budget is used


def test_losses_are_measured_more_often_than_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, layer=100.0, loss=2.0)
    clock.train(60_000, 1.0)
    assert len(clock.monitor.losses()) > 30 * len(clock.monitor.table()) >= 60


def test_after_a_pause_there_is_at_most_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    for pause in (0.0, 1e6):
        clock = Clock(monkeypatch, layer=10.0)
        clock.train(2000, 1.0)
        clock.now += pause
        clock.train(3000, 1.0)
        measured.append(len(clock.monitor.table()))
    assert measured[1] == measured[0] + 1


def test_a_loss_that_takes_longer_than_expected_delays_later_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, layer=0.1, loss=50.0)
    clock.train(400, 1.0)
    assert len(clock.monitor.losses()) == 1  # measured once, because its time was not known
    clock.train(100_000, 1.0)
    assert clock.spent <= (BUDGET + LOSS_BUDGET) * clock.trained() + 100.0
    assert len(clock.monitor.losses()) == len(clock.monitor.table()) >= 4  # layers are measured together with a loss


def test_most_steps_do_not_read_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def perf_counter() -> float:
        nonlocal reads
        reads += 1
        return float(reads)

    clock = Clock(monkeypatch, layer=1e6)
    monkeypatch.setattr(time, "perf_counter", perf_counter)
    clock.train(1000, 1.0)
    assert reads <= 100


class FakeSummaryWriter:
    """Like a SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name] = value, step


class FakeRun:
    """Like a Weights & Biases run."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((values, step))


def test_the_last_measurement_can_be_logged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    monitor, rows = one_step(model, torch.randn(8, 4), closure=lambda: torch.tensor(1.0))
    notes, project = FakeSummaryWriter(), FakeRun()
    monitor.log(notes)
    monitor.log(project, step=7)
    assert notes.scalars["weightclip/2.weight/norm_ratio"] == (rows[1]["norm_ratio"], 1)
    assert notes.scalars["weightclip/plasticity"] == (0.0, 1)
    assert "weightclip/0.weight/dormant" not in notes.scalars  # NaN
    assert project.logged == [({name: value for name, (value, _) in notes.scalars.items()}, 7)]
    with pytest.raises(TypeError, match="writer: got int, expected add_scalar"):
        monitor.log(3)
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="needs tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        monitor.log(writer)


def test_a_removed_monitor_stops_measuring() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Monitor(optimizer, model, every=1) as monitor:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    optimizer.step()
    assert [row["step"] for row in monitor.table()] == [1]
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_too_few_measurements_and_invalid_arguments() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = wc.Monitor(optimizer, model)
    assert str(monitor) == "Monitor: no measurement yet"
    assert "too few measurements" in monitor.verdict().text
    with pytest.raises(ValueError, match="every: got 0"):
        wc.Monitor(optimizer, model, every=0)
    with pytest.raises(TypeError, match=r"the arguments are swapped; call Monitor\(optimizer, model\)"):
        wc.Monitor(model, optimizer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"optimizer: got int, expected a torch\.optim\.Optimizer"):
        wc.Monitor(3, model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="closure: got 3, expected a function"):
        wc.Monitor(optimizer, model, closure=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got no weight matrix with a bound rule"):
        wc.Monitor(optimizer, nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.ones(2, 3), r"closure: returned a tensor of shape \(2, 3\), expected one number, the loss"),
        (None, "closure: returned None, expected a number, the loss"),
    ],
)
def test_a_closure_returns_one_number(loss: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        one_step(nn.Linear(4, 2), torch.ones(1, 4), closure=lambda: loss)
