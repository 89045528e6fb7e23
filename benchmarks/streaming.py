"""Speedup of the fused engine over a plain PyTorch loop, and its distance to the memory bandwidth limit.

784-300-150-10 on input-permuted MNIST (the bundled digits), one sample per step, one core. The plain loop is a typical
handwritten loop: batches of one sample from data in memory, the library's regularizers, and after each update the loss
on the same sample, the l1 and l2 norms of weights and gradients and, with clipping, the fraction of clipped entries.
The fused engine measures the same and the fraction of negative units. Both alternate in blocks of steps; a ratio is
the median over the pairs of blocks.

The limit is the time NumPy takes to read and write in place all arrays that a step changes (the weights and the
optimizer's state).

    python benchmarks/streaming.py [--quick]

The first run on a machine compiles the fused engine's kernels. On a slow core this may leave no time for the later
claims with `--quick`; later runs load the kernels from the cache.
"""

import argparse
import gc
import os
import time
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch
from timing import deadline, elapsed, leave, median_ratio, print_claim, rounds, time_limit
from torch.nn.functional import cross_entropy

import weightclip as wc
from weightclip.lab.data import Dataset, load
from weightclip.lab.experiments.streaming.config import Config, resolve
from weightclip.lab.experiments.streaming.fused import Fused
from weightclip.lab.experiments.streaming.problem import Task, make_task
from weightclip.lab.networks.mlp import mlp

METHODS = ("sgd+wc", "adam+wc", "adam+sp", "madam", "sgd", "adam", "sgd+sp", "sgd+l2init", "adam+l2init")
CLAIMED = METHODS[:4]
STATES = {"sgd": 0, "adam": 2, "madam": 1}


class Plain:
    """A handwritten PyTorch loop."""

    def __init__(self, config: Config) -> None:
        self.model = mlp(784, config.hidden, 10, config.activation, config.seed)
        parameters = self.model.parameters()
        optimizer, _, regularizer = config.method.partition("+")
        if optimizer == "madam":
            self.optimizer: torch.optim.Optimizer = wc.Madam(parameters, lr=config.lr, kappa=config.kappa)
        else:
            self.optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](parameters, lr=config.lr)
        self.clipper = None
        if regularizer == "wc":
            self.clipper = wc.clip_weights(self.optimizer, self.model, kappa=config.kappa, track_clipped=True)
        elif regularizer == "sp":
            wc.shrink_and_perturb(self.optimizer, config.decay, config.sigma, variant="paper")
        elif regularizer == "l2init":
            wc.l2_init(self.optimizer, config.decay, variant="paper")

    def learn(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        model, optimizer = self.model, self.optimizer
        weights = [p for p in model.parameters() if p.ndim > 1]
        norm = torch.linalg.vector_norm
        right = total = plasticity = w2 = w1 = g2 = g1 = clipped = 0.0
        for x, y in zip(inputs.split(1), labels.split(1), strict=True):
            optimizer.zero_grad()
            logits = model(x)
            loss = cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                after = cross_entropy(model(x), y).item()
                w2 += norm(torch.stack([norm(p) for p in weights])).item()
                w1 += sum(norm(p, 1) for p in weights).item()
                g2 += norm(torch.stack([norm(p.grad) for p in weights])).item()
                g1 += sum(norm(p.grad, 1) for p in weights).item()
            before = loss.item()
            right += float(logits.argmax() == y)
            total += before
            plasticity += max(1 - after / max(before, 1e-8), 0)
            if self.clipper is not None:
                clipped += self.clipper.clipped_fraction
        names = ("accuracy", "loss", "plasticity", "weight_l2", "weight_l1", "gradient_l2", "gradient_l1", "clipped")
        values = (right, total, plasticity, w2, w1, g2, g1, clipped)
        return {name: value / len(labels) for name, value in zip(names, values, strict=True)}


def tensors(dataset: Dataset, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    codes = dataset.codes[task.rows][:, task.columns]
    return torch.from_numpy(dataset.decode("float32")[codes]), torch.from_numpy(task.classes[dataset.labels[task.rows]])


def seconds(function, *arguments) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def stream(arrays: list[np.ndarray], times: int) -> None:
    for _ in range(times):
        for array in arrays:
            np.negative(array, out=array)


@dataclass(frozen=True)
class Times:
    """Seconds per step in each round of the plain loop, the fused engine, and NumPy for the same bytes."""

    plain: list[float] = field(default_factory=list)
    fused: list[float] = field(default_factory=list)
    numpy: list[float] = field(default_factory=list)


def compare(times: Times, method: str, dataset: Dataset, pairs: int, steps: int, until: float) -> None:
    """Measure one method."""
    config = resolve(Config("input-permuted-mnist", method=method, period=steps))
    plain, fused = Plain(config), Fused(config, dataset)
    size = sum(p.numel() for p in plain.model.parameters())
    arrays = [np.ones(size, np.float32) for _ in range(1 + STATES[method.partition("+")[0]])]
    n, d = dataset.inputs.shape
    many = 10  # fused blocks have ten times as many steps because the engine is much faster
    first = make_task("inputs", 0, 2, 2, 0, n, d, dataset.classes)
    plain.learn(*tensors(dataset, first))
    fused.learn(first)  # compiles
    for pair in rounds(pairs, until):
        task = make_task("inputs", pair + 1, many * steps, many * steps, 0, n, d, dataset.classes)
        short = Task(task.index, task.rows[:steps], task.columns, task.classes)
        data = tensors(dataset, short)
        gc.collect()
        times.plain.append(seconds(plain.learn, *data) / steps)
        times.fused.append(seconds(fused.learn, task) / (many * steps))
        times.numpy.append(seconds(stream, arrays, steps) / steps)


def compare_graded(method: str, dataset: Dataset, pairs: int, steps: int, until: float) -> float:
    """Return the median ratio of fused step times with a range per unit to those with one kappa."""
    n, d = dataset.inputs.shape
    learners = [
        Fused(resolve(Config("input-permuted-mnist", method=method, kappa=kappa, period=steps)), dataset)
        for kappa in (2.0, "graded")
    ]
    first = make_task("inputs", 0, 2, 2, 0, n, d, dataset.classes)
    for learner in learners:
        learner.learn(first)  # compiles
    ratios = []
    for pair in rounds(pairs, until):
        task = make_task("inputs", pair + 1, 10 * steps, 10 * steps, 0, n, d, dataset.classes)
        one, graded = (seconds(learner.learn, task) for learner in learners)
        ratios.append(graded / one)
    return median(ratios)


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    methods = CLAIMED if quick else METHODS
    pairs, steps = (7, 20) if quick else (25, 200)
    found = {method: Times() for method in methods}
    graded: dict[str, float] = {}
    with time_limit(quick):
        dataset = load("mnist")
        print(f"data: {dataset.source}")
        for number, (method, times) in enumerate(found.items()):
            now = elapsed()  # divide the remaining time among the methods
            compare(times, method, dataset, pairs, steps, now + (deadline(quick) - 8 - now) / (len(methods) - number))
            print(f"{method}: {1e6 * median(times.fused):.0f} us a fused step here", flush=True)
        for method in ("sgd+wc", "adam+wc"):
            graded[method] = compare_graded(method, dataset, pairs, 5 * steps, deadline(quick) + 8)
    for method, ratio in graded.items():
        print_claim(f"{method}, graded / one kappa", ratio)
    for method, times in found.items():
        print_claim(f"{method}, fused / memory-traffic limit", median_ratio(times.fused, times.numpy))
    for method, times in found.items():
        print_claim(f"{method}, plain PyTorch / fused", median_ratio(times.plain, times.fused), digits=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the four claims only, within 45 s")
    arguments = parser.parse_args()
    main(arguments.quick)
    leave(arguments.quick)
