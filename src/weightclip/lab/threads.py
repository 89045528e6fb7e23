"""How many threads PyTorch has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """PyTorch's threads on the CPU; None leaves them."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
