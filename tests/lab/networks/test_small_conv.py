import pytest
import torch
from torch import Tensor, nn

from weightclip.lab.networks.small_conv import Conv3x3, is_tiny


def both(stride: int, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the output and the gradients of input and weight for our layer and for PyTorch's."""
    torch.manual_seed(0)
    ours = Conv3x3(5, 7, stride).double()
    plain = nn.Conv2d(5, 7, 3, stride, padding=1, bias=False).double()
    plain.load_state_dict(ours.state_dict())
    found = []
    for layer in (ours, plain):
        own = x.clone().requires_grad_()
        y = layer(own)
        (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum().backward()
        assert own.grad is not None
        assert layer.weight.grad is not None
        found.append([y, own.grad, layer.weight.grad])
    return found[0], found[1]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (2, 5)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_outputs_and_gradients_equal_a_convolutions(
    stride: int, height: int, width: int, memory_format: torch.memory_format
) -> None:
    x = torch.randn(4, 5, height, width, dtype=torch.float64).to(memory_format=memory_format)
    ours, plain = both(stride, x)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_parameters_equal_a_convolutions() -> None:
    torch.manual_seed(0)
    ours = Conv3x3(4, 6, 2)
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, 3, 2, padding=1, bias=False)
    assert list(ours.state_dict()) == list(plain.state_dict())
    assert torch.equal(ours.weight, plain.weight)


def test_an_input_without_requires_grad_gets_no_gradient() -> None:
    layer = Conv3x3(2, 3)
    layer(torch.randn(2, 2, 1, 1)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad[:, :, 0].abs().max() == 0  # taps that cover only padding


def test_other_inputs_use_the_plain_convolution() -> None:
    tiny = torch.randn(2, 2, 2, 2)
    assert is_tiny(tiny)
    assert not is_tiny(torch.randn(2, 2, 3, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_tiny(tiny)
    assert not is_tiny(tiny.to("meta"))
