"""Haiku's parameter names `w` and `b`, and the warning about weights without a bound rule."""

import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weightclip.optax as wo


def tree(module: str, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return {module: {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}}


def fan_ins(params: Any, **choice: Any) -> dict[str, int]:
    return {path: round(bound.s**-2) for path, bound in wo.resolve_bounds(params, **choice).items() if bound.s}


def skipped_tensors(params: Any) -> dict[str, str]:
    return {path: bound.reason for path, bound in wo.resolve_bounds(params).items() if bound.s is None}


@pytest.mark.parametrize(
    ("module", "shapes", "fan_in"),
    [
        ("mlp/~/linear_0", {"w": (4, 5), "b": (5,)}, 4),
        ("mlp/~/linear_0", {"w": (4, 5)}, 4),
        ("linear", {"w": (4, 1), "b": (1,)}, 4),
        ("own", {"w": (5, 4), "b": (5,)}, 4),
        ("conv2_d", {"w": (3, 3, 2, 8), "b": (8,)}, 18),
        ("conv2_d", {"w": (3, 3, 2, 8), "b": (8, 1, 1)}, 18),
        ("res_net18/~/initial_conv", {"w": (7, 7, 3, 64)}, 147),
        ("depthwise_conv2_d", {"w": (3, 3, 1, 12), "b": (12,)}, 9),
        ("conv2_d_transpose", {"w": (3, 3, 8, 4), "b": (8,)}, 36),
        ("conv2_d_transpose", {"w": (3, 3, 8, 4)}, 36),
        ("up", {"w": (3, 3, 8, 4), "b": (8, 1, 1)}, 36),
        ("transpose_net/~/conv2_d", {"w": (3, 3, 8, 4)}, 72),
        ("__layer_stack_no_per_layer/linear", {"w": (3, 4, 5), "b": (3, 5)}, 4),
        ("ensemble/conv2_d", {"w": (7, 3, 3, 2, 8), "b": (7, 8)}, 18),
        ("linear", {"w": (0, 5), "b": (5,)}, 1),
    ],
    ids=str,
)
def test_fan_in_of_haiku_layers(module: str, shapes: dict[str, tuple[int, ...]], fan_in: int) -> None:
    expected = {f"{module}/{name}": fan_in for name, shape in shapes.items() if math.prod(shape)}
    assert fan_ins(tree(module, **shapes)) == expected


def test_fan_in_of_haikus_gru() -> None:
    assert fan_ins(tree("gru", w_i=(4, 15), w_h=(5, 15), b=(15,))) == {"gru/w_i": 4, "gru/w_h": 5, "gru/b": 5}
    assert fan_ins(tree("gru", w_i=(2, 4, 15), w_h=(2, 5, 15), b=(2, 15))) == {"gru/w_i": 4, "gru/w_h": 5, "gru/b": 5}


def test_skipped_tensors_of_haiku_layers() -> None:
    for norm in (
        tree("norm", scale=(1, 1, 1, 4), offset=(1, 1, 1, 4)),
        tree("norm", scale=(4,)),
        tree("n", offset=(4,)),
    ):
        assert all("normalization" in reason for reason in skipped_tensors(norm).values())
        assert not fan_ins(norm)
    assert "embedding" in skipped_tensors(tree("embed", embeddings=(7, 3)))["embed/embeddings"]
    assert skipped_tensors(tree("bias", b=(4,))) == {"bias/b": "b without a w in its layer"}
    assert "fewer than two dimensions" in skipped_tensors(tree("own", w=(4,), b=()))["own/w"]


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        ("linear", {"w": (4, 6), "b": (5,)}),
        ("linear", {"w": (4, 6), "b": ()}),
        ("up", {"w": (3, 3, 8, 4)}),
        ("deconv", {"w": (3, 3, 8, 4)}),
        ("__layer_stack_no_per_layer/linear", {"w": (3, 4, 4)}),
        ("__layer_stack_no_per_layer/conv2_d", {"w": (3, 3, 3, 4, 4)}),
        ("__layer_stack_no_per_layer/conv2_d_transpose", {"w": (3, 3, 3, 4, 4)}),
        ("own", {"w_i": (4, 20), "w_h": (5, 20), "b": (20,)}),
        ("own", {"w_i": (15,), "w_h": (5, 15), "b": (15,)}),
        ("own", {"w_i": (4, 15)}),
        ("own", {"w_h": (5, 15), "b": (15,)}),
    ],
    ids=str,
)
def test_ambiguous_shapes_are_skipped(module: str, shapes: dict[str, tuple[int, ...]]) -> None:
    reasons = skipped_tensors(tree(module, **shapes))
    assert len(reasons) == len(shapes)
    assert all(reason.startswith("no bound rule for") for reason in reasons.values())


@pytest.mark.parametrize("masked", ["w", "b"])
def test_masked_leaves_of_haiku_raise_an_error(masked: str) -> None:
    layer = {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)} | {masked: optax.MaskedNode()}
    other = "b" if masked == "w" else "w"
    with pytest.raises(ValueError, match=rf"linear/{other}: its bound depends on the shape of linear/{masked}"):
        wo.clip_weights(1.0).init({"linear": layer})
    gru = {"w_i": jnp.zeros((4, 15)), "w_h": optax.MaskedNode(), "b": jnp.zeros(15)}
    with pytest.raises(ValueError, match="gru/b: its bound depends on the shape of gru/w_h, which is masked out"):
        wo.clip_weights(1.0, include="gru/b").init({"gru": gru})


def test_a_haiku_network_stays_in_its_box() -> None:
    params = {f"mlp/~/linear_{i}": {"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)} for i in range(2)}
    optimizer = optax.chain(optax.sgd(100.0), wo.clip_weights(2.0))
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    assert all(np.all(np.asarray(leaf) == -1) for leaf in jax.tree.leaves(optax.apply_updates(params, updates)))


def weights(known: int = 0, **unknown: int) -> dict[str, Any]:
    return {"linear": {"w": jnp.zeros((10, known // 10))}} | {name: jnp.zeros((1, n)) for name, n in unknown.items()}


@pytest.mark.parametrize(
    "optimizer",
    [wo.clip_weights(1.0), wo.clip_schedule_free(optax.contrib.schedule_free_sgd(), 1.0)],
    ids=["clip_weights", "schedule_free"],
)
def test_init_warns_about_weights_without_a_bound_rule(optimizer: Any) -> None:
    params = weights(known=100, q=8, r=4) | {"embed": {"embeddings": jnp.zeros((99, 99))}}  # does not count
    with pytest.warns(UserWarning, match="clip_weights skips") as caught:
        state = optimizer.init(params)
    assert len(caught) == 1
    assert str(caught[0].message) == (
        "clip_weights skips 11% of the weight entries, because their layers have no bound rule: q, r; "
        "bounds={'q': number, '*': 'fan_in'} sets a bound, and exclude='q' skips an array without this warning"
    )
    assert caught[0].filename == __file__
    optimizer.update(params, state, params)  # no second warning, which would be an error


def test_the_warning_names_at_most_five_weights() -> None:
    with pytest.warns(UserWarning, match=r"skips 44% of .*: q0, q1, q2, q3, q4, \.\.\.; bounds"):
        wo.clip_weights(1.0).init(weights(known=100, **{f"q{i}": 10 for i in range(8)}))


def test_an_equinox_layer_with_arrays_unknown_to_its_rule() -> None:
    class LowRank(eqx.nn.Linear):
        a: jax.Array

        def __init__(self) -> None:
            super().__init__(4, 3, key=jax.random.key(0, impl="unsafe_rbg"))
            self.a = jnp.zeros((2, 4))

    with pytest.warns(UserWarning, match=r"skips 40% of the weight entries, .*: a; bounds"):
        wo.clip_weights(1.0).init(LowRank())


@pytest.mark.parametrize(
    ("params", "choice"),
    [
        (weights(known=100, q=11), {}),
        (weights(known=100) | {"embed": {"embeddings": jnp.zeros((99, 99))}}, {}),
        (weights(known=100) | {"norm": {"scale": jnp.zeros((1, 99))}, "log_std": jnp.zeros(999)}, {}),
        (weights(known=100) | {"steps": jnp.zeros((99, 99), jnp.int32)}, {}),
        (weights(known=100, q=99), {"exclude": "q"}),
        (weights(known=100, q=99), {"include": "linear/*"}),
        (weights(known=100, q=99), {"bounds": {"linear/*": "fan_in"}}),
        (weights(known=100, q=99), {"bounds": {"q": 0.1, "*": "fan_in"}}),
        (weights(known=100, q=99), {"bounds": lambda path, leaf: 0.1 if path == "linear/w" else "no bound rule for q"}),
    ],
    ids=["few", "embeddings", "other arrays", "integers", "exclude", "include", "mapping", "number", "function"],
)
def test_no_warning(params: Any, choice: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wo.clip_weights(1.0, **choice).init(params)


def test_tree_map_params() -> None:
    params = {"kernel": jnp.ones((4, 2))}
    optimizer = optax.chain(optax.adam(0.1), wo.clip_weights(1.0))
    state = optax.tree_map_params(optimizer, lambda leaf: leaf + 1, optimizer.init(params))
    assert float(state[0][0].mu["kernel"][0, 0]) == 1.0


@pytest.mark.host
def test_fan_in_of_haikus_own_layers() -> None:
    hk = pytest.importorskip("haiku")

    def shapes(forward: Any, *inputs: tuple[int, ...]) -> Any:
        init = hk.transform_with_state(forward).init
        return jax.eval_shape(init, jax.random.key(0), *(jnp.zeros(shape) for shape in inputs))[0]

    def only(forward: Any, *inputs: tuple[int, ...]) -> int:
        params = shapes(forward, *inputs)
        found = fan_ins(params)
        assert len(found) == len(jax.tree.leaves(params))
        (fan_in,) = set(found.values())
        return fan_in

    assert only(lambda x: hk.Linear(3)(x), (1, 4)) == 4
    assert only(lambda x: hk.Conv2D(8, 3, feature_group_count=2)(x), (1, 5, 5, 4)) == 18
    assert only(lambda x: hk.Conv2D(8, 3, data_format="NCHW")(x), (1, 4, 5, 5)) == 36
    assert only(lambda x: hk.Conv2DTranspose(8, 3)(x), (1, 5, 5, 4)) == 36
    assert only(lambda x: hk.Conv2DTranspose(8, 3, with_bias=False)(x), (1, 5, 5, 4)) == 36
    assert only(lambda x: hk.Conv1DTranspose(8, 3, data_format="NCW", name="up")(x), (1, 4, 5)) == 12
    assert only(lambda x: hk.SeparableDepthwiseConv2D(3, 3)(x), (1, 5, 5, 4)) == 3
    assert only(lambda x: hk.LSTM(5)(x, hk.LSTM(5).initial_state(1)), (1, 4)) == 9
    assert only(lambda x: hk.experimental.layer_stack(3)(hk.Linear(4))(x), (1, 4)) == 4
    gru = shapes(lambda x: hk.GRU(5)(x, jnp.zeros((1, 5))), (1, 4))
    assert fan_ins(gru) == {"gru/b": 5, "gru/w_h": 5, "gru/w_i": 4}
    for forward in (lambda x: hk.nets.ResNet18(10)(x, True), lambda x: hk.nets.MobileNetV1()(x, True)):
        wo.clip_weights(1.0).init(shapes(forward, (1, 64, 64, 3)))  # no warning
