"""The fused backend learns the same as the reference backend."""

import inspect
import math
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_env import NAME, config

from weightclip.lab.callbacks import Callbacks
from weightclip.lab.checkpoint import Row
from weightclip.lab.compiled import load_kernel
from weightclip.lab.experiments.ppo import fused, kernel
from weightclip.lab.experiments.ppo.config import Config, resolve
from weightclip.lab.experiments.ppo.environments import Normalizer
from weightclip.lab.experiments.ppo.ppo import Learners, _Policy
from weightclip.lab.experiments.ppo.training import run_configs
from weightclip.lab.networks.actor_critic import layers_of
from weightclip.lab.sweep.plan import with_seeds

ENVIRONMENTS = ("Ant-v4", "HalfCheetah-v4", "Hopper-v4", "Humanoid-v4", "HumanoidStandup-v4", "Walker2d-v4")


def both(**given: Any) -> tuple[Learners, Learners]:
    configs = [[config(seed=seed, backend=one, **given) for seed in range(2)] for one in ("fused", "reference")]
    return Learners(configs[0]), Learners(configs[1])


def update(ours: Learners, theirs: Learners) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Update both backends from one rollout with the same permutations."""
    rollout = theirs.collect()
    return ours.update(rollout, ours.advantages(rollout)), theirs.update(rollout, theirs.advantages(rollout))


def moments(learners: Learners, name: str) -> torch.Tensor:
    return torch.cat([state[name].flatten() for one in learners.optimizers for state in one.state.values()])


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"clip_vloss": False},
        {"norm_adv": False},
        {"ent_coef": 0.05},
        {"vf_coef": 0.1},
        {"clip_coef": 0.02},
        {"clip_coef": math.inf},
        {"max_grad_norm": 0.01},
        {"max_grad_norm": math.inf},
        {"hidden": ()},
        {"hidden": (5,)},
        {"hidden": (9, 4, 6)},
        {"method": "adam-equal-betas"},
        {"settings": {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}},
    ],
    ids=str,
)
def test_gradients_moments_and_weights_match_the_reference(given: dict[str, Any], spread: float) -> None:
    ours, theirs = both(**{"method": "adam", "lr": 0.01, **given})
    rollout = theirs.collect()
    targets = theirs.advantages(rollout)
    noise = spread * torch.randn(ours.stack.weights.shape, generator=torch.Generator().manual_seed(0))
    for one in (ours, theirs):  # differs from the acting policy, so that ratios and values are clipped
        with torch.no_grad():
            one.stack.weights += noise
    found, expected = ours.update(rollout, targets), theirs.update(rollout, targets)
    if spread and given.get("clip_coef", 0.2) < 1:
        assert (expected["clip_fraction"] > 0.01).all()  # otherwise clipping is not tested
    torch.testing.assert_close(moments(ours, "exp_avg"), moments(theirs, "exp_avg"), rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(moments(ours, "exp_avg_sq"), moments(theirs, "exp_avg_sq"), rtol=1e-3, atol=1e-8)
    assert torch.equal(moments(ours, "step"), moments(theirs, "step"))
    torch.testing.assert_close(ours.stack.weights, theirs.stack.weights, rtol=0, atol=2e-5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.float(), rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


@pytest.mark.parametrize("bounds", ["paper", "fan_in"])
@pytest.mark.parametrize("kappa", [0.4, "hidden=0.4,output=0.1", "hidden=inf,output=0.1", "graded(0.05,0.5)"])
def test_every_clipping_range_matches_the_reference(kappa: Any, bounds: str) -> None:
    ours, theirs = both(method="adam+wc", kappa=kappa, bounds=bounds, lr=0.003)
    update(ours, theirs)
    torch.testing.assert_close(ours.stack.weights, theirs.stack.weights, rtol=0, atol=2e-5)
    rows = [[one._weights(s) for s in range(2)] for one in (ours, theirs)]
    assert rows[0][0]["clipped"] == rows[1][0]["clipped"] > 0.01
    for s in range(2):
        limits = fused.clipping_limits(list(ours.stack.members[s].parameters()), ours.optimizers[s])
        sizes = [one.stack.row(s).abs().numpy() for one in (ours, theirs)]
        assert (sizes[0] <= limits).all()
        np.testing.assert_array_equal(sizes[0] == limits, sizes[1] == limits)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_five_iterations_from_the_same_rollouts_end_with_the_same_weights(env: str) -> None:
    """Rollouts are short, because the backends diverge once a ratio rounds to the other side of 1 +- clip_coef."""
    given = {"env": env, "method": "adam+wc", "num_steps": 128, "num_minibatches": 2, "steps": 5 * 128}
    ours, theirs = (
        Learners([resolve(Config(**given, backend=one, seed=seed)) for seed in range(2)])
        for one in ("fused", "reference")
    )
    for iteration in range(5):
        for one in (ours, theirs):
            for optimizer in one.optimizers:
                optimizer.param_groups[0]["lr"] = one.config.step_size(iteration)
        found, expected = update(ours, theirs)
        torch.testing.assert_close(ours.stack.weights, theirs.stack.weights, rtol=0, atol=2e-5)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5, msg=name)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Convert both backends to float64; the compiled one uses the standard library's tanh instead of float32's."""
    source = inspect.getsource(kernel)
    for old, new in (("F = np.float32", "F = np.float64"), ("def tanh(x):", "def tanh(x):\n    return math.tanh(x)")):
        assert source.count(old) == 1
        source = source.replace(old, new)
    monkeypatch.setattr(fused, "_load", lambda: load_kernel(source, tmp_path))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("method", ["adam", "adam+wc"])
def test_five_iterations_of_the_papers_length_are_equal_in_float64(env: str, method: str) -> None:
    """In float64, rounding is too small to move a ratio or a value across its clipping limit."""
    given = {"env": env, "method": method, "steps": 5 * 2048}
    ours, theirs = (Learners([resolve(Config(**given, backend=one))]) for one in ("fused", "reference"))
    for iteration in range(5):
        for one in (ours, theirs):
            one.optimizers[0].param_groups[0]["lr"] = one.config.step_size(iteration)
        found, expected = update(ours, theirs)
        torch.testing.assert_close(ours.stack.weights, theirs.stack.weights, rtol=0, atol=1e-13)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7, check_dtype=False, msg=name)


def test_both_backends_sample_and_learn_the_same_independently() -> None:
    ours, theirs = both(method="adam+wc", lr=0.003)
    for iteration in range(4):
        rows, others = ours.iterate(iteration)[0], theirs.iterate(iteration)[0]
        torch.testing.assert_close(ours.stack.weights, theirs.stack.weights, rtol=0, atol=2e-5)
        for one, other in zip(rows, others, strict=True):
            assert one["episodes"] == other["episodes"]
            assert one["return"] == pytest.approx(other["return"], rel=1e-4, nan_ok=True)


def test_mean_actions_match_the_networks() -> None:
    ours, _ = both(hidden=(9, 4, 6))
    tensors = {name: tensor.detach() for name, tensor in ours.stack.tensors().items()}
    layers = layers_of(tensors, "actor_mean")
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_allclose(fused.FusedPolicy(layers)(x), _Policy(layers)(x), rtol=1e-5, atol=1e-7)


def test_normalization_equals_numpys_bit_for_bit() -> None:
    generator = np.random.default_rng(0)
    one, other = fused.FusedNormalizer(3, 4, 0.9), Normalizer(3, 4, 0.9)
    for step in range(200):
        x, rewards = generator.normal(size=(3, 4)) * 10 ** generator.uniform(-3, 3), generator.normal(size=3) * step
        x[0, 0] = 0.0
        ended = generator.uniform(size=3) < 0.1
        which = slice(None) if step % 3 else generator.uniform(size=3) < 0.5
        np.testing.assert_array_equal(one.observe(x, which), other.observe(x, which))
        np.testing.assert_array_equal(one.reward(rewards, ended, which), other.reward(rewards, ended, which))
    for name, array in other.arrays().items():
        np.testing.assert_array_equal(one.arrays()[name], array)


@pytest.mark.parametrize(
    ("method", "settings", "part"),
    [
        ("adam", {}, None),
        ("adam+wc", {"beta1": 0.8}, None),
        ("adam-equal-betas", {}, None),
        ("adam+l2init+wc", {}, "l2init"),
        ("sgd", {}, "sgd"),
        ("adam", {"weight_decay": 0.1}, "weight_decay"),
    ],
)
def test_other_methods_fall_back_to_the_reference_backend_and_report_it(
    method: str, settings: dict[str, float], part: str | None
) -> None:
    lines: list[str] = []
    more: dict[str, Any] = {"decay": 0.01} if "l2" in method else {}
    own = config(method, settings=settings, lr=0.001, steps=64, **more)
    (record,) = run_configs([own], callbacks=Callbacks(on_event=lines.append))
    assert record.config["backend"] == own.backend == ("fused" if part is None else "reference")
    assert lines == ([] if part is None else [f"{part} is not supported by the fused backend; using reference"])
    assert "backend" not in record.deviations


def test_a_requested_reference_backend_is_not_reported() -> None:
    lines: list[str] = []
    run_configs([config("sgd", lr=0.001, steps=64, backend="reference")], callbacks=Callbacks(on_event=lines.append))
    assert lines == []


def test_the_fallback_of_several_seeds_is_reported_once() -> None:
    lines: list[str] = []
    configs = with_seeds(config("sgd", lr=0.001, steps=64, hidden=(16,)), [0, 1])
    run_configs(pickle.loads(pickle.dumps(configs)), callbacks=Callbacks(on_event=lines.append))
    assert lines == ["sgd is not supported by the fused backend; using reference"]


def test_the_backends_have_separate_records(tmp_path: Path) -> None:
    records = [run_configs([config(backend=one)], tmp_path)[0] for one in ("fused", "reference")]
    assert [one.config["backend"] for one in records] == ["fused", "reference"]
    assert records[0].identity != records[1].identity


@pytest.mark.parametrize("writable", [True, False])
def test_compilation_is_reported_before_it_starts(
    writable: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note = "cached for later runs" if writable else "not cached: the cache directory is not writable"

    def stop(line: str) -> None:
        assert line == f"compiling the PPO kernels ({note})"
        raise KeyboardInterrupt

    source = f"{inspect.getsource(kernel)}# {tmp_path}"
    directory = tmp_path / "kernels"
    if not writable:
        directory.write_text("a file", encoding="utf-8")
    monkeypatch.setattr(fused, "_load", lambda: load_kernel(source, directory))
    with pytest.raises(KeyboardInterrupt):
        run_configs([config(steps=64)], callbacks=Callbacks(on_event=stop))
    assert not list(tmp_path.rglob("*.nbi"))


def test_compiled_code_is_in_the_cache() -> None:
    ours = Learners([config(env=NAME)])
    ours.iterate(0)
    assert ours.fused is not None
    assert fused.compiled()
    names = {path.name.split(".")[1].split("-")[0] for path in _cached(ours.fused)}
    assert {"learn", "act", "observe", "scale_rewards"} <= names


def _cached(update: fused.FusedUpdate) -> list[Path]:
    kernel = update._kernel
    return list((Path(str(kernel.__file__)).parent / "__pycache__").glob(f"{kernel.__name__}*.nbi"))


def test_the_metrics_of_a_diverged_learner_are_nan() -> None:
    ours, _ = both(method="adam")
    rollout = ours.collect()
    with torch.no_grad():
        ours.stack.members[1].actor_mean[0].weight[0, 0] = math.nan
    found: Mapping[str, Any] = ours.update(rollout, ours.advantages(rollout))
    row: Row = {name: values[1].item() for name, values in found.items()}
    for name in ("approx_kl", "clip_fraction", "policy_loss", "gradient_l2", "saturated"):
        assert math.isnan(row[name]), name
        assert math.isfinite(found[name][0].item()), name
