"""A 3x3 convolution that is computed as a matrix product on tiny images.

In the last stages of an ImageNet ResNet with 32x32 inputs, images have 1x1 or 2x2 pixels, and most taps of a 3x3 kernel
(8 of 9 at 1x1) only multiply padding. The rest is a dense map from all input pixels to all output pixels, y = B x, with
the taps in the blocks of B. On a CPU this product is several times as fast as the convolution.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LARGEST = 2
"""Maximum height and width for which the product is faster; above it, the product has more multiplications."""


class Conv3x3(nn.Conv2d):
    """`nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)`, with the same parameters and the same outputs.

    The product is used on CPUs in float32 and float64. With mixed precision or torch.compile, the plain convolution is
    used.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if is_tiny(x) and x.dtype == self.weight.dtype:
            y: Tensor = _Product.apply(x, self.weight, self.stride[0])  # type: ignore[no-untyped-call]
            return y
        return super().forward(x)


def is_tiny(x: Tensor) -> bool:
    """Whether the product is supported and faster for a batch."""
    return (
        x.dim() == 4
        and max(x.shape[2:]) <= LARGEST
        and x.is_cpu
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Product(torch.autograd.Function):
    """x [n, i, h, w], weight [o, i, 3, 3] -> [n, o, h', w'], all with channels last in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        n, inputs, height, width = x.shape
        outputs = weight.shape[0]
        lines, columns = _taps(height, stride), _taps(width, stride)
        out_height, out_width = _size(height, stride), _size(width, stride)
        kernel = weight.permute(0, 2, 3, 1)  # [o, 3, 3, i]
        # At this size every output pixel depends on every input pixel, so all blocks are filled.
        blocks = x.new_empty(out_height, out_width, outputs, height, width, inputs)
        for to_line, line, tap in lines:
            for to_column, column, other in columns:
                blocks[to_line, to_column, :, line, column] = kernel[:, tap, other]
        matrix = blocks.view(out_height * out_width * outputs, height * width * inputs)
        flat = x.permute(0, 2, 3, 1).reshape(n, -1)
        ctx.save_for_backward(flat, matrix)
        ctx.shapes = x.shape, blocks.shape, lines, columns
        return (flat @ matrix.T).view(n, out_height, out_width, outputs).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        flat, matrix = ctx.saved_tensors
        (n, inputs, height, width), shape, lines, columns = ctx.shapes
        rows = gradient.permute(0, 2, 3, 1).reshape(n, -1)
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            of_input = (rows @ matrix).view(n, height, width, inputs).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            blocks = (rows.T @ flat).view(shape)
            kernel = flat.new_zeros(shape[2], 3, 3, inputs)
            for to_line, line, tap in lines:
                for to_column, column, other in columns:
                    kernel[:, tap, other] += blocks[to_line, to_column, :, line, column]
            of_weight = kernel.permute(0, 3, 1, 2)
        return of_input, of_weight, None


def _size(size: int, stride: int) -> int:
    """The size of the output along one side."""
    return (size - 1) // stride + 1


def _taps(size: int, stride: int) -> list[tuple[int, int, int]]:
    """Along one side: the output pixels, the input pixels that they depend on, and the tap between them."""
    pairs = [(out, pixel) for out in range(_size(size, stride)) for pixel in range(size)]
    return [(out, pixel, pixel - out * stride + 1) for out, pixel in pairs]
