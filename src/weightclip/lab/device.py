"""Where to train, and how: the device, and whether bfloat16 is worth it."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from functools import cache

import torch

_PROBE = """
import sys, time, torch
from weightclip.lab.nets.resnet import resnet18
torch.set_num_threads(int(sys.argv[1]))
network = resnet18(10).to(memory_format=torch.channels_last)
x = torch.randn(32, 3, 32, 32).to(memory_format=torch.channels_last)
def seconds(mixed):
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        loss = network(x).float().square().mean()
    loss.backward()
    return time.perf_counter() - began
times = [(seconds(False), seconds(True)) for _ in range(5)][1:]
print(min(plain for plain, _ in times) / min(mixed for _, mixed in times))
"""
_PATIENCE = 120
"""Seconds for the probe."""


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
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ValueError(f"precision: got {precision!r}, but {torch.cuda.get_device_name(device)} has no bfloat16")
        return
    gain = bfloat16_gain(torch.get_num_threads())
    if isinstance(gain, str):
        raise ValueError(f"precision: got {precision!r}, but this CPU fails at it ({gain}); expected 'float32'")
    if gain <= 1:
        raise ValueError(
            f"precision: got {precision!r}, which takes {1 / gain:.1f} times as long here; expected 'float32'"
        )


@cache
def bfloat16_gain(threads: int) -> float | str:
    """How many times as fast as float32 a training step of ResNet18 is in bfloat16 on this CPU, or how that fails.

    In a process of its own, because an instruction that the machine does not allow ends the process.
    """
    command = [sys.executable, "-c", _PROBE, str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE} s"
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return float(done.stdout)
