import pytest
import torch

from weightclip.lab.nets.resnet import ResNet, resnet50


@pytest.fixture(scope="module")
def network() -> ResNet:
    torch.manual_seed(0)
    return resnet50().eval()


def test_it_has_the_known_number_of_parameters(network: ResNet) -> None:
    assert sum(p.numel() for p in network.parameters()) == 25_557_032


def test_its_names_are_those_of_torchvision(network: ResNet) -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{name}" for name in norm)}
    for stage, depth in ((1, 3), (2, 4), (3, 6), (4, 3)):
        for block in (f"layer{stage}.{i}" for i in range(depth)):
            for i in (1, 2, 3):
                expected |= {f"{block}.conv{i}.weight", *(f"{block}.bn{i}.{name}" for name in norm)}
        short = f"layer{stage}.0.downsample"
        expected |= {f"{short}.0.weight", *(f"{short}.1.{name}" for name in norm)}
    assert set(network.state_dict()) == expected


def test_the_stride_is_in_the_3x3_convolution(network: ResNet) -> None:
    strides = [[getattr(stage[0], f"conv{i}").stride[0] for i in (1, 2, 3)] for stage in stages(network)]
    assert strides == [[1, 1, 1], [1, 2, 1], [1, 2, 1], [1, 2, 1]]
    assert [stage[0].downsample[0].stride[0] for stage in stages(network)] == [1, 2, 2, 2]


def stages(network: ResNet) -> list[torch.nn.Sequential]:
    return [network.layer1, network.layer2, network.layer3, network.layer4]


@torch.inference_mode()
def test_the_last_layer_sees_2048_features_that_are_not_negative(network: ResNet) -> None:
    images = torch.randn(2, 3, 84, 84)
    features = network.features(images)
    assert features.shape == (2, 2048)
    assert features.min() >= 0
    torch.testing.assert_close(network(images), network.fc(features))


@torch.inference_mode()
def test_a_block_adds_to_its_input(network: ResNet) -> None:
    """With its last scale at 0, a block is a ReLU of what its shortcut passes on."""
    block = resnet50().eval().layer2[1]
    torch.nn.init.zeros_(block.bn3.weight)
    x = torch.randn(1, 512, 5, 5)
    torch.testing.assert_close(block(x), x.relu())
