"""Does an offset of the ranges per layer help a residual network? The protocol was fixed before the first run.

Network: h_0 = W_0 x, four blocks h <- h + W_b' relu(W_b h) with 64 channels, and an output layer; 784 inputs, 10
outputs, with biases. Data: the 10,000 bundled digits, pixels in [0, 1]. Two streams of 20 tasks with 625 steps each,
batches of 16 in a random order without repetition: a new permutation of the labels, or of the pixels, per task. Adam,
step size 1e-3.

Settings: kappa = 2, `graded()` and `graded(layer_offset=1)`. Score: online accuracy over all samples, before each step.
Seeds 0 to 2; the difference between the last two is paired by seed, with a 95% Student's t interval. Nothing is chosen.

    python docs/results/ranges/residual.py
"""

import math
import statistics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

import weightclip as wc
from weightclip.lab.data.mnist import MNIST

SETTINGS = {"2": 2.0, "graded()": wc.graded(), "graded(layer_offset=1)": wc.graded(layer_offset=1)}
STREAMS = ("label-permuted", "input-permuted")
SEEDS = (0, 1, 2)
TASKS, STEPS, BATCH, LR = 20, 625, 16, 1e-3
CHANNELS, BLOCKS = 64, 4
T_95 = 4.302652729749462  # Student's t, 2 degrees of freedom


class Block(nn.Module):
    """h + W' relu(W h)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.second(relu(self.first(h)))


def run(stream: str, kappa: object, seed: int) -> float:
    """Online accuracy over all tasks."""
    torch.manual_seed(seed)
    assert MNIST.bundled is not None
    digits = MNIST.bundled(MNIST, "train")
    x, y = torch.from_numpy(digits.inputs).float() / 255, torch.from_numpy(digits.labels).long()
    model = nn.Sequential(nn.Linear(784, CHANNELS), *(Block() for _ in range(BLOCKS)), nn.Linear(CHANNELS, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    wc.clip_weights(optimizer, model, kappa)  # type: ignore[arg-type]
    right = 0
    for _ in range(TASKS):
        labels = torch.randperm(10) if stream == "label-permuted" else torch.arange(10)
        pixels = torch.randperm(784) if stream == "input-permuted" else torch.arange(784)
        for rows in torch.randperm(len(x))[: STEPS * BATCH].split(BATCH):
            logits, target = model(x[rows][:, pixels]), labels[y[rows]]
            right += int((logits.argmax(1) == target).sum())
            optimizer.zero_grad()
            cross_entropy(logits, target).backward()
            optimizer.step()
    return right / (TASKS * STEPS * BATCH)


def main() -> None:
    """Print the scores of each stream, and the paired difference."""
    torch.set_num_threads(1)
    for stream in STREAMS:
        scores = {name: [100 * run(stream, kappa, seed) for seed in SEEDS] for name, kappa in SETTINGS.items()}
        for name, each in scores.items():
            print(f"{stream}, {name}: {statistics.mean(each):.2f}% ({', '.join(f'{one:.2f}' for one in each)})")
        zero, one = list(scores.values())[1:]
        differences = [b - a for a, b in zip(zero, one, strict=True)]
        half = T_95 * statistics.stdev(differences) / math.sqrt(len(differences))
        mean = statistics.mean(differences)
        print(f"{stream}, offset 1 minus 0: {mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]", flush=True)


if __name__ == "__main__":
    main()
