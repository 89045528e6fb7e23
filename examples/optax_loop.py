"""Weight clipping in a JAX loop with optax, on a stream of tasks: each gives the same inputs new random labels.

python examples/optax_loop.py
"""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weightclip.optax as wc

Params = list[dict[str, jax.Array]]


def init(rng: np.random.Generator, sizes: tuple[int, ...] = (16, 64, 64, 10)) -> Params:
    """Layers with a kernel (in, out) and a bias, initialized uniformly from [-1/sqrt(in), 1/sqrt(in)] as in PyTorch."""

    def draw(n: int, *shape: int) -> jax.Array:
        return jnp.array(rng.uniform(-(n**-0.5), n**-0.5, shape))

    return [{"kernel": draw(n, n, m), "bias": draw(n, m)} for n, m in pairwise(sizes)]


def loss(params: Params, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of a ReLU network."""
    x = inputs
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    logits = x @ params[-1]["kernel"] + params[-1]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def main(kappa: float = 2.0, tasks: int = 5, steps: int = 200) -> Params:
    """Learn `tasks` tasks sequentially; `kappa=float("inf")` disables clipping."""
    rng = np.random.default_rng(0)
    params = init(rng)
    optimizer = optax.chain(optax.adam(0.01), wc.clip_weights(kappa))  # clipping is last in the chain
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: Any, labels: jax.Array) -> tuple[Params, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, inputs, labels)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        return wc.project(params, kappa), state, value  # exact: `apply_updates` can end an ulp outside

    inputs = jnp.array(rng.normal(size=(256, 16)))
    for task in range(1, tasks + 1):
        labels = jnp.array(rng.integers(10, size=256))
        for _ in range(steps):
            params, state, value = step(params, state, labels)
        largest = [float(jnp.abs(layer["kernel"]).max()) for layer in params]
        print(f"task {task}: loss {value:.4f}, largest weights {', '.join(f'{w:.3f}' for w in largest)}")
    for path, bound in wc.resolve_bounds(params).items():
        print(f"{path}: s = {bound.s:.4f}")
    return params


if __name__ == "__main__":
    main()
