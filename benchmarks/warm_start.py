"""Images per second of training on CIFAR-10: a training step, our whole loop, and a plain PyTorch loop.

Our loop is an epoch as in `weightclip run`: batches, training, metrics and progress; evaluation and checkpoints at the
end of an epoch are excluded on both sides.

The plain loop has the same network built from PyTorch's layers, the default memory format, a `DataLoader` that
normalizes each image as torchvision's transforms do, and the fastest number of worker processes. All sides train on
the same images with batch size 125 and ResNet18 for ImageNet, and take turns of a few steps; a ratio is the median of
the ratios of each round, because the speed of a machine drifts. `--quick` makes one step per turn on one thread and
skips the plain loops with workers, which would prepare their batch during the turns of the other sides.

    python benchmarks/warm_start.py [--quick] [--threads N]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median

import numpy as np
import torch
from timing import deadline, leave, median_ratio, print_claim, rounds, time_limit, without_warm_up
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from weightclip.lab.data.images import Images
from weightclip.lab.experiments.warm_start.batches import MEAN, STD, Pixels
from weightclip.lab.experiments.warm_start.config import Config, resolve
from weightclip.lab.experiments.warm_start.training import Trainer, load
from weightclip.lab.networks.resnet import resnet18
from weightclip.lab.networks.small_conv import Conv3x3

BATCH = 125


class NormalizedImages(Dataset[tuple[Tensor, int]]):
    """Images normalized one by one, as with torchvision's ToTensor and Normalize."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._mean, self._std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._images.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(np.array(self._images.pixels[row])).permute(2, 0, 1).contiguous().float().div(255)
        return image.sub_(self._mean).div_(self._std), int(self._images.labels[row])


def plain_network(ours: bool) -> nn.Module:
    """The network with PyTorch's convolutions or with ours."""
    network = resnet18(10)
    if not ours:
        for name, layer in list(network.named_modules()):
            if isinstance(layer, Conv3x3):
                parent = network.get_submodule(name.rpartition(".")[0])
                plain = nn.Conv2d(layer.in_channels, layer.out_channels, 3, layer.stride, padding=1, bias=False)
                setattr(parent, name.rpartition(".")[2], plain)
    return network


def plain_loop(images: Images, workers: int, ours: bool = False) -> Callable[[int], None]:
    """Return a function that makes the given number of steps of a handwritten loop."""
    network = plain_network(ours)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001)
    loader = DataLoader(
        NormalizedImages(images),
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    batches = endless()

    def steps(number: int) -> None:
        right, total = 0, 0.0
        for _ in range(number):
            x, y = next(batches)
            logits = network(x)
            loss = cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += int((logits.argmax(1) == y).sum())

    return steps


def our_loop(train: Images, test: Images, steps: int) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Return our whole loop, with epochs of the given number of steps, and its training step on one batch."""
    config = resolve(Config(method="sgd", stages=1, images=steps * BATCH, epochs=10_000, test_images=1))
    loop_trainer, step_trainer = Trainer(config, train, test), Trainer(config, train, test)
    x, y = Pixels(train, step_trainer.device).batch(torch.arange(BATCH))
    epochs = count()

    def whole(_: int) -> None:
        loop_trainer.train(next(epochs))

    def step(number: int) -> None:
        for _ in range(number):
            step_trainer.step(x, y)

    return whole, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter turns, within 45 s")
    parser.add_argument(
        "--threads", type=int, help="number of PyTorch threads (default: PyTorch's default; 1 with --quick)"
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.threads or quick:  # several threads are slower than one if another process is busy
        torch.set_num_threads(arguments.threads or 1)
    steps, turns, workers = (1, 30, (0,)) if quick else (10, 30, (0, 1, 2))
    times: dict[str, list[float]] = defaultdict(list)
    with time_limit(quick):
        data = load()
        whole, step = our_loop(data.train, data.test, steps)
        sides = {
            "our loop": whole,
            "our step": step,
            **{f"plain loop, {n} workers": plain_loop(data.train, n) for n in workers},
            "plain loop, our network": plain_loop(data.train, 0, ours=True),
        }
        for turn in rounds(turns + 1, deadline(quick)):  # the first round is a warm-up
            order = list(sides) if turn % 2 else list(reversed(sides))
            for name in order:
                began = time.perf_counter()
                sides[name](steps)
                times[name].append((time.perf_counter() - began) / steps)
    medians = {name: median(without_warm_up(own)) for name, own in times.items()}
    print(f"{torch.get_num_threads()} threads, batch {BATCH}, {len(times['our loop'])} turns of {steps} steps")
    for name, seconds in medians.items():
        print(f"  {name}: {BATCH / seconds:.0f} images/s")
    fastest = min((name for name in medians if "workers" in name), key=medians.__getitem__, default="")
    if fastest:
        print(f"fastest plain loop: {fastest.removeprefix('plain loop, ')}")

    def ratio(one: str, other: str) -> float | None:
        return median_ratio(without_warm_up(times[one]), without_warm_up(times[other]))

    print_claim("plain_loop / our_loop", ratio(fastest, "our loop"))
    print_claim("plain_loop_our_network / our_loop", ratio("plain loop, our network", "our loop"))
    print_claim("our_loop / our_step", ratio("our loop", "our step"), digits=3)
    leave(quick)


if __name__ == "__main__":
    main()
