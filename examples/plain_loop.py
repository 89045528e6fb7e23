"""Weight clipping in a plain PyTorch loop, on a stream of tasks: each gives the same inputs new random labels.

Runs with clipping and without (kappa = inf). Without clipping, the first tasks are learned better and the last worse.

    python examples/plain_loop.py
"""

import torch
from torch import nn

import weightclip as wc


def main(kappa: float = 2.0, tasks: int = 15, steps: int = 60) -> nn.Module:
    """Learn `tasks` tasks sequentially with `steps` steps each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    clipper = wc.clip_weights(optimizer, model, kappa=kappa, track_clipped=True)  # the only line added for clipping

    inputs = torch.randn(128, 16)
    for task in range(1, tasks + 1):
        labels = torch.randint(10, (128,))
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"task {task}: loss {loss.item():.3f}, the last step cut {clipper.clipped_fraction:.1%} of the weights")
    print(clipper)
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
    main(kappa=float("inf"))
