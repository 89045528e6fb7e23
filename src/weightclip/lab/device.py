"""Where to train, and how: the device, and whether bfloat16 is worth it."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache

import torch

_PROBE = """
import time, torch
from torch import nn
layers = nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
network = network.to(memory_format=torch.channels_last)
x = torch.randn(64, 64, 8, 8).to(memory_format=torch.channels_last)
def seconds(mixed):
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        loss = network(x).float().square().mean()
    loss.backward()
    return time.perf_counter() - began
times = [(seconds(False), seconds(True)) for _ in range(12)][2:]
print(min(plain for plain, _ in times) / min(mixed for _, mixed in times))
"""


def find_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: got {name!r}, expected auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {name!r}, but PyTorch finds no GPU; expected cpu")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: got {name!r}, expected auto, cpu, cuda or cuda:1")
    return device


def describe_device(device: torch.device) -> str:
    """For records: the machine, and what of it did the work."""
    if device.type == "cuda":
        return f"{platform.platform()}, {torch.cuda.get_device_name(device)}"
    return f"{platform.platform()}, {torch.get_num_threads()} threads"


def check_precision(precision: str, device: torch.device) -> None:
    """A ValueError where bfloat16 is not faster: some CPUs emulate it, some name instructions that fail."""
    if precision == "float32":
        return
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported():
            raise ValueError(f"precision: got {precision!r}, but {torch.cuda.get_device_name(device)} has no bfloat16")
        return
    gain = bfloat16_gain()
    if gain is None:
        raise ValueError(f"precision: got {precision!r}, but this CPU fails at it; expected 'float32'")
    if gain <= 1:
        raise ValueError(
            f"precision: got {precision!r}, which takes {1 / gain:.1f} times as long here; expected 'float32'"
        )


@cache
def bfloat16_gain() -> float | None:
    """How many times as fast as float32 a small training step is in bfloat16 on this CPU; None if it fails.

    In a process of its own, because an instruction that the machine does not allow ends the process.
    """
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    return float(done.stdout) if done.returncode == 0 else None
