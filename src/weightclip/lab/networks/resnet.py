"""Residual networks (He et al., 2016) with torchvision's names, so that its weights can be loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from weightclip._validation import check_name
from weightclip.lab.networks import STEMS
from weightclip.lab.networks.small_conv import Conv3x3


class BasicBlock(nn.Module):
    """x + (two 3x3 convolutions)(x)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(channels, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = Conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        y: Tensor = self.relu(h + (x if self.downsample is None else self.downsample(x)))
        return y


class Bottleneck(nn.Module):
    """x + (1x1, 3x3, 1x1 convolutions)(x), with 4 times as many channels outside as inside.

    The stride is in the 3x3 convolution, as in torchvision ("v1.5"), not in the first one.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = Conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.relu(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        y: Tensor = self.relu(h + (x if self.downsample is None else self.downsample(x)))
        return y


class Conv1x1(nn.Conv2d):
    """`nn.Conv2d(channels, out, 1, stride, bias=False)`, with the same parameters and the same outputs.

    The input is subsampled before the convolution: on CPUs without AVX-512, oneDNN's backward pass of a strided 1x1
    convolution with fewer than 8 channels writes out of bounds.
    """

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        vertical, horizontal = self.stride
        return conv2d(x[:, :, ::vertical, ::horizontal], self.weight)


def shortcut(channels: int, out: int, stride: int) -> nn.Sequential | None:
    """The projection of x to the shape of the block's output, or None if they are equal."""
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(Conv1x1(channels, out, stride), nn.BatchNorm2d(out))


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """A stem, four stages of blocks and a linear layer.

    The stem for ImageNet is a 7x7 convolution with stride 2 and max-pooling. The stem for the small images of CIFAR is
    a 3x3 convolution.

    Args:
        block: type of the blocks.
        depths: number of blocks in each of the four stages.
        classes: number of outputs.
        width: channels of the first stage; each of the others has twice as many as the previous one.
        stem: "imagenet" or "cifar".
    """

    def __init__(
        self,
        block: Block,
        depths: tuple[int, int, int, int],
        classes: int,
        width: int = 64,
        stem: str = "imagenet",
    ) -> None:
        super().__init__()
        check_name("stem", stem, STEMS)
        small = stem == "cifar"
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(3, width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        out = block.expansion * width
        self.layer1 = _stage(block, width, width, depths[0], stride=1)
        self.layer2 = _stage(block, out, 2 * width, depths[1], stride=2)
        self.layer3 = _stage(block, 2 * out, 4 * width, depths[2], stride=2)
        self.layer4 = _stage(block, 4 * out, 8 * width, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * out, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """The input of the last layer: [n, 3, height, width] -> [n, 8 * width * expansion]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(self.avgpool(x), 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(images))
        return logits


def _stage(block: Block, channels: int, width: int, depth: int, stride: int) -> nn.Sequential:
    first = block(channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


def resnet18(classes: int = 1000, width: int = 64, stem: str = "imagenet") -> ResNet:
    """ResNet with 18 layers and, at full width, 512 features."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, width, stem)


def resnet50(classes: int = 1000) -> ResNet:
    """ResNet with 50 layers and 2048 features."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)
