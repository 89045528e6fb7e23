import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weightclip.optax as wo

pytestmark = pytest.mark.host

KEY = jax.random.key(0)


def linen(module: Any, *shapes: tuple[int, ...]) -> Any:
    """Return the shapes of a module's parameters without initializing them."""
    return jax.eval_shape(module.init, KEY, *(jnp.zeros(shape) for shape in shapes))["params"]


def fan_ins(params: Any, **choice: Any) -> dict[str, int]:
    return {path: round(bound.s**-2) for path, bound in wo.resolve_bounds(params, **choice).items() if bound.s}


def skipped_tensors(params: Any) -> dict[str, str]:
    return {path: bound.reason for path, bound in wo.resolve_bounds(params).items() if bound.s is None}


def test_fan_in_of_linen_layers() -> None:
    import flax.linen as nn

    assert fan_ins(linen(nn.Dense(3), (1, 4))) == {"bias": 4, "kernel": 4}
    assert fan_ins(linen(nn.Dense(3, use_bias=False), (1, 4))) == {"kernel": 4}
    grouped = nn.Conv(8, (3, 3), feature_group_count=2)
    assert fan_ins(linen(grouped, (1, 5, 5, 4))) == {"bias": 18, "kernel": 18}
    assert fan_ins(linen(nn.Conv(8, (3, 3), use_bias=False), (1, 5, 5, 4))) == {"kernel": 36}
    assert fan_ins(linen(nn.ConvLocal(8, (3,)), (1, 5, 4))) == {"bias": 12, "kernel": 12}
    transposed = nn.ConvTranspose(8, (3, 3), transpose_kernel=True)
    assert fan_ins(linen(transposed, (1, 5, 5, 4))) == {"bias": 36, "kernel": 36}
    assert fan_ins(linen(nn.DenseGeneral((2, 3), axis=(-2, -1)), (1, 4, 5))) == {"bias": 20, "kernel": 20}
    heads_inside = nn.Einsum((4, 2, 8), "bta,ahd->bthd")
    assert fan_ins(linen(heads_inside, (1, 3, 4))) == {"bias": 4, "kernel": 4}


@pytest.mark.parametrize("use_bias", [True, False])
def test_fan_in_of_linen_attention(use_bias: bool) -> None:
    import flax.linen as nn

    attention = nn.MultiHeadDotProductAttention(2, qkv_features=8, out_features=3, use_bias=use_bias)
    found = fan_ins(linen(attention, (1, 5, 6)))
    assert len(found) == (8 if use_bias else 4)
    assert found == {path: 8 if path.startswith("out") else 6 for path in found}


def test_fan_in_of_linen_cells() -> None:
    import flax.linen as nn

    for cell in (nn.LSTMCell(5), nn.OptimizedLSTMCell(5), nn.GRUCell(5), nn.SimpleCell(5)):
        params = linen(nn.RNN(cell), (1, 2, 3))
        found = fan_ins(params)
        assert len(found) == len(jax.tree.leaves(params))
        assert found == {path: 3 if path.split("/")[-2].startswith("i") else 5 for path in found}


def test_fan_in_of_stacked_linen_layers() -> None:
    import flax.linen as nn

    stacked = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=7)
    params = linen(stacked(3), (1, 4))
    assert params["kernel"].shape == (7, 4, 3)
    assert fan_ins(params) == {"bias": 4, "kernel": 4}


def test_skipped_tensors_of_linen_layers() -> None:
    import flax.linen as nn

    for norm in (nn.LayerNorm(), nn.GroupNorm(2), nn.InstanceNorm(), nn.BatchNorm(use_running_average=True)):
        reasons = skipped_tensors(linen(norm, (1, 3, 4)))
        assert set(reasons) == {"scale", "bias"}
        assert all("normalization" in reason for reason in reasons.values())
    assert "normalization" in skipped_tensors(linen(nn.RMSNorm(), (1, 4)))["scale"]
    assert "bias without" in skipped_tensors(linen(nn.LayerNorm(use_scale=False), (1, 4)))["bias"]
    words = jax.eval_shape(nn.Embed(5, 3).init, KEY, jnp.zeros(1, jnp.int32))["params"]
    assert "embedding" in skipped_tensors(words)["embedding"]
    assert "no bound rule" in skipped_tensors(linen(nn.PReLU(), (1, 4)))["negative_slope"]


def test_partitioned_arrays_use_the_path_of_their_box() -> None:
    import flax.linen as nn

    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
    params = nn.Dense(3, kernel_init=init).init(KEY, jnp.zeros((1, 4)))["params"]
    assert isinstance(params["kernel"], nn.Partitioned)
    assert fan_ins(params) == {"bias": 4, "kernel": 4}
    projected = wo.project(params, 0.1)
    assert isinstance(projected["kernel"], nn.Partitioned)
    assert float(np.abs(projected["kernel"].value).max()) <= 0.05


def test_reparametrized_linen_layers_raise_an_error() -> None:
    import flax.linen as nn

    class Compact(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.Dense(4)(x)
            return nn.WeightNorm(nn.Dense(4))(x)

    class Owned(nn.Module):
        def setup(self) -> None:
            self.free, self.normed = nn.Dense(4), nn.WeightNorm(nn.Dense(4))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.normed(self.free(x))

    class Spectral(Owned):
        def setup(self) -> None:
            self.free, self.normed = nn.Dense(4), nn.SpectralNorm(nn.Dense(4))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.normed(self.free(x), update_stats=False)

    for module, normed, free in (
        (Compact(), "Dense_1", "Dense_0"),
        (Owned(), "normed/layer_instance", "free"),
        (Spectral(), "normed/layer_instance", "free"),
    ):
        params = linen(module, (1, 3))
        with pytest.raises(ValueError, match=rf"{normed}/bias: its layer is reparametrized.*exclude='{normed}/\*'"):
            wo.resolve_bounds(params)
        assert fan_ins(params, exclude=f"{normed}/*") == {f"{free}/bias": 3, f"{free}/kernel": 3}


def test_the_range_of_flaxs_initializations_relative_to_fan_in() -> None:
    import flax.linen as nn

    for init, largest in (
        (nn.Dense(2000).kernel_init, 2 / 0.87962566103423978),
        (nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"), 1),
    ):
        params = nn.Dense(2000, kernel_init=init).init(KEY, jnp.zeros((1, 50)))["params"]
        s = wo.resolve_bounds(params)["kernel"].s
        assert s is not None
        assert 0.99 * largest < float(jnp.abs(params["kernel"]).max()) / s <= largest * (1 + 1e-6)
        assert not np.any(params["bias"])


def test_linen_train_state_stays_in_the_box() -> None:
    import flax.linen as nn
    from flax.training.train_state import TrainState

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.LayerNorm()(nn.relu(nn.Dense(16)(x)))
            return nn.Dense(1)(x)

    net, kappa = Net(), 0.8
    inputs = jax.random.normal(KEY, (32, 4))
    params = net.init(KEY, inputs)["params"]
    tx = optax.chain(optax.adam(0.1), wo.clip_weights(kappa))
    state = TrainState.create(apply_fn=net.apply, params=params, tx=tx)

    @jax.jit
    def step(state: Any) -> Any:
        loss = lambda params: jnp.mean((state.apply_fn({"params": params}, inputs) - 3) ** 2)  # noqa: E731
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for _ in range(20):
        state = step(state)
    state = state.replace(params=wo.project(state.params, kappa))
    bounds = wo.resolve_bounds(state.params)
    assert {path for path, bound in bounds.items() if bound.s is None} == {"LayerNorm_0/bias", "LayerNorm_0/scale"}
    for bound, leaf in zip(bounds.values(), jax.tree.leaves(state.params), strict=True):
        assert bound.s is None or float(jnp.abs(leaf).max()) <= kappa * bound.s
    assert float(jnp.abs(state.params["Dense_0"]["kernel"]).max()) == pytest.approx(kappa / 2)


@pytest.fixture
def nnx_net() -> Any:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.conv = nnx.Conv(4, 8, (3, 3), feature_group_count=2, rngs=rngs)
            self.layers = nnx.List([nnx.Linear(4, 3, rngs=rngs), nnx.Linear(3, 2, use_bias=False, rngs=rngs)])
            self.attention = nnx.MultiHeadAttention(2, 6, 8, use_bias=False, decode=False, rngs=rngs)
            self.cell = nnx.GRUCell(3, 5, rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.words = nnx.Embed(5, 3, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.layers[1](nnx.relu(self.layers[0](x)))

    return Net(nnx.Rngs(0))


def test_nnx_states_modules_and_dictionaries_have_the_same_paths(nnx_net: Any) -> None:
    from flax import nnx

    state = nnx.state(nnx_net, nnx.Param)
    assert fan_ins(state) == {
        "attention/key/kernel": 6,
        "attention/out/kernel": 8,
        "attention/query/kernel": 6,
        "attention/value/kernel": 6,
        "cell/dense_h/kernel": 5,
        "cell/dense_i/bias": 3,
        "cell/dense_i/kernel": 3,
        "conv/bias": 18,
        "conv/kernel": 18,
        "layers/0/bias": 4,
        "layers/0/kernel": 4,
        "layers/1/kernel": 3,
    }
    reasons = skipped_tensors(state)
    assert set(reasons) == {"norm/scale", "norm/bias", "words/embedding"}
    assert fan_ins(nnx_net) == fan_ins(nnx.to_pure_dict(state)) == fan_ins(state)


def test_projection_of_an_nnx_state(nnx_net: Any) -> None:
    from flax import nnx

    projected = wo.project(nnx.state(nnx_net, nnx.Param), 0.1)
    assert isinstance(projected, nnx.State)
    nnx.update(nnx_net, projected)
    assert isinstance(nnx_net.layers[0].kernel, nnx.Param)
    assert float(jnp.abs(nnx_net.layers[0].kernel[...]).max()) == np.nextafter(np.float32(0.05), np.float32(0))


@pytest.mark.parametrize("kappa", [0.5, jnp.float32(0.5)], ids=["number", "array"])
def test_nnx_optimizer(nnx_net: Any, kappa: Any) -> None:
    from flax import nnx

    optimizer = nnx.Optimizer(nnx_net, optax.chain(optax.sgd(100.0), wo.clip_weights(kappa)), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> None:
        gradients = nnx.grad(lambda model: jnp.sum((model(jnp.ones((2, 4))) - 7) ** 2))(model)
        optimizer.update(model, gradients)

    for _ in range(3):
        step(nnx_net, optimizer)
    bounds = wo.resolve_bounds(nnx.state(nnx_net, nnx.Param))
    for path in ("layers/0/kernel", "layers/1/kernel"):
        s = bounds[path].s
        leaf = nnx_net.layers[int(path[7])].kernel[...]
        assert s is not None
        assert float(jnp.abs(leaf).max()) == pytest.approx(0.5 * s, rel=1e-6)
    assert not math.isnan(float(jnp.sum(nnx_net.words.embedding[...])))


def test_reparametrized_nnx_layers_raise_an_error() -> None:
    from flax import nnx

    rngs = nnx.Rngs(0)
    for wrap in (nnx.WeightNorm, nnx.SpectralNorm):
        params = nnx.state(wrap(nnx.Linear(3, 3, rngs=rngs), rngs=rngs), nnx.Param)
        with pytest.raises(ValueError, match="layer_instance/bias: its layer is reparametrized"):
            wo.resolve_bounds(params)


def test_masked_nnx_states() -> None:
    from flax import nnx

    conv = nnx.Conv(4, 8, (3, 3), rngs=nnx.Rngs(0))
    state = nnx.state({"conv": conv, "linear": nnx.Linear(4, 2, rngs=nnx.Rngs(0))}, nnx.Param)
    biases = jax.tree_util.tree_map_with_path(lambda path, leaf: "bias" in jax.tree_util.keystr(path), state)
    with pytest.raises(ValueError, match=r"conv/bias: its bound depends on the shape of conv/kernel, which is masked"):
        optax.masked(wo.clip_weights(1.0), biases).init(state)
    with pytest.raises(ValueError, match=r"conv/kernel: its bound depends on the shape of conv/bias, which is masked"):
        optax.masked(wo.clip_weights(1.0), jax.tree.map(lambda bias: not bias, biases)).init(state)
    optax.masked(wo.clip_weights(1.0, exclude="conv/*"), jax.tree.map(lambda bias: not bias, biases)).init(state)


def test_nnx_modules_with_none_instead_of_an_array() -> None:
    from flax import nnx

    conv = nnx.Conv(4, 8, (3, 3), use_bias=False, rngs=nnx.Rngs(0))
    assert conv.bias is None
    assert fan_ins(conv) == {"kernel": 36}
    norm = nnx.LayerNorm(4, use_scale=False, rngs=nnx.Rngs(0))
    assert norm.scale is None
    assert "normalization" in skipped_tensors(norm)["bias"]
