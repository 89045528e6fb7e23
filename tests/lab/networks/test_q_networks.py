import pytest
import torch

from weightclip.bounds import resolve_bounds
from weightclip.lab.networks.q_networks import FlattenPixels, QNetwork, RainbowNetwork


@pytest.mark.parametrize(
    ("channels", "size", "actions", "count"), [(4, (84, 84), 6, 1_687_206), (4, (10, 10), 6, 132_566)]
)
def test_the_dqn_network_has_the_published_shape(
    channels: int, size: tuple[int, int], actions: int, count: int
) -> None:
    network = QNetwork(channels, size, actions)
    assert network(torch.zeros(2, channels, *size, dtype=torch.uint8)).shape == (2, actions)
    assert sum(p.numel() for p in network.parameters()) == count


def test_pixels_are_scaled_on_request() -> None:
    raw, scaled = QNetwork(4, (10, 10), 3, seed=1), QNetwork(4, (10, 10), 3, scaled=True, seed=1)
    frames = torch.randint(0, 256, (2, 4, 10, 10), dtype=torch.uint8)
    assert not torch.allclose(raw(frames), scaled(frames))
    torch.testing.assert_close(scaled(frames), raw(frames.float() / 255))


def test_flattening_does_not_copy_channels_last_tensors() -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    rows = FlattenPixels()(images)
    assert rows.data_ptr() == images.data_ptr()
    assert torch.equal(rows.view(2, 4, 5, 3), images.permute(0, 2, 3, 1))
    assert torch.equal(FlattenPixels()(images.contiguous()), rows)


def test_dueling_subtracts_the_mean_over_actions() -> None:
    network = RainbowNetwork(4, (10, 10), 3, atoms=5, noisy=False)
    frames = torch.randint(0, 2, (2, 4, 10, 10), dtype=torch.uint8)
    features = network.torso(frames.float())
    advantages = network.advantage(features).view(2, 3, 5)
    values = network.value(features)
    for n in range(2):
        for a in range(3):
            logits = values[n] + advantages[n, a] - sum(advantages[n, b] for b in range(3)) / 3
            torch.testing.assert_close(network(frames)[n, a], logits.log_softmax(0))


def test_without_dueling_there_is_one_head() -> None:
    network = RainbowNetwork(4, (10, 10), 3, atoms=5, dueling=False, noisy=False)
    frames = torch.zeros(2, 4, 10, 10, dtype=torch.uint8)
    expected = network.advantage(network.torso(frames.float())).view(2, 3, 5).log_softmax(2)
    torch.testing.assert_close(network(frames), expected)


def test_rainbows_outputs_are_distributions() -> None:
    network = RainbowNetwork(4, (84, 84), 6)
    out = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert out.shape == (2, 6, 51)
    torch.testing.assert_close(out.exp().sum(2), torch.ones(2, 6))


def test_every_tensor_of_both_networks_is_clipped() -> None:
    for network in (QNetwork(4, (84, 84), 6), RainbowNetwork(4, (84, 84), 6)):
        assert all(bound.s is not None for bound in resolve_bounds(network).values())


def test_the_seed_determines_the_weights() -> None:
    one, same, other = (QNetwork(4, (10, 10), 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.head[0].weight, same.head[0].weight)
    assert not torch.equal(one.head[0].weight, other.head[0].weight)
