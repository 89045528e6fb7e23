import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import weightclip as wc
import weightclip.optax as wo
from vectors import GRADIENTS, VECTORS, WEIGHTS
from weightclip._box import limit
from weightclip.bounds import Bound

KEY = jax.random.key(0, impl="unsafe_rbg")  # faster to compile
DTYPES = {jnp.float32: torch.float32, jnp.bfloat16: torch.bfloat16, jnp.float16: torch.float16}

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[..., Any]]] = {
    "sgd": (torch.optim.SGD, optax.sgd),
    "adam": (torch.optim.Adam, optax.adam),
}


def x64() -> Any:
    enable = getattr(jax, "enable_x64", None)
    if enable is None:
        from jax.experimental import enable_x64 as enable
    return enable(True)


def bounds_of(params: Any, **choice: Any) -> dict[str, float | None]:
    return {path: bound.s for path, bound in wo.resolve_bounds(params, **choice).items()}


def dense(n: int, m: int, value: float = 0.0, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    return {"kernel": jnp.array(np.full((n, m), value, dtype)), "bias": jnp.array(np.full(m, value, dtype))}


def all_equal(array: jax.Array, value: Any) -> bool:
    return bool(np.all(np.asarray(array) == value))


def after(optimizer: Any, params: Any, gradients: Any) -> Any:
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return optax.apply_updates(params, updates)


@pytest.mark.parametrize("name", ["sgd+none", "sgd+clip", "adam+none", "adam+clip"])
@pytest.mark.parametrize("layout", ["flax", "equinox"])
def test_reference_values(name: str, layout: str) -> None:
    vector = VECTORS[name]
    make = OPTIMIZERS[name.partition("+")[0]][1]
    with x64():
        shape, leaf = ((4, 1), "kernel") if layout == "flax" else ((1, 4), "weight")
        params = {leaf: jnp.array(WEIGHTS).reshape(shape)}
        optimizer = optax.chain(make(vector.lr), wo.clip_weights(vector.settings.get("kappa", math.inf)))
        state = optimizer.init(params)
        for gradient, expected in zip(GRADIENTS, vector.after, strict=True):
            updates, state = optimizer.update({leaf: jnp.array(gradient).reshape(shape)}, state, params)
            params = optax.apply_updates(params, updates)
            np.testing.assert_allclose(params[leaf].ravel(), expected, rtol=1e-12, atol=1e-15)


class Host:
    """A network of two layers in one library, with arrays in PyTorch's order and layout."""

    params: Any

    def network(self, params: Any, x: jax.Array) -> jax.Array:
        raise NotImplementedError

    def arrays(self, params: Any) -> list[jax.Array]:
        raise NotImplementedError


class Equinox(Host):
    def __init__(self, tensors: list[np.ndarray]) -> None:
        mlp = eqx.filter_eval_shape(eqx.nn.MLP, 5, 3, 8, depth=1, activation=jnp.tanh, key=KEY)
        mlp = eqx.tree_at(self.arrays, mlp, [jnp.array(t) for t in tensors])
        self.params, self.static = eqx.partition(mlp, eqx.is_inexact_array)

    def network(self, params: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(params, self.static))(x)

    def arrays(self, params: Any) -> list[jax.Array]:
        return [array for layer in params.layers for array in (layer.weight, layer.bias)]


class Dictionary(Host):
    def __init__(self, tensors: list[np.ndarray]) -> None:
        w0, b0, w1, b1 = (jnp.array(t.T) for t in tensors)
        self.params = {"Dense_0": {"kernel": w0, "bias": b0}, "Dense_1": {"kernel": w1, "bias": b1}}

    def network(self, params: Any, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
        return hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]

    def arrays(self, params: Any) -> list[jax.Array]:
        return [array for layer in params.values() for array in (layer["kernel"].T, layer["bias"])]


@pytest.mark.parametrize("host", [Equinox, Dictionary])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_equals_pytorch(name: str, host: type[Any]) -> None:
    """Each library computes its gradients from the same data in float64."""
    rng = np.random.default_rng(0)
    kappa, lr, cut = 0.7, 0.02, []
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    in_torch = OPTIMIZERS[name][0](model.parameters(), lr=lr)
    clipper = wc.clip_weights(in_torch, model, kappa=kappa, track_clipped=True)
    with x64():
        jax_host = host([p.detach().numpy() for p in model.parameters()])
        in_jax = optax.chain(OPTIMIZERS[name][1](lr), wo.clip_weights(kappa))
        state = in_jax.init(jax_host.params)
        update = jax.jit(in_jax.update)
        gradients = jax.jit(jax.grad(lambda p, x, y: jnp.sum((jax_host.network(p, x) - y) ** 2)))
        for _ in range(20):
            x, y = rng.normal(size=(4, 5)), rng.normal(size=(4, 3))
            in_torch.zero_grad()
            ((model(torch.from_numpy(x)) - torch.from_numpy(y)) ** 2).sum().backward()
            in_torch.step()
            updates, state = update(gradients(jax_host.params, x, y), state, jax_host.params)
            jax_host.params = optax.apply_updates(jax_host.params, updates)
            cut.append(clipper.clipped_fraction)
            for array, tensor in zip(jax_host.arrays(jax_host.params), model.parameters(), strict=True):
                np.testing.assert_allclose(array, tensor.detach(), rtol=1e-10, atol=1e-12)
    assert max(cut) < 0.5
    assert sum(fraction > 0 for fraction in cut) > 10


@pytest.mark.parametrize("host", [Equinox, Dictionary])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_equals_pytorch(name: str, host: type[Any]) -> None:
    """With projection, entries at their limit equal PyTorch's bit for bit."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    jax_host = host([p.detach().numpy() for p in model.parameters()])
    in_torch = OPTIMIZERS[name][0](model.parameters(), lr=0.02)
    clipper = wc.clip_weights(in_torch, model, kappa=0.7)
    in_jax = optax.chain(OPTIMIZERS[name][1](0.02), wo.clip_weights(0.7))
    state, at_limit = in_jax.init(jax_host.params), 0
    update = jax.jit(in_jax.update)
    limits = [limit(0.7, bound, torch.float32) for bound in clipper.bounds.values()]
    for step in range(20):
        x = np.random.default_rng(step).normal(size=(4, 5)).astype(np.float32)
        in_torch.zero_grad()
        ((model(torch.from_numpy(x)) - 1) ** 2).sum().backward()
        given = [jnp.array(p.grad.numpy()) for p in model.parameters()]
        gradients = jax.tree.unflatten(
            jax.tree.structure(jax_host.params),
            # In the order of leaves: dictionaries have the bias first, and kernels are (in, out).
            given if host is Equinox else [given[1], given[0].T, given[3], given[2].T],
        )
        in_torch.step()
        updates, state = update(gradients, state, jax_host.params)
        jax_host.params = wo.project(optax.apply_updates(jax_host.params, updates), 0.7)
        for array, tensor, bound in zip(jax_host.arrays(jax_host.params), model.parameters(), limits, strict=True):
            np.testing.assert_allclose(array, tensor.detach(), rtol=1e-5, atol=1e-5)  # optax rounds 1 - b2^t
            both = (tensor.detach().abs() == bound).numpy() & (np.abs(np.asarray(array)) > 0.9999 * bound)
            at_limit += both.sum()
            np.testing.assert_array_equal(np.asarray(array)[both], tensor.detach().numpy()[both])
    assert at_limit > 100


EQUINOX_LAYERS: dict[str, Callable[[], Any]] = {
    "linear": lambda: eqx.nn.Linear(20, 200, key=KEY),
    "linear of a scalar": lambda: eqx.nn.Linear("scalar", 200, key=KEY),
    "mlp": lambda: eqx.nn.MLP(10, 100, 100, depth=2, key=KEY),
    "conv1d": lambda: eqx.nn.Conv1d(3, 200, 5, key=KEY),
    "conv2d grouped": lambda: eqx.nn.Conv2d(8, 200, 3, groups=4, key=KEY),
    "conv_transpose1d": lambda: eqx.nn.ConvTranspose1d(30, 200, 5, key=KEY),
    "conv_transpose2d grouped": lambda: eqx.nn.ConvTranspose2d(8, 200, 3, groups=2, key=KEY),
    "gru cell": lambda: eqx.nn.GRUCell(10, 100, key=KEY),
    "lstm cell": lambda: eqx.nn.LSTMCell(10, 100, key=KEY),
    "attention": lambda: eqx.nn.MultiheadAttention(
        4, 80, key_size=20, value_size=40, use_query_bias=True, use_output_bias=True, key=KEY
    ),
    "stacked": lambda: eqx.filter_vmap(lambda key: eqx.nn.Linear(7, 100, key=key))(jax.random.split(KEY, 5)),
}


@pytest.fixture(scope="module")
def equinox_layers() -> dict[str, Any]:
    """Create all layers in one compilation."""
    return eqx.filter_jit(lambda: {name: make() for name, make in EQUINOX_LAYERS.items()})()


@pytest.mark.parametrize("name", EQUINOX_LAYERS)
def test_fan_in_is_the_bound_of_equinoxs_initialization(name: str, equinox_layers: dict[str, Any]) -> None:
    """The largest of n uniform draws is below 1 - 20/n of the bound with probability e^-20."""
    layer = equinox_layers[name]
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(layer) if eqx.is_inexact_array(leaf)]
    for (path, bound), array in zip(wo.resolve_bounds(layer).items(), arrays, strict=True):
        largest = np.abs(array).max()
        assert bound.s is not None
        assert bound.s * (1 - 20 / array.size) < largest <= bound.s * (1 + 1e-6), path


class Net(eqx.Module):
    words: eqx.nn.Embedding
    layers: list[Any]
    norms: tuple[Any, ...]
    gain: jax.Array
    activation: Callable[..., Any]
    steps: jax.Array
    nothing: None = None

    def __init__(self) -> None:
        self.words = eqx.nn.Embedding(7, 4, key=KEY)
        self.layers = [eqx.nn.Linear(4, 3, key=KEY), eqx.nn.Linear(3, 2, use_bias=False, key=KEY)]
        self.norms = (eqx.nn.LayerNorm((4, 3)), eqx.nn.RMSNorm(3), eqx.nn.GroupNorm(1, 3), eqx.nn.PReLU())
        self.gain = jnp.ones(())
        self.activation = jax.nn.relu
        self.steps = jnp.zeros((), jnp.int32)


def test_skipped_equinox_tensors_have_a_reason() -> None:
    bounds = wo.resolve_bounds(eqx.filter_eval_shape(Net))
    clipped = {path: bound.s for path, bound in bounds.items() if bound.s is not None}
    assert clipped == {"layers/0/weight": 0.5, "layers/0/bias": 0.5, "layers/1/weight": 1 / math.sqrt(3)}
    assert "embedding" in bounds["words/weight"].reason
    for norm in ("norms/0", "norms/1", "norms/2"):
        assert "normalization" in bounds[f"{norm}/weight"].reason
        assert "normalization" in bounds[f"{norm}/bias"].reason
    assert "slope" in bounds["norms/3/negative_slope"].reason
    assert "no bound rule" in bounds["gain"].reason
    assert "no bound rule" in bounds["steps"].reason


def test_a_whole_or_filtered_model_is_clipped_and_keeps_its_other_leaves() -> None:
    model = eqx.filter_jit(Net)()
    filtered = eqx.filter(model, eqx.is_inexact_array)
    assert bounds_of(filtered) == {path: s for path, s in bounds_of(model).items() if path != "steps"}

    projected = wo.project(model, 0.1)
    assert isinstance(projected, Net)
    assert projected.activation is jax.nn.relu
    assert projected.norms[0].weight is model.norms[0].weight
    assert jnp.abs(projected.layers[0].weight).max() == np.nextafter(np.float32(0.05), np.float32(0))

    gradients = jax.tree.map(jnp.ones_like, filtered)
    optimizer = optax.chain(optax.sgd(100.0), wo.clip_weights(1.0))
    for params in (model, filtered):
        updates, _ = optimizer.update(gradients, optimizer.init(filtered), params)
        moved = eqx.apply_updates(model, updates)
        np.testing.assert_allclose(moved.layers[0].weight, -0.5, rtol=1e-6)
        assert moved.gain == -99

    frozen = eqx.tree_at(lambda model: model.layers[1].weight, gradients, None)
    updates, _ = optimizer.update(frozen, optimizer.init(filtered), model)
    assert eqx.apply_updates(model, updates).layers[1].weight is model.layers[1].weight


def test_the_bias_of_a_layer_without_inputs() -> None:
    assert bounds_of(eqx.filter_eval_shape(eqx.nn.Linear, 0, 3, key=KEY)) == {"weight": None, "bias": 1.0}
    assert bounds_of(dense(0, 3)) == {"kernel": None, "bias": 1.0}


def test_a_subclass_of_an_equinox_layer_uses_its_rule_and_a_custom_module_is_matched_by_name() -> None:
    class Low(eqx.nn.Linear):
        extra: jax.Array

        def __init__(self) -> None:
            super().__init__(4, 3, key=KEY)
            self.extra = np.ones((2, 2))

    class Own(eqx.Module):
        weight: jax.Array
        bias: jax.Array

    low = wo.resolve_bounds(eqx.filter_eval_shape(Low))
    assert (low["weight"].s, low["bias"].s) == (0.5, 0.5)
    assert low["extra"].reason == "no bound rule for an array of Linear that is not a weight or a bias"
    assert bounds_of(Own(np.ones((3, 2, 8)), np.ones(3))) == {"weight": 0.25, "bias": 0.25}
    assert "normalization" in wo.resolve_bounds(Own(np.ones(3), np.ones(3)))["bias"].reason


@pytest.mark.parametrize(
    ("shapes", "fan_in"),
    [
        ({"kernel": (4, 3), "bias": (3,)}, 4),
        ({"kernel": (4, 3)}, 4),
        ({"kernel": (3, 3, 2, 8), "bias": (8,)}, 18),
        ({"kernel": (3, 3, 2, 8)}, 18),
        ({"kernel": (4, 2, 8), "bias": (2, 8)}, 4),
        ({"kernel": (2, 8, 4), "bias": (4,)}, 16),
        ({"kernel": (2, 8, 4)}, 16),
        ({"kernel": (7, 4, 3), "bias": (7, 3)}, 4),
        ({"weight": (3, 4), "bias": (3,)}, 4),
        ({"weight": (8, 2, 3, 3), "bias": (8, 1, 1)}, 18),
    ],
    ids=str,
)
def test_fan_in_by_name_and_shape(shapes: dict[str, tuple[int, ...]], fan_in: int) -> None:
    params = {"layer": {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}}
    assert bounds_of(params) == {f"layer/{name}": 1 / math.sqrt(fan_in) for name in sorted(shapes)}


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_heads_without_a_bias(name: str) -> None:
    assert bounds_of({name: {"kernel": np.ones((4, 2, 8))}}) == {f"{name}/kernel": 0.5}


def test_tensors_skipped_by_name_have_a_reason() -> None:
    params = {
        "norm": {"scale": np.ones(3), "bias": np.ones(3)},
        "shift": {"bias": np.ones(3)},
        "embed": {"embedding": np.ones((5, 3))},
        "old": {"weight": np.ones(3), "bias": np.ones(3)},
        "flat": {"kernel": np.ones(3)},
        "empty": {"kernel": np.ones((3, 0))},
        "own": {"matrix": np.ones((3, 2))},
    }
    bounds = wo.resolve_bounds(params)
    assert all(bound.s is None for bound in bounds.values())
    said = {
        "norm/scale": "normalization",
        "norm/bias": "normalization",
        "shift/bias": "bias without",
        "embed/embedding": "embedding",
        "old/weight": "normalization",
        "old/bias": "normalization",
        "flat/kernel": "fewer than two dimensions",
        "empty/kernel": "no entries",
        "own/matrix": "no bound rule for",
    }
    assert bounds.keys() == said.keys()
    assert all(words in bounds[path].reason for path, words in said.items())
    with pytest.raises(ValueError, match=r"params: there is nothing to clip(.|\n)*own/matrix: no bound rule for"):
        wo.project(params, 1.0)
    with pytest.raises(ValueError, match="params: there is nothing to clip"):
        wo.clip_weights(1.0).init(params)
    with pytest.raises(ValueError, match="no arrays"):
        wo.project({}, 1.0)


def test_bounds_by_mapping_and_by_function() -> None:
    params = {"a": dense(4, 2), "b": dense(9, 2), "c": dense(4, 2), "log_std": jnp.zeros(2)}
    mapping = {"a/kernel": 0.3, "a/*": 0.2, "b/*": "fan_in", "log_std": 1.0}
    by_mapping = wo.resolve_bounds(params, mapping)
    assert by_mapping["a/kernel"] == Bound(0.3, "given")
    assert by_mapping["a/bias"] == Bound(0.2, "given")
    assert by_mapping["b/bias"] == Bound(1 / 3, "fan_in")
    assert by_mapping["log_std"] == Bound(1.0, "given")
    assert by_mapping["c/bias"].reason == "no matching pattern in the mapping"

    def by_size(path: str, leaf: Any) -> float | str | None:
        return {"a": 1 / leaf.size, "b": "not this one"}.get(path[0])

    by_function = wo.resolve_bounds(params, by_size)
    assert by_function["a/kernel"] == Bound(1 / 8, "by_size")
    assert by_function["b/kernel"].reason == "not this one"
    assert by_function["c/kernel"].reason == "skipped by the given function"


def test_include_and_exclude() -> None:
    params = {"a": dense(4, 2), "b": dense(4, 2)}
    chosen = wo.resolve_bounds(params, include="a/*", exclude=["*/bias"])
    assert {path for path, bound in chosen.items() if bound.s} == {"a/kernel"}
    assert chosen["a/bias"].reason == "excluded by name"
    assert chosen["b/kernel"].reason == "not among the included names"
    moved = after(
        optax.chain(optax.sgd(9.0), wo.clip_weights(1.0, exclude="b/*")),
        params,
        params | {"a": dense(4, 2, 1.0), "b": dense(4, 2, 1.0)},
    )
    assert all_equal(moved["a"]["kernel"], -0.5)
    assert all_equal(moved["b"]["kernel"], -9.0)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@settings(max_examples=60)
@given(kappa=st.floats(1e-3, 1e3), fan_in=st.integers(1, 1000))
def test_projection_ends_at_pytorchs_limit(dtype: Any, kappa: float, fan_in: int) -> None:
    s = 1 / math.sqrt(fan_in)
    with x64():
        out = wo.project({"w": jnp.array([-1e4, 0.0, 1e4], dtype)}, kappa, bounds={"w": s})["w"]
        assert out.dtype == dtype
        torch_dtype = torch.float64 if dtype == "float64" else DTYPES[dtype]
        ends = [float(x) for x in out]
    assert ends == [-limit(kappa, Bound(s), torch_dtype), 0.0, limit(kappa, Bound(s), torch_dtype)]
    assert ends[2] <= kappa * s


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(width=32, allow_subnormal=False), min_size=1, max_size=20).map(
        lambda x: np.array(x, np.float32)
    ),
    kappa=st.one_of(st.floats(1e-3, 1e30), st.just(math.inf)),
)
def test_projection_is_the_nearest_point_of_the_box_and_idempotent(values: np.ndarray, kappa: float) -> None:
    project = lambda w: np.asarray(wo.project({"w": w}, kappa, bounds={"w": 0.3})["w"])  # noqa: E731
    once = project(values)
    np.testing.assert_array_equal(np.isnan(once), np.isnan(values))
    inside = np.abs(values.astype(float)) <= kappa * 0.3
    np.testing.assert_array_equal(once[inside], values[inside])
    outside = ~inside & ~np.isnan(values)
    assert np.all(np.abs(once[outside].astype(float)) <= kappa * 0.3)
    np.testing.assert_array_equal(np.sign(once[outside]), np.sign(values[outside]))
    np.testing.assert_array_equal(project(once), once)


def test_inside_a_chain_an_entry_can_end_an_ulp_outside_and_projection_corrects_it() -> None:
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.array(rng.uniform(-0.5, 0.5, (3, 1000)), jnp.float32)}
    kappa, s = 0.7, 1 / math.sqrt(3)
    params = wo.project(params, kappa)
    moved = after(wo.clip_weights(kappa), params, {"kernel": jnp.array(rng.normal(size=(3, 1000)), jnp.float32)})
    largest = float(jnp.abs(moved["kernel"]).max())
    inside = limit(kappa, Bound(s), torch.float32)
    assert largest > kappa * s
    assert largest == np.nextafter(np.float32(inside), np.float32(1))
    projected = wo.project(moved, kappa)["kernel"]
    assert float(jnp.abs(projected).max()) == inside <= kappa * s


def test_an_entry_inside_the_box_keeps_its_update_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.array(1e-4 * rng.normal(size=(3, 1000)), jnp.float32)}
    updates = {"kernel": jnp.array(rng.normal(size=(3, 1000)), jnp.float32)}
    clipped = wo.clip_weights(1.0).update(updates, optax.EmptyState(), params)[0]["kernel"]
    stays = np.abs(params["kernel"] + updates["kernel"]) <= np.float32(limit(1.0, Bound(3**-0.5), torch.float32))
    assert 0.3 < stays.mean() < 0.7
    np.testing.assert_array_equal(clipped[stays], updates["kernel"][stays])
    # The difference matters because the subtraction of p is rounded.
    assert np.any((params["kernel"] + updates["kernel"] - params["kernel"] != updates["kernel"])[stays])


def test_nan_and_infinity() -> None:
    params = {"kernel": jnp.array([[0.0], [math.nan], [0.0], [0.0]])}
    updates = {"kernel": jnp.array([[math.nan], [0.0], [math.inf], [-math.inf]])}
    moved = after(wo.clip_weights(1.0), params, updates)["kernel"].ravel()
    np.testing.assert_array_equal(moved, [math.nan, math.nan, 0.5, -0.5])
    projected = wo.project({"kernel": params["kernel"] + updates["kernel"]}, 1.0)["kernel"].ravel()
    np.testing.assert_array_equal(projected, [math.nan, math.nan, 0.5, -0.5])


@pytest.mark.parametrize("kappa", [1.0, jnp.float32(1.0)], ids=["number", "array"])
@pytest.mark.parametrize("of_updates", DTYPES)
@pytest.mark.parametrize("of_params", DTYPES)
def test_dtypes_are_kept(of_params: Any, of_updates: Any, kappa: Any) -> None:
    params = {**dense(3, 2, dtype=of_params), "other": jnp.zeros(2, of_params)}
    updates = {**dense(3, 2, 1.0, dtype=of_updates), "other": jnp.ones(2, of_updates)}
    clipped, _ = wo.clip_weights(kappa).update(updates, optax.EmptyState(), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(clipped)} == {jnp.dtype(of_updates)}
    np.testing.assert_allclose(clipped["kernel"].astype(float), 3**-0.5, rtol=1e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(wo.project(params, kappa))} == {jnp.dtype(of_params)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kappa", [0.3, 1.0, 1.7, 2.0])
def test_an_array_kappa_ends_within_an_ulp_of_a_number(kappa: float, dtype: Any) -> None:
    params = dense(3, 2, 9.0, dtype)
    by_number = wo.project(params, kappa)["kernel"][0, 0]
    by_array = jax.jit(wo.project)(params, jnp.float32(kappa))["kernel"][0, 0]
    assert float(by_array) in (float(by_number), float(jnp.nextafter(by_number, jnp.array(9.0, dtype))))
    assert jax.jit(wo.project)(params, jnp.float32(math.inf))["kernel"][0, 0] == 9
    assert wo.project(params, jnp.int32(1))["kernel"].dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_box_wider_than_the_range_of_the_dtype(dtype: Any) -> None:
    largest = jnp.finfo(dtype).max
    projected = wo.project({"w": jnp.array([1.0, largest, math.inf], dtype)}, 1e300, bounds={"w": 1.0})["w"]
    assert all_equal(projected, jnp.array([1.0, largest, largest], dtype))


def test_numpy_parameters() -> None:
    params = {"kernel": np.full((3, 2), 9.0), "bias": np.full(2, 9.0)}
    projected = wo.project(params, 1.0)["kernel"]
    assert float(projected[0, 0]) == limit(1.0, Bound(3**-0.5), torch.float32)
    moved = after(wo.clip_weights(1.0), params, params)
    np.testing.assert_allclose(moved["kernel"], 3**-0.5, rtol=1e-6)


def test_a_traced_kappa_is_compiled_once() -> None:
    params, traces = dense(4, 3), 0

    @jax.jit
    def step(params: Any, kappa: jax.Array) -> Any:
        nonlocal traces
        traces += 1
        optimizer = optax.chain(optax.sgd(1.0), wo.clip_weights(kappa))
        return wo.project(after(optimizer, params, dense(4, 3, -9.0)), kappa)

    for kappa in (0.5, 1.0, 2.0):
        assert all_equal(step(params, jnp.float32(kappa))["kernel"], kappa / 2)
    assert traces == 1


def test_kappa_under_vmap_and_scan() -> None:
    kappas = jnp.array([0.5, 1.0, 2.0, math.inf])
    ends = jnp.array([0.25, 0.5, 1.0, 9.0])

    def train(kappa: jax.Array, steps: int = 3) -> Any:
        optimizer = optax.chain(optax.sgd(1.0), wo.clip_weights(kappa))

        def step(carry: Any, gradients: Any) -> tuple[Any, None]:
            params, state = carry
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), None

        params = dense(4, 3)
        gradients = jax.tree.map(lambda p: jnp.full((steps, *p.shape), -9.0 / steps), params)
        return jax.lax.scan(step, (params, optimizer.init(params)), gradients)[0][0]

    assert all_equal(jax.jit(jax.vmap(train))(kappas)["kernel"], ends[:, None, None])
    several = jax.vmap(lambda params, kappa: wo.project(params, kappa))(
        jax.tree.map(lambda p: jnp.full((4, *p.shape), 9.0), dense(4, 3)), kappas
    )
    assert all_equal(several["bias"], ends[:, None])


def test_kappa_in_the_optimizers_state() -> None:
    params, gradients = dense(4, 3), dense(4, 3, -9.0)
    optimizer = optax.chain(optax.sgd(1.0), optax.inject_hyperparams(wo.clip_weights)(kappa=2.0))
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for kappa in (2.0, 1.0):
        state[1].hyperparams["kappa"] = jnp.float32(kappa)
        updates, state = update(gradients, state, params)
        assert all_equal(optax.apply_updates(params, updates)["kernel"], kappa / 2)


@pytest.mark.parametrize("bounds", ["fan_in", {"*": 0.5}, lambda path, leaf: 0.5], ids=["name", "mapping", "function"])
def test_kappa_by_schedule(bounds: Any) -> None:
    params, gradients = dense(4, 3), dense(4, 3, -9.0)
    inject = optax.inject_hyperparams(wo.clip_weights, static_args="bounds")
    optimizer = optax.chain(optax.sgd(1.0), inject(optax.linear_schedule(3.0, 1.0, 2), bounds=bounds, include="*"))
    state = optimizer.init(params)
    ends = []
    for _ in range(4):
        updates, state = optimizer.update(gradients, state, params)
        ends.append(float(optax.apply_updates(params, updates)["kernel"][0, 0]))
    assert ends == [1.5, 1.0, 0.5, 0.5]


def test_optaxs_wrappers() -> None:
    params, gradients = {"a": dense(4, 2), "b": dense(4, 2)}, {"a": dense(4, 2, 9.0), "b": dense(4, 2, 9.0)}
    only_a = optax.masked(wo.clip_weights(1.0), {"a": True, "b": False})
    moved = after(optax.chain(optax.sgd(1.0), only_a), params, gradients)
    assert all_equal(moved["a"]["kernel"], -0.5)
    assert all_equal(moved["b"]["kernel"], -9.0)

    groups = optax.multi_transform(
        {name: optax.chain(optax.sgd(1.0), wo.clip_weights(kappa)) for name, kappa in (("x", 1.0), ("y", 2.0))},
        {"a": "x", "b": "y"},
    )
    moved = after(groups, params, gradients)
    assert all_equal(moved["a"]["kernel"], -0.5)
    assert all_equal(moved["b"]["kernel"], -1.0)


def test_the_state_is_empty_and_the_parameters_are_required() -> None:
    clip = wo.clip_weights(1.0)
    assert clip.init(dense(4, 2)) == optax.EmptyState()
    with pytest.raises(ValueError, match="params: got None, expected the parameters"):
        clip.update(dense(4, 2), optax.EmptyState())


@pytest.mark.parametrize("kappa", [0.0, -1.0, math.nan, "2", None, True, [1.0]])
def test_a_kappa_that_is_not_a_positive_number_raises_an_error(kappa: Any) -> None:
    with pytest.raises(ValueError, match=r"kappa: got .*, expected a positive number"):
        wo.clip_weights(kappa)
    with pytest.raises(ValueError, match=r"kappa: got .*, expected a positive number"):
        wo.project(dense(4, 2), kappa)


def test_a_kappa_with_dimensions_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"kappa: got an array of shape \(2,\)"):
        wo.clip_weights(jnp.ones(2))


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int32])
def test_complex_and_integer_dtypes_raise_an_error(dtype: Any) -> None:
    params = {"a": dense(4, 2), "b": dense(4, 2, dtype=dtype)}
    with pytest.raises(ValueError, match=f"b/bias: got dtype {jnp.dtype(dtype)}, .*exclude='b/bias'"):
        wo.resolve_bounds(params)
    assert wo.resolve_bounds(params, exclude="b/*")["a/bias"].s == 0.5


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        ("init", ValueError, "bounds: got 'init', expected 'fan_in'"),
        ({"a/*": "paper"}, ValueError, "bounds: got 'paper', expected 'fan_in'"),
        (3.0, TypeError, "bounds: got 3.0, expected 'fan_in', a mapping or a function"),
        ({"z/*": 1.0}, ValueError, "bounds: 'z/\\*' matches no parameter"),
        ({"a/*": -1.0}, ValueError, "a/bias: bound by rule 'given': got -1.0"),
        (lambda path, leaf: 0.0, ValueError, "a/bias: bound by rule '<lambda>': got 0.0"),
    ],
)
def test_invalid_bounds_raise_an_error(bounds: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wo.resolve_bounds({"a": dense(4, 2)}, bounds)


def test_patterns_that_match_nothing_raise_an_error() -> None:
    params = {"a": dense(4, 2), "norm": {"scale": np.ones(2)}}
    with pytest.raises(ValueError, match=r"include: 'A/kernel' matches no parameter; the closest are a/kernel"):
        wo.clip_weights(1.0, include="A/kernel").init(params)
    with pytest.raises(ValueError, match=r"exclude: 'z' matches no parameter"):
        wo.project(params, 1.0, exclude="z")
    with pytest.raises(ValueError, match=r"include: 'norm/\*' matches only tensors without a bound"):
        wo.resolve_bounds(params, include=["a/*", "norm/*"])


@pytest.mark.parametrize(
    "wrap", [eqx.nn.WeightNorm, lambda layer: eqx.nn.SpectralNorm(layer, "weight", key=KEY)], ids=["weight", "spectral"]
)
def test_reparametrized_layers_raise_an_error(wrap: Callable[[Any], Any]) -> None:
    model = [eqx.nn.Linear(4, 3, key=KEY), wrap(eqx.nn.Linear(3, 3, key=KEY))]
    with pytest.raises(ValueError, match=r"1/layer/weight: its layer is reparametrized.*exclude='1/layer/\*'"):
        wo.resolve_bounds(model)
    bounds = bounds_of(model, exclude="1/layer/*")
    assert {path for path, s in bounds.items() if s is not None} == {"0/weight", "0/bias"}
    assert wo.resolve_bounds(model, {"1/layer/weight": 2.0})["1/layer/weight"].s == 2.0


def test_neither_equinox_nor_flax_is_imported() -> None:
    code = "import sys, weightclip.optax; sys.exit(bool({'equinox', 'flax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


def test_the_example_keeps_weights_in_their_box(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "optax_loop.py"))
    params = example["main"](kappa=1.5, tasks=2, steps=40)
    at_limit = 0
    for (path, bound), leaf in zip(wo.resolve_bounds(params).items(), jax.tree.leaves(params), strict=True):
        assert bound.s is not None
        assert float(jnp.abs(leaf).max()) <= 1.5 * bound.s, path
        at_limit += int(jnp.sum(jnp.abs(leaf) == limit(1.5, bound, torch.float32)))
    assert at_limit > 0
    assert "task 2: loss" in capsys.readouterr().out
