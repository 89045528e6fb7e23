"""Clipping of partial trees, whose other leaves are optax's MaskedNode or None."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import keystr, tree_map_with_path

import weightclip.optax as wo

KEY = jax.random.key(0, impl="unsafe_rbg")  # faster to compile


def layer(kernel: tuple[int, ...] = (4, 2), bias: tuple[int, ...] = (2,), name: str = "kernel") -> dict[str, jax.Array]:
    return {name: jnp.zeros(kernel), "bias": jnp.zeros(bias)}


def is_bias(params: Any) -> Any:
    return tree_map_with_path(lambda path, leaf: "bias" in keystr(path[-1:]), params)


def is_not_bias(params: Any) -> Any:
    return jax.tree.map(lambda bias: not bias, is_bias(params))


def after_one_step(optimizer: Any, params: Any) -> Any:
    gradients = jax.tree.map(lambda p: jnp.full_like(p, -9.0), params)
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(params), params)
    return optax.apply_updates(params, updates)


@pytest.mark.parametrize("name", ["kernel", "weight"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda clip: optax.masked(clip, is_bias),
        lambda clip: optax.multi_transform(
            {True: optax.chain(optax.sgd(1.0), clip), False: optax.sgd(1.0)}, lambda params: is_bias(params)
        ),
    ],
    ids=["masked", "multi_transform"],
)
def test_a_bias_without_its_masked_weight_raises_an_error(wrap: Any, name: str) -> None:
    params = {"a": layer(name=name), "b": layer(name=name)}
    clip = wo.clip_weights(1.0)
    message = rf"a/bias: its bound depends on the shape of a/{name}, which is masked out; chain clip_weights outside"
    with pytest.raises(ValueError, match=message):
        wrap(clip).init(params)
    unchecked = optax.GradientTransformation(lambda params: optax.EmptyState(), clip.update)
    with pytest.raises(ValueError, match=message):
        wrap(unchecked).update(params, wrap(unchecked).init(params), params)


def test_each_fix_suggested_by_the_error_works() -> None:
    params = {"a": layer(), "b": layer()}
    sgd = optax.multi_transform({True: optax.sgd(2.0), False: optax.sgd(1.0)}, is_bias)
    outside = after_one_step(optax.chain(sgd, wo.clip_weights(1.0)), params)
    assert all(np.all(np.asarray(leaf) == 0.5) for leaf in jax.tree.leaves(outside))

    given = wo.clip_weights(1.0, bounds={"a/bias": 0.25, "b/bias": 0.25, "*": "fan_in"})
    by_mapping = after_one_step(optax.chain(optax.sgd(1.0), optax.masked(given, is_bias)), params)
    assert float(by_mapping["a"]["bias"][0]) == 0.25

    excluded = wo.clip_weights(1.0, exclude="a/bias")
    mask = {"a": {"kernel": False, "bias": True}, "b": True}
    moved = after_one_step(optax.chain(optax.sgd(1.0), optax.masked(excluded, mask)), params)
    assert (float(moved["a"]["bias"][0]), float(moved["b"]["bias"][0])) == (9.0, 0.5)


def test_a_masked_bias_does_not_change_the_bound_of_a_matrix() -> None:
    params = {"a": layer((4, 2), (2,)), "b": layer((2, 9), (2,), name="weight"), "c": layer((2, 2, 4), (2,), "weight")}
    whole = wo.resolve_bounds(params)
    masked = jax.tree.map(lambda keep, p: p if keep else optax.MaskedNode(), is_not_bias(params), params)
    bounds = wo.resolve_bounds(masked)
    assert bounds == {path: bound for path, bound in whole.items() if "bias" not in path}
    moved = after_one_step(optax.chain(optax.sgd(1.0), optax.masked(wo.clip_weights(1.0), is_not_bias)), params)
    assert (float(moved["a"]["kernel"][0, 0]), float(moved["a"]["bias"][0])) == (0.5, 9.0)


@pytest.mark.parametrize("masked", [optax.MaskedNode(), None], ids=["masked", "none"])
@pytest.mark.parametrize(
    "shapes", [((7, 4, 3), (7, 3)), ((4, 2, 8), (2, 8)), ((3, 3, 2, 8), (8,))], ids=["stacked", "heads", "convolution"]
)
def test_a_kernel_whose_fan_in_depends_on_its_masked_bias_raises_an_error(shapes: Any, masked: Any) -> None:
    params = {"a": {"kernel": jnp.zeros(shapes[0]), "bias": masked}}
    with pytest.raises(ValueError, match=r"a/kernel: its bound depends on the shape of a/bias, which is masked out"):
        wo.clip_weights(1.0).init(params)
    assert wo.resolve_bounds(params, {"a/kernel": 0.3, "*": "fan_in"})["a/kernel"].s == 0.3


@pytest.mark.parametrize("masked", [optax.MaskedNode(), None], ids=["masked", "none"])
def test_a_normalization_layer_is_recognized_by_its_masked_scale(masked: Any) -> None:
    params = {"a": layer(), "norm": {"scale": masked, "bias": jnp.zeros(3)}}
    assert "normalization" in wo.resolve_bounds(params)["norm/bias"].reason


class Own(eqx.Module):
    weight: jax.Array
    bias: jax.Array


def test_filtered_equinox_modules() -> None:
    linear = eqx.nn.Linear(4, 2, key=KEY)
    biases, weights = eqx.partition(linear, eqx.tree_at(lambda l: (l.weight, l.bias), linear, (False, True)))
    assert biases.weight is None
    assert weights.bias is None
    assert wo.resolve_bounds(biases)["bias"].s == wo.resolve_bounds(weights)["weight"].s == 0.5  # by its type

    own = {"own": Own(jnp.zeros((2, 4)), jnp.zeros(2))}
    mask = {"own": Own(False, True)}
    biases, weights = eqx.partition(own, mask)
    assert wo.resolve_bounds(weights)["own/weight"].s == 0.5
    with pytest.raises(ValueError, match=r"own/bias: its bound depends on the shape of own/weight, which is masked"):
        wo.clip_weights(1.0).init(biases)
    with pytest.raises(ValueError, match=r"own/bias: its bound depends on the shape of own/weight, which is masked"):
        wo.clip_weights(1.0).update(biases, optax.EmptyState(), biases)
