import torch

from weightclip.clipping import clip_weights
from weightclip.lab.networks.actor_critic import ActorCritic, Stack, batched, layers_of


def test_the_network_has_the_shape_and_initialization_of_ppo() -> None:
    network = ActorCritic(17, 6)
    means, values = network(torch.zeros(5, 17))
    assert (means.shape, values.shape) == ((5, 6), (5, 1))
    assert sum(p.numel() for p in network.parameters()) == 2 * (17 * 64 + 64 + 64 * 64 + 64) + 64 * 6 + 6 + 65 + 6
    first, head = network.actor_mean[2].weight, network.actor_mean[4].weight
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(6), atol=1e-8, rtol=0)
    torch.testing.assert_close(network.critic[4].weight.norm().item(), 1.0, atol=1e-5, rtol=0)
    assert all(layer.bias.abs().max() == 0 for layer in network.critic if isinstance(layer, torch.nn.Linear))


def test_the_seed_determines_the_weights_and_the_global_generator_is_unchanged() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, other, third = ActorCritic(3, 2, seed=1), ActorCritic(3, 2, seed=1), ActorCritic(3, 2, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.critic[0].weight, other.critic[0].weight)
    assert not torch.equal(one.critic[0].weight, third.critic[0].weight)


def test_a_stack_computes_the_same_as_its_members() -> None:
    members = [ActorCritic(3, 2, (8, 8), seed) for seed in range(4)]
    stack = Stack(members)
    x = torch.randn(4, 5, 3)
    for network in ("actor_mean", "critic"):
        found, units = batched(layers_of(stack.tensors(), network), x)
        assert [unit.shape for unit in units] == [(4, 5, 8), (4, 5, 8)]
        for s, member in enumerate(members):
            torch.testing.assert_close(found[s], getattr(member, network)(x[s]))


def test_members_share_weights_and_gradients_with_the_stack() -> None:
    members = [ActorCritic(3, 2, (8,), seed) for seed in range(2)]
    stack = Stack(members)
    found, _ = batched(layers_of(stack.tensors(), "actor_mean"), torch.ones(2, 5, 3))
    (found.sum((1, 2)) * torch.tensor([1.0, 2.0])).sum().backward()
    for s, member in enumerate(members):
        alone = ActorCritic(3, 2, (8,), s)
        ((s + 1) * alone.actor_mean(torch.ones(5, 3)).sum()).backward()
        torch.testing.assert_close(member.actor_mean[0].weight.grad, alone.actor_mean[0].weight.grad)
    optimizer = torch.optim.SGD(members[1].parameters(), lr=1.0)
    clip_weights(optimizer, members[1], kappa=0.1)
    before = stack.weights.detach().clone()
    optimizer.step()
    assert torch.equal(stack.weights[0], before[0])
    assert not torch.equal(stack.weights[1], before[1])
    assert stack.tensors()["actor_mean.0.weight"][1].abs().max() <= 0.1 / 3**0.5
