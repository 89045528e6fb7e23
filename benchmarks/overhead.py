"""What a remedy adds to a training step: clipping (with and without statistics), L2 Init, Shrink & Perturb.

Two networks, one thread: ResNet18 (11 million parameters, 32x32 images, batch 125, SGD as in the paper) and
784-300-150-10 (batch 32, fused Adam). In each round the network makes one forward and backward pass, and then every
optimizer, with its own remedy or none, makes its step on the same weights and gradients, in changing order. The pass
is the same for all, so its time is pooled:

    ratio = (median pass + median step with the remedy) / (median pass + median plain step)

    python benchmarks/overhead.py [--quick]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import weightclip as wc

REMEDIES: dict[str, Callable[[Optimizer, nn.Module], object]] = {
    "plain": lambda optimizer, model: None,
    "clip": lambda optimizer, model: wc.clip_weights(optimizer, model, kappa=2.0),
    "clip with statistics": lambda optimizer, model: wc.clip_weights(optimizer, model, kappa=2.0, statistics=True),
    "l2_init": lambda optimizer, model: wc.l2_init(optimizer, 1e-3),
    "l2_init as in the paper": lambda optimizer, model: wc.l2_init(optimizer, 1e-3, variant="paper"),
    "shrink_and_perturb": lambda optimizer, model: wc.shrink_and_perturb(optimizer, 1e-6, 1e-6),
    "shrink_and_perturb as in the paper": lambda o, model: wc.shrink_and_perturb(o, 1e-3, 1e-3, variant="paper"),
}


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        straight = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if straight
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (h + self.shortcut(x)).relu()


def resnet18() -> nn.Module:
    sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    stages = [layer for i, o, stride in sizes for layer in (Block(i, o, stride), Block(o, o, 1))]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 300), nn.LeakyReLU(), nn.Linear(300, 150), nn.LeakyReLU(), nn.Linear(150, 10))


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(
    name: str, model: nn.Module, make: Callable[[], Optimizer], x: Tensor, y: Tensor, budget: float
) -> dict[str, float]:
    """The ratio of each remedy to the plain step, from as many rounds as fit into `budget` seconds."""
    optimizers = {remedy: make() for remedy in REMEDIES}
    for remedy, attach in REMEDIES.items():
        attach(optimizers[remedy], model)

    def make_a_pass() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    passes: list[float] = []
    steps: dict[str, list[float]] = {remedy: [] for remedy in REMEDIES}
    order = list(REMEDIES)
    start = time.perf_counter()
    while time.perf_counter() - start < budget or len(passes) < 6:
        passes.append(seconds(make_a_pass))
        for remedy in order:
            steps[remedy].append(seconds(optimizers[remedy].step))
        order = [*order[1:], order[0]]
    # The first rounds make the optimizers' states and warm the caches.
    common = statistics.median(passes[2:])
    plain, *others = ((remedy, statistics.median(times[2:])) for remedy, times in steps.items())
    print(f"{name}, {len(passes)} rounds: pass {common * 1e3:.2f} ms, plain step {plain[1] * 1e3:.3f} ms")
    return {f"{name} {remedy}": (common + each) / (common + plain[1]) for remedy, each in others}


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = mlp()
    ratios = compare(
        "mlp",
        network,
        lambda: torch.optim.Adam(network.parameters(), lr=1e-4, fused=True),
        torch.randn(32, 784),
        torch.randint(10, (32,)),
        5 if quick else 30,
    )
    resnet = resnet18()
    parameters = sum(p.numel() for p in resnet.parameters())
    print(f"resnet18: {parameters / 1e6:.1f} million parameters")
    ratios |= compare(
        "resnet18",
        resnet,
        lambda: torch.optim.SGD(resnet.parameters(), lr=1e-3),
        torch.randn(125, 3, 32, 32),
        torch.randint(10, (125,)),
        25 if quick else 120,
    )
    for claim, ratio in ratios.items():
        print(f"{claim}: {ratio:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 45 seconds")
    main(parser.parse_args().quick)
