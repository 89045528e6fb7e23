import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_data import tiny_dataset
from torch import nn

import weightclip as wc
from weightclip._hooks import find_regularizer
from weightclip.lab.experiments.streaming.config import Config, resolve
from weightclip.lab.experiments.streaming.metrics import METRICS
from weightclip.lab.experiments.streaming.problem import Task, make_task
from weightclip.lab.experiments.streaming.reference import Reference, make_reference

DATA = tiny_dataset()
METHODS = ("sgd", "adam", "sgd+l2", "adam+l2init", "sgd+sp", "adam+sp", "sgd+wc", "adam+l2init+wc", "madam")


def config(method: str = "adam+wc", **settings: Any) -> Config:
    small = {"hidden": (8, 6), "backend": "reference", "lr": 0.01, "steps": 60, "period": 20}
    return resolve(Config("input-permuted-mnist", method, **{**small, **settings}))


def task(index: int = 0, steps: int = 20) -> Task:
    n, d = DATA.inputs.shape
    return make_task("inputs", index, steps, steps, 0, n, d, DATA.classes)


def equal(a: Reference, b: Reference) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.weights(), b.weights(), strict=True))


def test_the_reference_network_learns_the_stream() -> None:
    learner = make_reference(config("adam"), DATA)
    first, *_, last = [learner.learn(task()) for _ in range(8)]
    assert last["accuracy"] > first["accuracy"] + 0.3
    assert last["loss"] < first["loss"] / 2


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("madam", wc.Madam)],
)
def test_the_method_names_the_optimizer_and_its_settings(method: str, optimizer: type[torch.optim.Optimizer]) -> None:
    learner = make_reference(config(method), DATA)
    assert type(learner.optimizer) is optimizer
    assert learner.optimizer.param_groups[0]["lr"] == 0.01
    if method == "adam":
        changed = make_reference(config(method, settings={"beta1": 0.5, "eps": 1e-3}), DATA).optimizer.param_groups[0]
        assert (changed["betas"], changed["eps"]) == ((0.5, 0.999), 1e-3)


def test_sgd_has_no_momentum() -> None:
    assert make_reference(config("sgd"), DATA).optimizer.param_groups[0]["momentum"] == 0


@pytest.mark.parametrize(("variant", "l2init", "sp"), [("paper", "paper", "paper"), ("original", "kumar", "ash")])
def test_the_variant_is_the_papers_or_the_original_authors(variant: str, l2init: str, sp: str) -> None:
    pulled = make_reference(config("adam+l2init", variant=variant), DATA).optimizer
    perturbed = make_reference(config("adam+sp", variant=variant), DATA).optimizer
    assert find_regularizer(pulled, "l2_init").variant == l2init  # type: ignore[union-attr]
    assert find_regularizer(perturbed, "shrink_and_perturb").variant == sp  # type: ignore[union-attr]


def test_clipping_holds_after_every_step_with_any_other_hook() -> None:
    learner = make_reference(config("adam+sp+wc", kappa=0.5, sigma=50.0), DATA)
    learner.learn(task())
    bounds = wc.resolve_bounds(learner.model)
    for name, p in learner.model.named_parameters():
        assert p.abs().max() <= 0.5 * bounds[name].s  # type: ignore[operator]


def test_step_metrics_match_the_papers_definitions() -> None:
    """One step of SGD; every metric is recomputed from the network's weights before and after."""
    learner = make_reference(config("sgd+l2", dtype="float64", decay=0.1, activation="tanh"), DATA)
    before = [p.detach().clone() for p in learner.model.parameters()]
    one = task(steps=1)
    row = one.rows[0]
    x = (torch.from_numpy(DATA.inputs[row][one.columns]).double() / 255 - 0.5) / 0.5
    y = int(one.classes[DATA.labels[row]])
    twin = make_reference(config("sgd", dtype="float64", activation="tanh"), DATA).model
    logits = twin(x)
    loss = -torch.log_softmax(logits, 0)[y]
    loss.backward()
    gradients = [p.grad for p in twin.parameters()]

    measured = learner.learn(one)

    after = [p.detach() for p in learner.model.parameters()]
    for w, new, g in zip(before, after, gradients, strict=True):
        torch.testing.assert_close(new, w - 0.01 * (g + 0.1 * w))
    hidden = [twin[0](x), twin[2](twin[1](twin[0](x)))]
    entries = torch.cat(hidden)
    loss_after = -torch.log_softmax(learner.model(x), 0)[y]
    matrices = [w for w in after if w.ndim == 2]
    slopes = [g for g in gradients if g.ndim == 2]
    expected = {
        "accuracy": float(logits.argmax() == y),
        "loss": loss.item(),
        "plasticity": max(1 - loss_after.item() / loss.item(), 0),
        "weight_l2": math.sqrt(sum(w.square().sum().item() for w in matrices)),
        "weight_l1": sum(w.abs().sum().item() for w in matrices),
        "gradient_l2": math.sqrt(sum(g.square().sum().item() for g in slopes)),
        "gradient_l1": sum(g.abs().sum().item() for g in slopes),
        "clipped": 0.0,
        "negative": (entries < 0).double().mean().item(),
        "saturated": (entries.tanh().abs() >= 0.95).double().mean().item(),
    }
    assert measured == pytest.approx(expected, rel=1e-12)
    assert set(measured) == set(METRICS) - {"online_accuracy", "lipschitz"}


def test_a_tasks_metrics_are_means_over_its_steps() -> None:
    whole, single = (make_reference(config("adam+wc", kappa=0.7), DATA) for _ in range(2))
    steps = [single.learn(replace(task(), rows=task().rows[i : i + 1])) for i in range(20)]
    for name, mean in whole.learn(task()).items():
        assert mean == pytest.approx(np.mean([step[name] for step in steps]), nan_ok=True)


def test_labels_follow_the_task() -> None:
    """A network that always predicts 0 is correct only for the class that this task maps to 0."""
    learner = make_reference(config("sgd", lr=0.0), DATA)
    with torch.no_grad():
        learner.model[-1].weight.zero_()
        learner.model[-1].bias.copy_(torch.tensor([1.0, 0, 0, 0]))
    one = make_task("labels", 3, 60, 60, 0, 60, 12, 4)
    for label, name in enumerate(one.classes):
        rows = np.flatnonzero(DATA.labels == label)
        assert learner.learn(replace(one, rows=rows))["accuracy"] == (name == 0)


def test_the_clipped_fraction_is_the_clippers() -> None:
    learner = make_reference(config("sgd+wc", kappa=0.5), DATA)
    sizes = {name: p.abs() for name, p in learner.model.named_parameters()}
    bounds = wc.resolve_bounds(learner.model)
    outside = sum(int((size > 0.5 * bounds[name].s).sum()) for name, size in sizes.items())  # type: ignore[operator]
    fraction = outside / sum(size.numel() for size in sizes.values())
    assert learner.learn(task(steps=1))["clipped"] == pytest.approx(fraction, abs=0.03)
    assert math.isnan(make_reference(config("madam"), DATA).learn(task(steps=1))["clipped"])


def test_only_tanh_saturates() -> None:
    assert math.isnan(make_reference(config(activation="relu"), DATA).learn(task(steps=1))["saturated"])


@pytest.mark.parametrize("method", METHODS)
def test_measuring_does_not_change_learning(method: str) -> None:
    measured, plain = (make_reference(config(method, diagnostics=on), DATA) for on in (True, False))
    a, b = measured.learn(task()), plain.learn(task())
    assert set(b) == {"accuracy", "loss"}
    assert (a["accuracy"], a["loss"]) == (b["accuracy"], b["loss"])
    assert equal(measured, plain)


@pytest.mark.parametrize("variant", ["paper", "original"])
@pytest.mark.parametrize("method", METHODS)
def test_another_learner_resumes_bit_for_bit_from_the_state(method: str, variant: str) -> None:
    settings = config(method, variant=variant)
    first, second = make_reference(settings, DATA), make_reference(replace(settings, seed=1), DATA)
    first.learn(task(0))
    saved = first.state()
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in saved.values())
    expected = first.learn(task(1))
    second.load_state(saved)
    assert second.learn(task(1)) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert equal(first, second)


def test_a_state_is_a_copy() -> None:
    learner = make_reference(config(), DATA)
    learner.learn(task())
    state, weights = learner.state(), learner.weights()
    kept = {name: array.copy() for name, array in state.items()}
    learner.learn(task(1))
    assert all(np.array_equal(kept[name], array) for name, array in state.items())
    assert not np.array_equal(weights[0], learner.weights()[0])


def test_the_seed_determines_weights_and_noise() -> None:
    settings = config("sgd+sp", sigma=1.0)
    same = [make_reference(settings, DATA) for _ in range(2)]
    for learner in same:
        learner.learn(task())
    assert equal(*same)
    other = make_reference(replace(settings, seed=1), DATA)
    assert not np.array_equal(other.weights()[0], make_reference(settings, DATA).weights()[0])


def test_float64_starts_from_the_same_weights_and_stays_close() -> None:
    single, double = (make_reference(config(dtype=dtype), DATA) for dtype in ("float32", "float64"))
    assert all(np.array_equal(a.astype(np.float64), b) for a, b in zip(single.weights(), double.weights(), strict=True))
    a, b = single.learn(task()), double.learn(task())
    assert double.weights()[0].dtype == np.float64
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    assert a["loss"] != b["loss"]


def test_a_diverged_network_is_measured_without_an_error() -> None:
    learner = make_reference(config("sgd", lr=1e30), DATA)
    measured = learner.learn(task())
    assert not math.isfinite(measured["loss"])
    assert 0 <= measured["accuracy"] <= 1


def test_any_module_and_optimizer_are_supported() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(12, 12)
            self.outer = nn.Linear(12, 4)
            self.activation = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(x + self.activation(self.inner(x)))

    model = Skip()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    wc.clip_weights(optimizer, model, kappa=1.0)
    measured = Reference(model, optimizer, DATA).learn(task())
    assert 0 < measured["negative"] < 1
    assert math.isnan(measured["clipped"])  # this clipper does not track clipped entries


def test_progress_is_reported_within_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightclip.lab.experiments.streaming.reference.STEPS_BETWEEN_REPORTS", 5)
    reported: list[tuple[int, float]] = []
    measured = make_reference(config(), DATA).learn(task(), lambda steps, accuracy: reported.append((steps, accuracy)))
    assert [steps for steps, _ in reported] == [5, 10, 15, 20]
    assert reported[-1][1] == measured["accuracy"]
