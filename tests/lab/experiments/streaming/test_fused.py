"""The fused engine computes the same as the reference."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_data import tiny_dataset

from vectors import GRADIENTS, NOISE, VECTORS, WEIGHTS
from weightclip.lab.compiled import load_kernel
from weightclip.lab.config import mark_resolved
from weightclip.lab.data import load
from weightclip.lab.experiments.streaming.config import PAPER_METHODS, Config, resolve
from weightclip.lab.experiments.streaming.fused import CHUNK, Fused
from weightclip.lab.experiments.streaming.kernel import kernel_source
from weightclip.lab.experiments.streaming.problem import Task, make_task
from weightclip.lab.experiments.streaming.reference import Reference, make_reference
from weightclip.lab.experiments.streaming.rules import parse_rules, rule_components
from weightclip.regularizers.shrink_and_perturb import ShrinkAndPerturb

DATA = tiny_dataset()


def config(method: str, **settings: Any) -> Config:
    return resolve(Config("input-permuted-mnist", method, **{"hidden": (9, 6), **settings}))


def task(steps: int, index: int = 0) -> Task:
    return make_task("inputs", index, steps, steps, 0, *DATA.inputs.shape, DATA.classes)


def without_nan(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def inject(learner: Reference, noise: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take Shrink & Perturb's noise from the rows of `noise`; the columns are all entries of all parameters."""
    parameters = list(learner.model.parameters())
    ends = np.cumsum([p.numel() for p in parameters])
    place = {id(p): slice(end - p.numel(), end) for p, end in zip(parameters, ends)}
    drawn = dict.fromkeys(place, 0)

    def given(self: ShrinkAndPerturb, p: torch.Tensor) -> torch.Tensor:
        drawn[id(p)] += 1
        return torch.from_numpy(noise[drawn[id(p)] - 1, place[id(p)]].reshape(p.shape)).to(p.dtype)

    monkeypatch.setattr(ShrinkAndPerturb, "_noise", given)


def assert_equal(settings: Config, steps: int, monkeypatch: pytest.MonkeyPatch, rtol: float, atol: float) -> None:
    reference = make_reference(settings, DATA)
    size = sum(p.numel() for p in reference.model.parameters())
    noise = np.random.default_rng(1).standard_normal((steps, size))
    inject(reference, noise, monkeypatch)
    fused = Fused(settings, DATA, noise)
    for index in range(2):
        expected, measured = reference.learn(task(steps // 2, index)), fused.learn(task(steps // 2, index))
        assert measured.keys() == expected.keys()
        for name, value in expected.items():
            assert measured[name] == pytest.approx(value, rel=rtol, abs=atol, nan_ok=True), name
    for weights, expected_weights in zip(fused.weights(), reference.weights(), strict=True):
        np.testing.assert_allclose(weights, expected_weights, rtol=rtol, atol=atol)


ACTIVATIONS = ("leaky_relu", "relu", "tanh")
PAIRS = [(method, activation) for method in PAPER_METHODS for activation in ACTIVATIONS]
# Each pair is a separate kernel that takes seconds to compile: the fast tests cover every method and every activation,
# the slow ones every pair.
QUICK = [(method, ACTIVATIONS[i % 3]) for i, method in enumerate(PAPER_METHODS)]


@pytest.mark.parametrize(
    ("method", "activation"),
    [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
)
def test_the_fused_engine_equals_pytorch_in_float64_over_1000_steps(
    method: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(method, activation=activation, lr=0.01, dtype="float64")
    assert_equal(settings, 1000, monkeypatch, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("adam+l2", {}),
        ("adam+l2init+wc", {"kappa": 0.5}),
        ("sgd+sp+wc", {"kappa": 0.7}),
        ("adam+l2init", {"variant": "original"}),
        ("sgd+sp", {"variant": "original", "decay": 1e-4, "sigma": 1e-3}),
        ("adam+wc", {"hidden": ()}),
        ("adam+wc", {"hidden": (7, 6, 5, 4)}),
        ("adam+wc", {"outputs": 7}),
        ("adam", {"settings": {"beta1": 0.5, "beta2": 0.9, "eps": 0.01}}),
        ("madam", {"settings": {"beta": 0.9, "max_update": 2.0}}),
    ],
    ids=str,
)
def test_combinations_variants_and_shapes_equal_pytorch(
    method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_equal(config(method, dtype="float64", lr=0.01, **settings), 300, monkeypatch, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["sgd+wc", "adam+l2init", "sgd+sp", "madam"])
def test_the_fused_engine_equals_pytorch_in_float32_up_to_rounding(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_equal(config(method), 200, monkeypatch, rtol=2e-4, atol=2e-6)


def test_disabling_diagnostics_does_not_change_learning() -> None:
    plain, measured = (Fused(config("sgd+wc", diagnostics=on), DATA) for on in (False, True))
    few, many = plain.learn(task(300)), measured.learn(task(300))
    assert few == pytest.approx({name: many[name] for name in ("accuracy", "loss")}, rel=1e-4)
    for a, b in zip(plain.weights(), measured.weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["adam+l2init+wc", "sgd+sp"])
def test_the_fused_engine_resumes_bit_for_bit_from_a_saved_state(method: str) -> None:
    straight, first = (Fused(config(method), DATA) for _ in range(2))
    for learner in (straight, first):
        learner.learn(task(150))
    second = Fused(config(method, seed=0), DATA)
    second.load_state({name: array.copy() for name, array in first.state().items()})
    assert without_nan(second.learn(task(150, 1))) == without_nan(straight.learn(task(150, 1)))
    for a, b in zip(second.weights(), straight.weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [Fused, make_reference])
def test_a_key_of_kappa_without_effect_raises_the_same_error_in_both_engines(make: Any) -> None:
    settings = mark_resolved(replace(config("sgd+wc"), kappa=None, kappa_rule="*=2,0.*=1"))
    with pytest.raises(ValueError, match=r"kappa: '0\.\*' has no effect, because earlier keys match all"):
        make(settings, DATA)


def test_a_state_of_another_network_raises_an_error() -> None:
    state = Fused(config("sgd+wc"), DATA).state()
    with pytest.raises(ValueError, match=r"theta: got float32\(\d+,\), expected float32\(\d+,\)"):
        Fused(config("sgd+wc", hidden=(5,)), DATA).load_state(state)


def test_the_seed_determines_the_noise() -> None:
    first, same, other = (Fused(config("sgd+sp", seed=seed), DATA) for seed in (0, 0, 1))
    results = [without_nan(learner.learn(task(50))) for learner in (first, same, other)]
    assert results[0] == results[1] != results[2]


def test_progress_is_reported_in_chunks() -> None:
    reported: list[tuple[int, float]] = []
    means = Fused(config("sgd+wc"), DATA).learn(task(2 * CHUNK + 10), lambda *report: reported.append(report))
    assert [steps for steps, _ in reported] == [CHUNK, 2 * CHUNK, 2 * CHUNK + 10]
    assert reported[-1][1] == means["accuracy"]


def test_a_diverged_run_has_nonfinite_metrics() -> None:
    means = Fused(config("sgd", lr=1e6), DATA).learn(task(200))
    assert not math.isfinite(means["loss"])


def test_weights_stay_in_the_box_exactly() -> None:
    learner = Fused(config("sgd+wc", kappa=0.3, lr=1.0), DATA)
    learner.learn(task(200))
    for weights, fan_in in zip(learner.weights(), (12, 12, 9, 9, 6, 6), strict=True):
        assert np.abs(weights).astype(np.float64).max() <= 0.3 / math.sqrt(fan_in)


def test_inputs_are_validated_before_compiled_code_runs() -> None:
    """Compiled code does not check bounds."""
    learner = Fused(config("sgd+wc"), DATA)
    good = task(20)
    n, d = DATA.inputs.shape
    for wrong in (
        Task(0, np.full(20, n), good.columns, good.classes),
        Task(0, np.full(20, -1), good.columns, good.classes),
        Task(0, good.rows, good.columns[:-1], good.classes),
        Task(0, good.rows, np.full(d, d), good.classes),
        Task(0, good.rows, good.columns, good.classes + 1),
        Task(0, good.rows, good.columns, good.classes[:-1]),
    ):
        with pytest.raises(
            ValueError, match=r"task: got a task that does not match 60 inputs of size 12 and 4 outputs"
        ):
            learner.learn(wrong)
    with pytest.raises(ValueError, match=r"outputs: got 3, expected at least the 4 classes of tiny"):
        Fused(config("sgd+wc", outputs=3), DATA)
    with pytest.raises(ValueError, match=r"noise: got the shape \(5, 3\)"):
        Fused(config("sgd+wc"), DATA, np.zeros((5, 3)))
    size = sum(weights.size for weights in learner.weights())
    with pytest.raises(ValueError, match=r"noise: got 5 updates"):
        Fused(config("sgd+wc"), DATA, np.zeros((5, size))).learn(good)


def test_the_papers_network_on_digits_equals_pytorch() -> None:
    data = load("mnist")
    settings = resolve(Config("input-permuted-mnist", "adam+wc", dtype="float64"))
    digits = make_task("inputs", 0, 100, 100, 0, *data.inputs.shape, data.classes)
    expected, measured = (learner.learn(digits) for learner in (make_reference(settings, data), Fused(settings, data)))
    assert measured == pytest.approx(expected, rel=1e-9, nan_ok=True)


KERNEL_NAMES = {
    "none": "",
    "clip": "+wc",
    "l2": "+l2",
    "l2_init_kumar": "+l2init",
    "l2_init_paper": "+l2init",
    "shrink_and_perturb_ash": "+sp",
    "shrink_and_perturb_paper": "+sp",
    "l2_init_kumar+clip": "+l2init+wc",
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_fused_engine_reproduces_the_reference_values(name: str, tmp_path: Any) -> None:
    """Update a row of four weights with the gradients of the vectors."""
    vector = VECTORS[name]
    optimizer, _, regularizers = name.partition("+")
    variant = "original" if "kumar" in name or "ash" in name else "paper"
    method = parse_rules(optimizer + KERNEL_NAMES.get(regularizers, ""), rule_components(variant))
    kernel = load_kernel(kernel_source(method, "relu", "float64", True), tmp_path)
    given = {"lr": vector.lr, **vector.settings}
    settings = np.array([given.get(key, default) for key, default in method.settings.items()], dtype=np.float64)
    theta = np.array(WEIGHTS)
    kappa = given.get("kappa", math.inf)
    constants = np.array([0.5, kappa * 0.5, math.sqrt(np.square(WEIGHTS).mean())])
    state, initial = np.zeros((kernel.STATES, 4)), np.array(WEIGHTS)
    scalars, z = np.zeros(kernel.SCALARS), np.zeros(4)
    for step, gradient in enumerate(GRADIENTS):
        kernel.update_one(
            theta,
            state,
            initial,
            scalars,
            settings,
            constants,
            np.full(1, math.inf),
            np.full(4, math.inf),
            np.array(gradient),
            z,
            step + 1,
            np.array([NOISE[step]]),
        )
        np.testing.assert_allclose(theta, vector.after[step], rtol=1e-12, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sgd+wc", "adam+wc", "adam+sp", "madam"])
def test_over_50000_steps_in_float32_the_accuracies_agree_within_sampling_noise(method: str) -> None:
    """Trajectories diverge because of rounding (and Shrink & Perturb's noise), but their accuracies agree."""
    data, tasks, period = load("mnist", bundled=True), 10, 5000
    settings = config(method, hidden=(30, 15))
    learners = make_reference(settings, data), Fused(settings, data)
    accuracies = np.array(
        [
            [
                learner.learn(make_task("inputs", i, period, period, 0, *data.inputs.shape, 10))["accuracy"]
                for i in range(tasks)
            ]
            for learner in learners
        ]
    )
    p = accuracies.mean()
    error = math.sqrt(2 * p * (1 - p) / period)
    assert np.abs(accuracies[0] - accuracies[1]).max() < 4 * error
    assert abs(accuracies[0].mean() - accuracies[1].mean()) < 4 * error / math.sqrt(tasks)
