"""A training run that saves a checkpoint after each step and can exit in the middle of a step."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import weightclip as wc


def main(path: Path, kill_at: int | None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    wc.l2_init(optimizer, 0.1, variant="paper")
    wc.shrink_and_perturb(optimizer, 0.01, 0.05)
    wc.clip_weights(optimizer, model, kappa=0.9, bounds="init")
    done = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    for step in range(done, 12):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        if step == kill_at:
            optimizer.register_step_post_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        optimizer.step()
        state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main(Path(f"{sys.argv[1]}.pt"), int(sys.argv[3]) if len(sys.argv) > 3 else None)
