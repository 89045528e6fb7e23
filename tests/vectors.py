"""Reference values that every implementation must reproduce.

They are computed in float64 with Python arithmetic from the equations, without importing the package.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FAN_IN = 4
S = 1 / math.sqrt(FAN_IN)
WEIGHTS = [0.45, -0.3, 0.02, -0.49]
GRADIENTS = [
    [0.5, -1.0, 0.0, 2.0],
    [0.1, 0.7, -0.2, 1.5],
    [-3.0, 0.0, 0.4, 0.3],
    [0.25, -0.6, 5.0, -0.01],
    [-1.2, 0.8, -0.5, 0.9],
]
NOISE = [
    [0.3, -1.1, 0.6, 2.0],
    [-0.2, 0.4, 1.3, -0.7],
    [1.0, 0.1, -0.9, 0.5],
    [0.0, 2.2, -0.3, -1.4],
    [0.8, -0.6, 0.2, 0.9],
]


@dataclass(frozen=True)
class Vector:
    name: str
    lr: float
    settings: dict[str, float]
    after: list[list[float]]  # the weights after each step


def sgd(lr: float) -> Callable[[list[float]], list[float]]:
    return lambda g: [lr * x for x in g]


def adam(lr: float) -> Callable[[list[float]], list[float]]:
    m, v, t = [0.0] * 4, [0.0] * 4, 0

    def update(g: list[float]) -> list[float]:
        nonlocal t
        t += 1
        for i, x in enumerate(g):
            m[i] = 0.9 * m[i] + 0.1 * x
            v[i] = 0.999 * v[i] + 0.001 * x * x
        return [lr * m[i] / (1 - 0.9**t) / (math.sqrt(v[i] / (1 - 0.999**t)) + 1e-8) for i in range(4)]

    return update


OPTIMIZERS = {"sgd": sgd, "adam": adam}


def clip(w: list[float], bound: float) -> list[float]:
    return [min(max(x, -bound), bound) for x in w]


def run(
    optimizer: str, lr: float, regularizer: str, decay: float = 0.0, sigma: float = 0.0, kappa: float = math.inf
) -> list[list[float]]:
    update = OPTIMIZERS[optimizer](lr)
    w, w0, history = list(WEIGHTS), list(WEIGHTS), []
    for step, gradient in enumerate(GRADIENTS):
        g = list(gradient)
        if regularizer in ("l2", "l2_init_paper", "shrink_and_perturb_paper"):
            g = [a + decay * b for a, b in zip(g, w)]
        if regularizer == "l2_init_kumar":
            g = [a + 2 * decay * (b - c) for a, b, c in zip(g, w, w0)]
        w = [a - b for a, b in zip(w, update(g))]
        if regularizer == "l2_init_paper":
            w0 = list(w) if step == 0 else w0
            w = [a + lr * decay * b for a, b in zip(w, w0)]
        if regularizer == "shrink_and_perturb_ash":
            w = [(1 - decay) * a + sigma * e for a, e in zip(w, NOISE[step])]
        if regularizer == "shrink_and_perturb_paper":
            w = [a - lr * sigma * e for a, e in zip(w, NOISE[step])]
        w = clip(w, kappa * S)
        history.append(w)
    return history


def run_madam(lr: float, kappa: float) -> list[list[float]]:
    w, v, history = list(WEIGHTS), [0.0] * 4, []
    bound = kappa * math.sqrt(sum(x * x for x in WEIGHTS) / 4)
    for t, g in enumerate(GRADIENTS, start=1):
        for i in range(4):
            v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i]
            root = math.sqrt(v[i] / (1 - 0.999**t))
            g_hat = min(max(g[i] / root, -10.0), 10.0) if root > 0 else 0.0
            w[i] = w[i] * math.exp(-lr * g_hat * math.copysign(1.0, w[i]))
        w = clip(w, bound)
        history.append(list(w))
    return history


def vectors() -> Iterator[Vector]:
    for optimizer, lr in (("sgd", 0.1), ("adam", 0.05)):
        for regularizer, settings in {
            "none": {},
            "clip": {"kappa": 1.1},
            "l2": {"decay": 0.3},
            "l2_init_kumar": {"decay": 0.2},
            "l2_init_paper": {"decay": 0.2},
            "shrink_and_perturb_ash": {"decay": 0.05, "sigma": 0.1},
            "shrink_and_perturb_paper": {"decay": 0.3, "sigma": 0.5},
            "l2_init_kumar+clip": {"decay": 0.2, "kappa": 1.0},
        }.items():
            after = run(optimizer, lr, regularizer.removesuffix("+clip"), **settings)
            yield Vector(f"{optimizer}+{regularizer}", lr, settings, after)
    yield Vector("madam", 0.1, {"kappa": 1.2}, run_madam(0.1, 1.2))


VECTORS = {vector.name: vector for vector in vectors()}


HIDDEN_WEIGHTS = [[0.4, -0.3, 0.02, -0.49], [0.1, 0.2, -0.45, 0.33], [-0.2, 0.0, 0.41, -0.12]]
OUTPUT_WEIGHTS = [[0.5, -0.3, 0.2]]
HIDDEN_GRADIENTS = [
    [[5.0, -4.0, 0.5, 3.0], [-6.0, 2.0, 0.1, -9.0], [0.3, -7.0, -8.0, 4.0]],
    [[-1.0, 0.4, 6.0, 0.0], [0.2, -0.8, 1.5, 9.0], [-20.0, 3.0, 0.7, -0.6]],
]
OUTPUT_GRADIENTS = [[[-6.0, 2.0, -9.0]], [[0.5, 8.0, -0.4]]]
RANGE_LR = 0.1


@dataclass(frozen=True)
class RangeVector:
    """Weights after each step of SGD on a network of 4 inputs, 3 hidden units and 1 output, clipped by a rule."""

    kappa: str
    hidden: list[list[list[float]]]
    output: list[list[list[float]]]


def unit_range(i: int, low: float, high: float) -> float:
    return low * (high / low) ** ((i * 0.6180339887498949) % 1.0)


def run_ranges(kappa: str, hidden_k: Callable[[int, int], float], output_k: Callable[[int, int], float]) -> RangeVector:
    """Run SGD; `hidden_k(i, j)` and `output_k(i, j)` are the ranges of the entries in row i and column j."""

    def steps(weights: list[list[float]], gradients: list[list[list[float]]], k: Callable[[int, int], float]) -> list:
        s = 1 / math.sqrt(len(weights[0]))
        w, history = [list(row) for row in weights], []
        for gradient in gradients:
            for i, row in enumerate(gradient):
                for j, g in enumerate(row):
                    bound = k(i, j) * s
                    w[i][j] = min(max(w[i][j] - RANGE_LR * g, -bound), bound)
            history.append([list(row) for row in w])
        return history

    return RangeVector(
        kappa,
        steps(HIDDEN_WEIGHTS, HIDDEN_GRADIENTS, hidden_k),
        steps(OUTPUT_WEIGHTS, OUTPUT_GRADIENTS, output_k),
    )


RANGE_VECTORS = {
    vector.kappa: vector
    for vector in (
        run_ranges("2", lambda i, j: 2.0, lambda i, j: 2.0),
        run_ranges("hidden=1.5,output=0.5", lambda i, j: 1.5, lambda i, j: 0.5),
        run_ranges("output=1", lambda i, j: math.inf, lambda i, j: 1.0),
        run_ranges("graded(0.5, 2, output=1)", lambda i, j: unit_range(i, 0.5, 2.0), lambda i, j: 1.0),
        run_ranges(
            "graded(0.25, 4, output=0.5-1.5)",
            lambda i, j: unit_range(i, 0.25, 4.0),
            lambda i, j: unit_range(j, 0.5, 1.5),
        ),
    )
}
