"""A small network that never stops learning: with Adam its weights run away, with clipping they stay in their box.

It tells ten clouds of points apart, one sample at a time. Every 300 samples the coordinates are shuffled, so what
it has learned is wrong and it has to learn anew. Run it with `python examples/runaway.py`.
"""

import argparse
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import nn

import weightclip as wc

CLASSES, INPUTS, PERIOD = 10, 40, 300


def learn(kappa: float, tasks: int, seed: int = 0) -> tuple[list[float], list[float], wc.Clipper]:
    """The online accuracy of each task, the l2 norm of all weights at its end, and the clipper."""
    torch.manual_seed(seed)
    centres = torch.randn(CLASSES, INPUTS)
    model = nn.Sequential(
        nn.Linear(INPUTS, 50), nn.LeakyReLU(), nn.Linear(50, 50), nn.LeakyReLU(), nn.Linear(50, CLASSES)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    clipper = wc.clip_weights(optimizer, model, kappa=kappa)  # the only new line
    accuracy, norm = [], []
    for _ in range(tasks):
        labels = torch.randint(CLASSES, (PERIOD,))
        points = (centres[labels] + 1.5 * torch.randn(PERIOD, INPUTS))[:, torch.randperm(INPUTS)]
        right = 0
        for x, y in zip(points, labels, strict=True):
            optimizer.zero_grad()
            logits = model(x)
            right += int(logits.argmax() == y)
            nn.functional.cross_entropy(logits, y).backward()
            optimizer.step()
        accuracy.append(right / PERIOD)
        norm.append(math.sqrt(sum(p.detach().square().sum().item() for p in model.parameters())))
    return accuracy, norm, clipper


def draw(results: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    """Accuracy and weight norm by task, a line for each method."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for (label, (accuracy, norm)), colour in zip(results.items(), ("#444444", "#D55E00"), strict=True):
        tasks = range(1, len(norm) + 1)
        smooth = [sum(accuracy[max(0, i - 4) : i + 1]) / len(accuracy[max(0, i - 4) : i + 1]) for i in range(len(norm))]
        left.plot(tasks, smooth, color=colour, label=label)
        right.plot(tasks, norm, color=colour, label=label)
    left.set(title="online accuracy (mean of 5 tasks)", xlabel="task", ylim=(0, 0.8))
    right.set(title="l2 norm of the weights", xlabel="task", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(tasks: int, out: Path) -> None:
    """Run both learners, print a summary and draw the picture."""
    torch.set_num_threads(1)
    results = {}
    for label, kappa in (("Adam", math.inf), ("Adam + weight clipping, kappa = 1", 1.0)):
        accuracy, norm, clipper = learn(kappa, tasks)
        results[label] = accuracy, norm
        ten = min(10, tasks)
        first, last = (sum(part) / ten for part in (accuracy[:ten], accuracy[-ten:]))
        print(f"{label}: accuracy {first:.2f} in the first {ten} tasks, {last:.2f} in the last {ten}; ", end="")
        print(f"weight norm {norm[0]:.1f} after the first task, {norm[-1]:.1f} after the last")
    print(f"\n{clipper}\n")
    draw(results, out / "runaway.png")
    print(f"picture: {out / 'runaway.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=60, help="number of tasks (default: 60, half a minute)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory of the picture (default: demo)")
    arguments = parser.parse_args()
    if arguments.tasks < 1:
        parser.error(f"--tasks: got {arguments.tasks}, expected at least 1")
    main(arguments.tasks, arguments.out)
