"""Overhead per training step of clipping (with and without counting), L2 Init and Shrink & Perturb.

784-300-150-10, batch 32, fused Adam, one thread: two networks, one with the regularizer and one without, alternate
blocks of whole training steps; the ratio is the median over many such pairs. A step takes about a millisecond, and the
memory layout of the weights affects it by a few percent, so the second digit varies between runs. `by hand` is a lower
bound for clipping after the step: a hook that only calls `clamp_`.

ResNet18 (11 million parameters, 32x32 images, batch 125, SGD as in the paper, one thread): the forward and backward
pass is nearly all of the time and the same for all, so it is pooled:

    ratio = (median pass + median step with the regularizer) / (median pass + median plain step)

1,000 weights of 16x16, fused Adam, optimizer steps only: clipping with `track_clipped=True`, and clipping with a kappa
that changes at every step, each relative to clipping with a constant kappa. `attaching` is the time to attach one
optimizer per parameter of a model with 400 parameters, relative to one optimizer for all; the line above it shows the
seconds.

`graded clip / one kappa` compares only the clipping, after a step of Adam. `training with a monitor` is the training
time divided by the training time without the monitor's hooks.

    python benchmarks/overhead.py [--quick]
"""

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from timing import leave, print_claim, time_limit
from torch import Tensor, nn
from torch.optim import Optimizer

import weightclip as wc
from weightclip.lab.networks.resnet import resnet18

REGULARIZERS: dict[str, Callable[[Optimizer, nn.Module], AbstractContextManager[object]]] = {
    "plain": lambda optimizer, model: nullcontext(),
    "clip": lambda optimizer, model: wc.clip_weights(optimizer, model, kappa=2.0),
    "clip by hand": lambda optimizer, model: clip_by_hand(optimizer, model),
    "clip with statistics": lambda optimizer, model: wc.clip_weights(optimizer, model, kappa=2.0, track_clipped=True),
    "l2_init": lambda optimizer, model: wc.l2_init(optimizer, 1e-3),
    "l2_init as in the paper": lambda optimizer, model: wc.l2_init(optimizer, 1e-3, variant="paper"),
    "shrink_and_perturb": lambda optimizer, model: wc.shrink_and_perturb(optimizer, 1e-6, 1e-6),
    "shrink_and_perturb as in the paper": lambda o, model: wc.shrink_and_perturb(o, 1e-3, 1e-3, variant="paper"),
}


@contextmanager
def clip_by_hand(optimizer: Optimizer, model: nn.Module) -> Iterator[None]:
    """Clip the weights to their bounds in a minimal hook."""
    limits = [
        (p.detach(), 2.0 * (bound.s or float("inf")))
        for p, bound in zip(model.parameters(), wc.resolve_bounds(model).values(), strict=True)
    ]

    def hook(*_: object) -> None:
        for p, limit in limits:
            p.clamp_(-limit, limit)

    handle = optimizer.register_step_post_hook(hook)
    yield
    handle.remove()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 300), nn.LeakyReLU(), nn.Linear(300, 150), nn.LeakyReLU(), nn.Linear(150, 10))


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare_whole_steps(regularizer: str, x: Tensor, y: Tensor, budget: float) -> float:
    """Return the median over rounds of the ratio of median step times; each round has two new networks."""

    def make_step(regularizer: str) -> Callable[[], None]:
        network = mlp()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
        REGULARIZERS[regularizer](optimizer, network).__enter__()

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()

        return step

    ratios: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(ratios) < 3:
        gc.collect()  # optimizers and their hooks are reference cycles; start every round with the same memory
        steps = {name: make_step(name) for name in ("plain", regularizer)}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(4):
            for name, step in steps.items():
                times[name] += [seconds(step) for _ in range(15)][3:]  # warm up the CPU caches
        ratios.append(statistics.median(times[regularizer]) / statistics.median(times["plain"]))
        del steps
    return statistics.median(ratios)


def compare_pooled(network: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, budget: float) -> dict[str, float]:
    """Regularizer -> ratio of pass and step times to the plain optimizer's, with pooled passes."""

    def make_a_pass() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()

    passes: list[float] = []
    steps: dict[str, list[float]] = {regularizer: [] for regularizer in REGULARIZERS}
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(passes) < 4:
        passes.append(seconds(make_a_pass))
        for regularizer, times in steps.items():
            with REGULARIZERS[regularizer](optimizer, network):
                optimizer.step()
                times.append(seconds(optimizer.step))
    common = statistics.median(passes[1:])
    step = {regularizer: statistics.median(times[1:]) for regularizer, times in steps.items()}
    return {
        regularizer: (common + each) / (common + step["plain"])
        for regularizer, each in step.items()
        if regularizer != "plain"
    }


def many_tensors() -> nn.Module:
    """1,000 small weights."""
    return nn.ModuleList([nn.Linear(16, 16, bias=False) for _ in range(1000)])


def compare_many_tensors(budget: float) -> dict[str, float]:
    """Return the ratio of step times with 1,000 tensors to clipping with a constant kappa."""

    def make_step(statistics: bool, schedule: bool) -> Callable[[], None]:
        network = many_tensors()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
        for p in network.parameters():
            p.grad = torch.randn_like(p)
        wc.clip_weights(optimizer, network, kappa=2.0, track_clipped=statistics)
        group, number = optimizer.param_groups[0], itertools.count()

        def step() -> None:
            if schedule:
                group["kappa"] = 2.0 + 1e-6 * next(number)
            optimizer.step()

        return step

    steps = {
        "constant kappa": make_step(False, False),
        "statistics": make_step(True, False),
        "changing kappa": make_step(False, True),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(times["statistics"]) < 6:
        for name, step in steps.items():
            times[name] += [seconds(step) for _ in range(3)][1:]
    median = {name: statistics.median(each) for name, each in times.items()}
    return {name: each / median["constant kappa"] for name, each in median.items() if name != "constant kappa"}


def small_generator() -> nn.Module:
    """A generator of transposed convolutions, whose units are in the second dimension of the weights."""
    return nn.Sequential(
        nn.ConvTranspose2d(256, 128, 3), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4), nn.Flatten(), nn.Linear(64 * 49, 10)
    )


def dcgan_generator() -> nn.Module:
    """The generator of DCGAN without normalization, 3.6 million weights."""
    layers = [nn.ConvTranspose2d(i, o, 4, bias=False) for i, o in itertools.pairwise((100, 512, 256, 128, 64, 3))]
    return nn.Sequential(*layers)


def recurrent() -> nn.Module:
    return nn.Sequential(nn.LSTM(128, 256, 2))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "784-300-150-10": (mlp, wc.graded()),
    "4 x 1024": (lambda: nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]), wc.graded()),
    "small generator": (small_generator, wc.graded()),
    "DCGAN generator": (dcgan_generator, wc.graded()),
    "LSTM": (recurrent, wc.graded(output_layers="0.*_l1")),
}


def compare_clips(network: nn.Module, kappa: Any, budget: float) -> float:
    """Return the ratio of clipping with a range per unit to clipping with one kappa, each after a step of Adam."""
    clips = {}
    for name, one in (("one kappa", 2.0), ("graded", kappa)):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        clips[name] = wc.clip_weights(optimizer, network, one).enforce
    adam = torch.optim.Adam(network.parameters(), lr=1e-6, fused=True)
    for p in network.parameters():
        p.grad = torch.randn_like(p)
    times: dict[str, list[float]] = {name: [] for name in clips}
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(times["graded"]) < 20:
        for name, clip in clips.items():
            adam.step()  # fills the CPU caches with other tensors, as in training
            times[name].append(seconds(clip))
    return statistics.median(times["graded"]) / statistics.median(times["one kappa"])


def compare_changing_kappa(network: nn.Module, budget: float) -> float:
    """Return the ratio of clipping with a range per unit and a changing kappa to clipping with a constant kappa."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    clipper = wc.clip_weights(optimizer, network, wc.graded())
    group = optimizer.param_groups[0]
    times: dict[bool, list[float]] = {False: [], True: []}
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(times[True]) < 20:
        for changing, each in times.items():
            group["kappa"] *= 1 + 1e-6 * changing
            each.append(seconds(clipper.enforce))
    return statistics.median(times[True]) / statistics.median(times[False])


def compare_monitor(budget: float, closure: bool = False) -> float:
    """Return the ratio of training time with a monitor at its default interval to training time without its hooks.

    The time in the hooks is measured during one run, because it is smaller than the difference between two runs.
    """
    inside, depth = 0.0, 0

    def timed(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            nonlocal inside, depth
            depth += 1
            began = time.perf_counter()
            method(*args)
            depth -= 1
            inside += (time.perf_counter() - began) * (depth == 0)

        return call

    class Timed(wc.Monitor):
        before_step = timed(wc.Monitor.before_step)
        after_step = timed(wc.Monitor.after_step)
        _before_forward = timed(wc.Monitor._before_forward)
        _after_forward = timed(wc.Monitor._after_forward)

    x, y = torch.randn(32, 784), torch.randint(10, (32,))
    network = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 150), nn.ReLU(), nn.Linear(150, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    Timed(optimizer, network, closure=(lambda: nn.functional.cross_entropy(network(x), y)) if closure else None)
    start = time.perf_counter()
    while (total := time.perf_counter() - start) < budget:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return total / (total - inside)


def attaching(budget: float) -> tuple[float, float]:
    """Return the seconds for one optimizer per parameter of 400, and their ratio to one optimizer for all."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(200)])

    def attach(optimizers: list[Optimizer]) -> None:
        for optimizer in optimizers:
            wc.clip_weights(optimizer, model, kappa=2.0)

    each: list[float] = []
    whole: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(each) < 2:
        whole.append(seconds(lambda: attach([torch.optim.SGD(model.parameters(), lr=0.1)])))
        optimizers: list[Optimizer] = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
        each.append(seconds(lambda optimizers=optimizers: attach(optimizers)))  # type: ignore[misc]
    return statistics.median(each), statistics.median(each) / statistics.median(whole)


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(32, 784), torch.randint(10, (32,))
    regularizers = [regularizer for regularizer in REGULARIZERS if regularizer != "plain"]
    # Most of the time is for clipping, which is the main claim.
    budget = {
        regularizer: (8 if quick else 150) * (0.35 if regularizer in ("clip", "clip by hand") else 0.06)
        for regularizer in regularizers
    }
    ratios: dict[str, float] = {}
    with time_limit(quick):
        for regularizer in regularizers:
            ratios[f"mlp {regularizer}"] = compare_whole_steps(regularizer, x, y, budget[regularizer])
        for name, ratio in compare_many_tensors(2 if quick else 30).items():
            ratios[f"1,000 tensors {name}"] = ratio
        ratios["training with a monitor"] = compare_monitor(4 if quick else 60)
        ratios["training with a monitor of losses"] = compare_monitor(4 if quick else 60, closure=True)
        for name, (make, kappa) in NETWORKS.items():
            ratios[f"graded clip / one kappa, {name}"] = compare_clips(make(), kappa, 0.5 if quick else 10)
        ratios["graded clip, changing kappa / constant"] = compare_changing_kappa(mlp(), 0.5 if quick else 10)
        took, ratios["attaching per parameter"] = attaching(1 if quick else 10)
        print(f"attaching one optimizer to each of 400 parameters takes {took:.2f} s")
        large = resnet18(10)
        print(f"resnet18 has {sum(p.numel() for p in large.parameters()) / 1e6:.1f} million parameters")
        optimizer = torch.optim.SGD(large.parameters(), lr=1e-3)
        images, labels = torch.randn(125, 3, 32, 32), torch.randint(10, (125,))
        for regularizer, ratio in compare_pooled(large, optimizer, images, labels, 6 if quick else 90).items():
            ratios[f"resnet18 {regularizer}"] = ratio
    for name, ratio in ratios.items():
        print_claim(name, ratio, digits=4)
    leave(quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 45 seconds")
    main(parser.parse_args().quick)
