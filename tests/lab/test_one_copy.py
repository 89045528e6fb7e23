from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weightclip.lab.device import pack, to_device, unpack

ARRAYS = (
    np.arange(2 * 3 * 5 * 7, dtype=np.uint8).reshape(2, 3, 5, 7).transpose(0, 3, 1, 2),
    np.array([3, -1, 2**40]),
    np.array([0.5, -np.inf, 1e-30], np.float32),
    np.empty((0, 4), np.float32),
    np.array([True, False]),
)


class Copies(TorchDispatchMode):
    """Counts copies to a device."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_unpack_inverts_pack() -> None:
    tensors = [torch.from_numpy(array) for array in ARRAYS]
    packed = pack(tensors)
    assert packed.dtype == torch.uint8
    assert packed.dim() == 1
    for found, own in zip(unpack(packed, tensors), tensors, strict=True):
        assert found.dtype == own.dtype
        assert torch.equal(found, own)
        assert found.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()


def test_nothing_is_copied_on_the_cpu() -> None:
    for tensor, array in zip(to_device(ARRAYS, torch.device("cpu")), ARRAYS, strict=True):
        assert np.shares_memory(tensor.numpy(), array) or not array.size
        assert np.array_equal(tensor.numpy(), array)


def test_another_device_gets_one_copy() -> None:
    with Copies() as copies:
        found = to_device(ARRAYS, torch.device("meta"))
    assert copies.number == 1
    assert [tensor.device.type for tensor in found] == ["meta"] * len(ARRAYS)
    assert [tuple(tensor.shape) for tensor in found] == [array.shape for array in ARRAYS]
    assert [tensor.element_size() for tensor in found] == [array.itemsize for array in ARRAYS]
