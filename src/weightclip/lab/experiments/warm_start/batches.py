"""Batches of photographs: indexed, normalized and augmented as whole tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from weightclip.lab.data.images import Images

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)
"""Mean and standard deviation of CIFAR-10's channels, as in the paper's code."""

PADDING = 4
"""Maximum shift of a random crop, in pixels."""

_ORDER, _HALVES, _AUGMENTATION, _TEST = range(4)
"""Separate the random streams of one seed."""


def generator(seed: int, *keys: int) -> torch.Generator:
    """An independent generator for each seed and keys."""
    state = np.random.SeedSequence([seed, *keys]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))


def halves(total: int, images: int, stages: int, seed: int) -> list[Tensor]:
    """The rows of each stage: `images` random rows out of `total`, split into as many parts as there are stages."""
    return list(_shuffled(total, seed)[:images].tensor_split(stages))


def rows_to_validate(total: int, images: int, held_out: int, seed: int) -> Tensor:
    """`held_out` random rows that are not among the `images` rows of the stages."""
    return _shuffled(total, seed)[images : images + held_out].sort().values


def _shuffled(total: int, seed: int) -> Tensor:
    return torch.randperm(total, generator=generator(seed, _HALVES))


def rows_to_test(total: int, images: int) -> Tensor:
    """The test rows, the same for every seed."""
    return torch.randperm(total, generator=generator(0, _TEST))[:images].sort().values


class Pixels:
    """All photographs of a split on a device, as bytes.

    Args:
        images: the split.
        device: device of the batches.
    """

    def __init__(self, images: Images, device: torch.device) -> None:
        self._shape = images.pixels.shape[1:]
        # On the CPU this is the memory-mapped file itself, without a copy.
        self._rows = torch.from_numpy(images.pixels.reshape(len(images.pixels), -1)).to(device)
        self.labels = torch.from_numpy(images.labels).to(device, torch.int64)
        deviation = 255 * torch.tensor(STD, device=device)
        self._scale = 1 / deviation
        self._shift = -255 * torch.tensor(MEAN, device=device) / deviation

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(x/255 - mean) / std: rows [n] -> float32 [n, 3, 32, 32], channels last in memory, and labels [n]."""
        pixels = self._rows.index_select(0, rows).view(len(rows), *self._shape).to(torch.float32)
        return torch.addcmul(self._shift, pixels, self._scale).permute(0, 3, 1, 2), self.labels[rows]


def epoch_batches(rows: Tensor, batch_size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """The rows in a new order, in batches. A last batch of one row is dropped, because it has no variance."""
    order = rows[torch.randperm(len(rows), generator=generator(seed, _ORDER, epoch))]
    return (part for part in torch.split(order, batch_size) if len(part) > 1)


def augmented(x: Tensor, seed: int, epoch: int, first: int) -> Tensor:
    """Shift each image by up to 4 pixels, with zero padding, and mirror half of them: [n, 3, h, w] -> [n, 3, h, w].

    `first` is the position of the batch's first image in its epoch.
    """
    draw = generator(seed, _AUGMENTATION, epoch, first)
    n, _, height, width = x.shape
    down, right = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=draw)
    mirrored = torch.rand((n, 1), generator=draw) < 0.5
    columns = torch.arange(width).expand(n, width)
    columns = torch.where(mirrored, width - 1 - columns, columns) + right
    lines = torch.arange(height) + down
    padded = torch.nn.functional.pad(x, [PADDING] * 4)
    images = torch.arange(n)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[images, lines[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)
