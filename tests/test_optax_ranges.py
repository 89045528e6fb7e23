"""Ranges by layer and by unit in JAX: layer numbers and the scale of the ranges."""

import math

import pytest

jax = pytest.importorskip("jax", reason="needs jax")
optax = pytest.importorskip("optax", reason="needs optax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import weightclip as wc  # noqa: E402
import weightclip.optax as wco  # noqa: E402
from vectors import unit_range  # noqa: E402

LAYERS = 12


def dense(scale: float = 100.0) -> dict[str, dict[str, jax.Array]]:
    """Layers of 4 units with names as in Flax; LayerNorm has no two-dimensional weight."""
    layers = {f"Dense_{i}": {"kernel": jnp.full((4, 4), scale), "bias": jnp.full(4, scale)} for i in range(LAYERS)}
    return {**layers, "LayerNorm_0": {"scale": jnp.ones(4), "bias": jnp.zeros(4)}}


def test_layers_are_numbered_as_in_torch() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(LAYERS)), nn.LayerNorm(4))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(100.0)
    rule = {"low": 0.5, "high": 8.0, "layer_offset": 3}
    last = LAYERS - 1
    clipper = wc.clip_weights(
        torch.optim.SGD(model.parameters(), lr=0.0), model, wc.graded(**rule, output_layers=f"{last}.*")
    )
    clipper.clip()
    params = wco.project(dense(), wc.graded(**rule, output_layers=f"Dense_{last}/*"))
    for i in range(LAYERS):
        np.testing.assert_array_equal(np.asarray(params[f"Dense_{i}"]["kernel"]).T, model[i].weight.detach().numpy())
        np.testing.assert_array_equal(np.asarray(params[f"Dense_{i}"]["bias"]), model[i].bias.detach().numpy())
    assert float(params["Dense_10"]["bias"][0]) == pytest.approx(unit_range(30, 0.5, 8.0) / 2)


def test_the_order_of_lists_is_kept() -> None:
    params = {"layers": [{"kernel": jnp.full((4, 2), 100.0)} for _ in range(11)]}
    clipped = wco.project(params, wc.graded(layer_offset=1, output_layers="layers/0/kernel"))
    assert float(clipped["layers"][10]["kernel"][0, 0]) == pytest.approx(unit_range(10, 0.5, 8.0) / 2)


def test_a_scale_multiplies_all_ranges() -> None:
    rule = wc.graded(0.5, 8.0, output_layers=f"Dense_{LAYERS - 1}/*")
    whole = wco.project(dense(), rule)
    for scale in (0.5, jnp.asarray(0.5)):
        half = wco.project(dense(), rule, scale=scale)
        for name in (f"Dense_{i}" for i in range(LAYERS)):
            np.testing.assert_allclose(half[name]["kernel"], whole[name]["kernel"] / 2, rtol=1e-6)
    assert float(wco.project({"kernel": jnp.full((4, 1), 9.0)}, 2.0, scale=0.5)["kernel"][0, 0]) == 0.5
    by_layer = wco.project(dense(), {"Dense_0/*": 3.0}, scale=jnp.asarray(2.0))
    assert float(by_layer["Dense_0"]["bias"][0]) == 3.0
    assert float(by_layer["Dense_1"]["bias"][0]) == 100.0
    with pytest.raises(ValueError, match=r"scale: got 0\.0, expected a positive number"):
        wco.clip_weights(rule, scale=0.0)
    with pytest.raises(ValueError, match=r"scale: got an array of shape \(2,\)"):
        wco.clip_weights(rule, scale=jnp.ones(2))


def test_the_scale_of_a_rule_follows_a_schedule_without_recompilation() -> None:
    params = {"Dense_0": {"kernel": jnp.zeros((4, 2))}}
    schedule = optax.linear_schedule(1.0, 0.5, transition_steps=1)
    clip = optax.inject_hyperparams(wco.clip_weights)(wc.graded(output_layers="Dense_0/kernel"), scale=schedule)
    optimizer = optax.chain(optax.sgd(1.0), clip)
    state = optimizer.init(params)
    traces = []

    @jax.jit
    def step(params: dict, state: tuple) -> tuple:
        traces.append(1)
        updates, state = optimizer.update(jax.tree.map(lambda p: -100.0 * jnp.ones_like(p), params), state, params)
        return optax.apply_updates(params, updates), state

    for expected in (2.0, 1.0):  # output=2
        params, state = step(params, state)
        np.testing.assert_allclose(params["Dense_0"]["kernel"], expected / math.sqrt(4), rtol=1e-6)
    assert len(traces) == 1
