"""Device selection, the benefit of bfloat16, and transfers between devices."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_PROBE = """
import sys, time, torch
from weightclip.lab.networks.resnet import resnet18
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
_TIMEOUT = 120
"""Timeout of the probe, in seconds."""


def find_device(name: str) -> torch.device:
    """The device with a name; `auto` is the GPU if there is one."""
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
    """The platform and the GPU or number of threads, for records."""
    if device.type == "cuda":
        return f"{platform.platform()}, {torch.cuda.get_device_name(device)}"
    return f"{platform.platform()}, {torch.get_num_threads()} threads"


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a ValueError if bfloat16 is not faster: some CPUs emulate it, and on some its instructions fail."""
    if precision == "float32":
        return
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ValueError(f"precision: got {precision!r}, but {torch.cuda.get_device_name(device)} has no bfloat16")
        return
    gain = bfloat16_gain(torch.get_num_threads())
    if isinstance(gain, str):
        raise ValueError(f"precision: got {precision!r}, but it fails on this CPU ({gain}); expected 'float32'")
    if gain <= 1:
        raise ValueError(
            f"precision: got {precision!r}, which takes {1 / gain:.1f} times as long here; expected 'float32'"
        )


@cache
def bfloat16_gain(threads: int) -> float | str:
    """The speedup of bfloat16 over float32 for a training step of ResNet18 on this CPU, or an error message.

    It is measured in a separate process, because an illegal instruction kills the process.
    """
    command = [sys.executable, "-c", _PROBE, str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no response within {_TIMEOUT} s"
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return float(done.stdout)


_ALIGNMENT = 16
"""Alignment of packed arrays in bytes, which views of other types require."""


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays on a device; on the CPU they are not copied."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cpu":
        return tensors
    packed = pack(tensors, pinned=device.type == "cuda")
    return unpack(packed.to(device, non_blocking=True), tensors)


def pack(tensors: Sequence[Tensor], pinned: bool = False) -> Tensor:
    """The bytes of the tensors in one tensor. A GPU reads pinned memory without another copy."""
    size = sum(end - begin for begin, end in _offsets(tensors))
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for one, tensor in zip(unpack(packed, tensors), tensors, strict=True):
        one.copy_(tensor)
    return packed


def unpack(packed: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of packed bytes with the types and shapes of `tensors`."""
    return [
        packed[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, (begin, _) in zip(tensors, _offsets(tensors), strict=True)
    ]


def _offsets(tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """The start of each tensor and of the next one, in bytes."""
    begin = 0
    for tensor in tensors:
        end = begin + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        yield begin, end
        begin = end


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of PyTorch's CPU threads within a block; None keeps it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
