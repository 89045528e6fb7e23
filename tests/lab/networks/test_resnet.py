import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, batch_norm, conv2d, linear, max_pool2d

from weightclip.lab.networks.resnet import Conv1x1, ResNet, resnet18, resnet50


@pytest.fixture(scope="module")
def network() -> ResNet:
    torch.manual_seed(0)
    return resnet50().eval()


def test_resnet50_has_the_known_number_of_parameters(network: ResNet) -> None:
    assert sum(p.numel() for p in network.parameters()) == 25_557_032


def test_parameter_names_match_torchvision(network: ResNet) -> None:
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
def test_the_last_layer_has_2048_nonnegative_inputs(network: ResNet) -> None:
    images = torch.randn(2, 3, 84, 84)
    features = network.features(images)
    assert features.shape == (2, 2048)
    assert features.min() >= 0
    torch.testing.assert_close(network(images), network.fc(features))


@torch.inference_mode()
def test_a_block_adds_to_its_input(network: ResNet) -> None:
    """If its last scale is 0, a block is a ReLU of its shortcut."""
    block = resnet50().eval().layer2[1]
    torch.nn.init.zeros_(block.bn3.weight)
    x = torch.randn(1, 512, 5, 5)
    torch.testing.assert_close(block(x), x.relu())


def test_resnet18_has_the_known_number_of_parameters() -> None:
    assert sum(p.numel() for p in resnet18().parameters()) == 11_689_512
    assert sum(p.numel() for p in resnet18(10, stem="cifar").parameters()) == 11_173_962


def test_resnet18_parameter_names_match_torchvision() -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = ["conv1.weight", *(f"bn1.{name}" for name in norm)]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            for i in (1, 2):
                expected.append(f"layer{stage}.{block}.conv{i}.weight")
                expected += [f"layer{stage}.{block}.bn{i}.{name}" for name in norm]
            if stage > 1 and block == 0:
                expected.append(f"layer{stage}.0.downsample.0.weight")
                expected += [f"layer{stage}.0.downsample.1.{name}" for name in norm]
    assert list(resnet18().state_dict()) == [*expected, "fc.weight", "fc.bias"]


def by_table(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Compute ResNet18 from table 1 of He et al. (2016), with weights named as in torchvision, on [n, 3, 224, 224]."""

    def norm(h: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (
            state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return batch_norm(h, mean, var, scale, shift)

    h = norm(conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1").relu()  # 112x112
    h = max_pool2d(h, 3, 2, 1)  # 56x56
    for stage, size in ((1, 56), (2, 28), (3, 14), (4, 7)):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = conv2d(h, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            inner = norm(inner, f"{name}.bn1").relu()
            inner = norm(conv2d(inner, state[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                h = norm(conv2d(h, state[f"{name}.downsample.0.weight"], stride=2), f"{name}.downsample.1")
            h = (h + inner).relu()
        assert h.shape[1:] == (32 * 2**stage, size, size)
    return linear(adaptive_avg_pool2d(h, 1).flatten(1), state["fc.weight"], state["fc.bias"])


@torch.inference_mode()
def test_resnet18_matches_its_table() -> None:
    network = resnet18().eval()
    for name, value in network.state_dict().items():  # statistics that differ from a new network's
        if "running" in name:
            value.uniform_(0.5, 1.5)
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(network(x), by_table(network.state_dict(), x), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_the_stem_for_cifar_keeps_the_images_size() -> None:
    network = resnet18(10, width=4, stem="cifar").eval()
    x = torch.randn(2, 3, 32, 32)
    assert network.maxpool(network.conv1(x)).shape == (2, 4, 32, 32)
    assert network(x).shape == (2, 10)
    assert network.features(x).shape == (2, 32)
    with pytest.raises(ValueError, match="stem: got 'mnist', expected one of"):
        resnet18(10, stem="mnist")


def test_a_width_scales_all_stages() -> None:
    network = resnet18(10, width=16)
    assert [stage[1].conv2.out_channels for stage in stages(network)] == [16, 32, 64, 128]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_strided_1x1_convolution_equals_pytorchs(stride: int) -> None:
    x = torch.randn(2, 8, 5, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ours, theirs = Conv1x1(8, 3, stride), torch.nn.Conv2d(8, 3, 1, stride, bias=False)
    theirs.load_state_dict(ours.state_dict())
    found, expected = ours(x), theirs(x)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), (x, ours.weight)),
        torch.autograd.grad((expected * weights).sum(), (x, theirs.weight)),
    ):
        torch.testing.assert_close(one, other)
