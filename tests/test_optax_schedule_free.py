import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import (
    ScheduleFreeState,
    schedule_free,
    schedule_free_adamw,
    schedule_free_eval_params,
    schedule_free_sgd,
)

import weightclip.optax as wo

KAPPA, FAN_IN, STEPS = 0.7, 3, 40

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda b1=0.9, **settings: schedule_free_sgd(1.0, b1=b1, **settings),
    "adamw": lambda b1=0.9, **settings: schedule_free_adamw(0.3, b1=b1, **settings),
    "warmup": lambda b1=0.9, **settings: schedule_free_sgd(1.0, warmup_steps=10, b1=b1, **settings),
    "adam": lambda b1=0.9, **settings: schedule_free(optax.adam(0.3, b1=0.0), 0.3, b1=b1, **settings),
}


def start(dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {"kernel": jnp.array(rng.uniform(-0.4, 0.4, (FAN_IN, 100)), dtype), "scale": jnp.ones(100, dtype)}


def gradients(steps: int = STEPS, dtype: Any = jnp.float32) -> list[dict[str, jax.Array]]:
    """Noise with a constant drift, which would move each entry far out of the box."""
    rng = np.random.default_rng(1)
    drift = rng.choice([-1.0, 1.0], 100)
    noise = rng.normal(size=(steps, FAN_IN, 100))
    return [{"kernel": jnp.array(g + drift, dtype), "scale": jnp.array(drift, dtype)} for g in noise]


def train(optimizer: Any, params: Any, grads: Any, inner: Callable[[Any], Any] = lambda state: state) -> list[Any]:
    """Return (y, x, z) after each step."""
    state, update, seen = optimizer.init(params), jax.jit(optimizer.update), []
    for gradient in grads:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        seen.append((params, schedule_free_eval_params(inner(state), params), inner(state).z))
    return seen


def ulps_outside(array: jax.Array, kappa: Any = KAPPA, dtype: Any = jnp.float32) -> float:
    limit = float(wo.project({"kernel": jnp.full((FAN_IN, 1), 9.0, dtype)}, kappa)["kernel"][0, 0])
    ulp = float(jnp.finfo(dtype).eps) * 2.0 ** math.floor(math.log2(limit))
    return (float(jnp.abs(array.astype(jnp.float32)).max()) - limit) / ulp


def largest(seen: list[Any], sequence: int) -> float:
    return max(float(jnp.abs(step[sequence]["kernel"]).max()) for step in seen)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_x_leaves_the_box_in_a_plain_chain_and_stays_in_it_with_the_wrapper(name: str) -> None:
    box = KAPPA / math.sqrt(FAN_IN)
    chained = train(
        optax.chain(OPTIMIZERS[name](), wo.clip_weights(KAPPA)), start(), gradients(), lambda state: state[0]
    )
    assert largest(chained, 0) <= box * (1 + 1e-6)
    assert largest(chained, 1) > 2 * box
    assert largest(chained, 2) > 10 * box

    wrapped = train(wo.clip_schedule_free(OPTIMIZERS[name](), KAPPA), start(), gradients())
    for y, x, z in wrapped:
        assert ulps_outside(y["kernel"]) <= 1
        assert ulps_outside(x["kernel"]) <= 2 / 0.9
        assert ulps_outside(z["kernel"]) <= 0
        assert ulps_outside(wo.project(x, KAPPA)["kernel"]) <= 0
    assert largest(wrapped, 1) > 0.99 * box
    assert float(jnp.abs(wrapped[-1][0]["scale"]).max()) > 1.5  # skipped: a normalization layer


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("b1", [0.1, 1.0])
def test_x_exceeds_the_box_by_at_most_its_rounding(b1: float, dtype: Any) -> None:
    optimizer = wo.clip_schedule_free(OPTIMIZERS["sgd"](b1), KAPPA)
    for y, x, z in train(optimizer, wo.project(start(dtype), KAPPA), gradients(20, dtype)):
        assert y["kernel"].dtype == x["kernel"].dtype == z["kernel"].dtype == dtype
        assert ulps_outside(y["kernel"], dtype=dtype) <= 1
        assert ulps_outside(x["kernel"], dtype=dtype) <= 2 / b1
        assert ulps_outside(z["kernel"], dtype=dtype) <= 0


def test_x_is_the_average_of_the_clipped_z() -> None:
    """The equations of the docstring in plain arithmetic; with a constant learning rate, c_t = 1/t."""
    optimizer, b1, lr = wo.clip_schedule_free(OPTIMIZERS["sgd"](), KAPPA), 0.9, 1.0
    box = KAPPA / math.sqrt(FAN_IN)
    params, grads = start(), gradients()
    z = x = np.asarray(params["kernel"], float)
    seen = train(optimizer, params, grads)
    for t, (gradient, (y, eval_params, _)) in enumerate(zip(grads, seen, strict=True), 1):
        z = np.clip(z - lr * np.asarray(gradient["kernel"], float), -box, box)
        x = np.clip((1 - 1 / t) * x + z / t, -box, box)
        np.testing.assert_allclose(eval_params["kernel"], x, atol=3e-6)
        np.testing.assert_allclose(y["kernel"], (1 - b1) * z + b1 * x, atol=3e-6)
    assert np.any(np.abs(x) < 0.8 * box)


@pytest.mark.parametrize("kappa", [math.inf, jnp.float32(math.inf)], ids=["number", "array"])
def test_an_infinite_box_is_bit_identical_to_no_clipping(kappa: Any) -> None:
    plain = train(OPTIMIZERS["adamw"](), start(), gradients(10))
    wrapped = train(wo.clip_schedule_free(OPTIMIZERS["adamw"](), kappa), start(), gradients(10))
    jax.tree.map(np.testing.assert_array_equal, plain, wrapped)


@pytest.mark.parametrize("lr", [1.0, 0.0])
def test_the_first_update_moves_parameters_into_the_box(lr: float) -> None:
    params = {"kernel": jnp.full((FAN_IN, 100), 0.6), "scale": jnp.ones(100)}
    ((y, x, z),) = train(wo.clip_schedule_free(schedule_free_sgd(lr), KAPPA), params, gradients(1))
    assert max(ulps_outside(y["kernel"]), ulps_outside(x["kernel"]) - 1.2, ulps_outside(z["kernel"])) <= 1


@pytest.mark.parametrize(("of_params", "of_z"), [(jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.float32)])
def test_z_in_another_dtype(of_params: Any, of_z: Any) -> None:
    optimizer = wo.clip_schedule_free(OPTIMIZERS["sgd"](state_dtype=of_z), KAPPA)
    for y, x, z in train(optimizer, start(of_params), gradients(20, of_params)):
        assert (y["kernel"].dtype, z["kernel"].dtype) == (of_params, of_z)
        assert ulps_outside(y["kernel"], dtype=of_params) <= 1
        assert ulps_outside(x["kernel"], dtype=of_params) <= 2 / 0.9
        assert ulps_outside(z["kernel"], dtype=of_z) <= 0


def test_nan_and_infinity() -> None:
    params = {"kernel": jnp.zeros((4, 1))}
    gradient = {"kernel": jnp.array([[math.nan], [-math.inf], [math.inf], [0.0]])}
    ((y, x, z),) = train(wo.clip_schedule_free(OPTIMIZERS["sgd"](), 1.0), params, [gradient])
    for sequence in (y, x, z):
        np.testing.assert_allclose(sequence["kernel"].ravel(), [math.nan, 0.5, -0.5, 0.0], rtol=1e-6)


def test_a_kappa_that_follows_a_schedule() -> None:
    inject = optax.inject_hyperparams(wo.clip_schedule_free)
    optimizer = inject(OPTIMIZERS["sgd"](), kappa=optax.linear_schedule(2.0, 0.2, 10))
    seen = train(optimizer, start(), gradients(15), lambda state: state.inner_state)
    for t, (y, x, z) in enumerate(seen):
        kappa = jnp.float32(2.0 - 0.18 * min(t, 10))
        assert largest([(y, x, z)], 0) > 0.9 * kappa / math.sqrt(FAN_IN)
        assert max(ulps_outside(sequence["kernel"], kappa) for sequence in (y, x, z)) <= 4


def test_a_traced_kappa_is_compiled_once() -> None:
    traces = 0

    @jax.jit
    def step(params: Any, gradient: Any, kappa: jax.Array) -> Any:
        nonlocal traces
        traces += 1
        optimizer = wo.clip_schedule_free(OPTIMIZERS["sgd"](), kappa)
        updates, state = optimizer.update(gradient, optimizer.init(params), params)
        return schedule_free_eval_params(state, optax.apply_updates(params, updates))["kernel"]

    params = {"kernel": jnp.zeros((4, 1))}
    for kappa in (0.5, 1.0, 2.0):
        np.testing.assert_allclose(step(params, {"kernel": jnp.ones((4, 1))}, jnp.float32(kappa)), -kappa / 2)
    assert traces == 1


def test_arguments_match_clip_weights() -> None:
    params = {"a": jnp.zeros((4, 2)), "b": jnp.zeros((4, 2))}
    ones = jax.tree.map(jnp.ones_like, params)
    optimizer = wo.clip_schedule_free(OPTIMIZERS["sgd"](), 1.0, bounds={"*": 0.25}, include="*", exclude="b")
    ((y, _, z),) = train(optimizer, params, [ones])
    assert float(y["a"][0, 0]) == float(z["a"][0, 0]) == -0.25
    assert float(y["b"][0, 0]) == float(z["b"][0, 0]) == -1.0


def test_in_a_chain_inside_masked_and_with_extra_arguments() -> None:
    params = {"a": {"kernel": jnp.zeros((4, 2))}, "b": {"kernel": jnp.zeros((4, 2))}}
    ones = jax.tree.map(jnp.ones_like, params)
    wrapped = optax.masked(wo.clip_schedule_free(OPTIMIZERS["sgd"](), 1.0), {"a": True, "b": False})
    optimizer = optax.chain(optax.scale(3.0), wrapped)
    updates, state = optimizer.update(ones, optimizer.init(params), params, value=1.0)
    assert isinstance(state[1].inner_state, ScheduleFreeState)
    assert float(updates["a"]["kernel"][0, 0]) == -0.5
    assert float(updates["b"]["kernel"][0, 0]) == 3.0


def test_other_transformations_raise_an_error() -> None:
    params = {"kernel": jnp.zeros((4, 1))}
    with pytest.raises(TypeError, match=r"schedule_free: got 0.1, expected optax.contrib.schedule_free"):
        wo.clip_schedule_free(0.1, 1.0)
    for other, state in ((optax.adam(0.1), "tuple"), (optax.chain(OPTIMIZERS["sgd"]()), "tuple")):
        optimizer = wo.clip_schedule_free(other, 1.0)
        with pytest.raises(TypeError, match=rf"schedule_free: got a transformation with the state {state}, expected"):
            optimizer.init(params)
    with pytest.raises(ValueError, match=r"kappa: got -1.0, expected a positive number"):
        wo.clip_schedule_free(OPTIMIZERS["sgd"](), -1.0)


def test_b1_of_zero_raises_an_error() -> None:
    optimizer = wo.clip_schedule_free(OPTIMIZERS["sgd"](0.0), 1.0)
    with pytest.raises(ValueError, match=r"b1: got 0.0, expected 0 < b1 <= 1"):
        optimizer.init({"kernel": jnp.zeros((4, 1))})


def test_parameters_and_something_to_clip_are_required() -> None:
    optimizer = wo.clip_schedule_free(OPTIMIZERS["sgd"](), 1.0)
    params = {"kernel": jnp.zeros((4, 1))}
    with pytest.raises(ValueError, match="params: got None, expected the parameters"):
        optimizer.update(params, optimizer.init(params))
    with pytest.raises(ValueError, match="params: there is nothing to clip"):
        optimizer.init({"scale": jnp.zeros(4)})
