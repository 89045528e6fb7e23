"""Residual networks (He et al., 2016) with torchvision's names, so that its weights can be loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
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


def shortcut(channels: int, out: int, stride: int) -> nn.Sequential | None:
    """What brings x to the shape of the block's output, where that differs."""
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """The form for ImageNet: a 7x7 convolution with stride 2 and a max-pool, four stages of blocks, one linear layer.

    Args:
        block: the kind of block.
        depths: blocks in each of the four stages.
        classes: outputs.
    """

    def __init__(self, block: type[Bottleneck], depths: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """[n, 3, height, width] -> [n, 512 * expansion], what the last layer sees."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(self.avgpool(x), 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(images))
        return logits


def _stage(block: type[Bottleneck], channels: int, width: int, depth: int, stride: int) -> nn.Sequential:
    first = block(channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


def resnet50(classes: int = 1000) -> ResNet:
    """50 layers with weights, 2048 features."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)
