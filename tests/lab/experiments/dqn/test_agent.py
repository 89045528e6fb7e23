import pytest
import torch
from short_runs import batch, config

from weightclip.bounds import resolve_bounds
from weightclip.lab.experiments.dqn.agent import Agent
from weightclip.lab.experiments.dqn.dqn import DQN
from weightclip.lab.experiments.dqn.rainbow import Rainbow
from weightclip.lab.networks.q_networks import NoisyLinear

BOTH = pytest.mark.parametrize(("name", "kind"), [("dqn", DQN), ("rainbow", Rainbow)])


def make_agent(name: str, kind: type[Agent], **more: object) -> Agent:
    return kind(config(name, **more), (4, 10, 10), 6, torch.device("cpu"))  # type: ignore[arg-type]


@BOTH
def test_the_seed_determines_initial_weights_and_noise(name: str, kind: type[Agent]) -> None:
    one, same, other = (make_agent(name, kind, seed=seed) for seed in (0, 0, 1))
    for _ in range(2):  # before and after an update, from the same batch
        states = [agent.online.state_dict() for agent in (one, same, other)]
        for (tensor, p), q, r in zip(states[0].items(), states[1].values(), states[2].values()):
            assert torch.equal(p, q), tensor
            assert "sigma" in tensor or not p.any() or not torch.equal(p, r), tensor
        for agent in (one, same, other):
            agent.learn(batch())


@pytest.mark.parametrize("bounds", ["fan_in", "paper"])
def test_every_rainbow_tensor_is_clipped_to_its_layers_bound(bounds: str) -> None:
    agent = make_agent("rainbow", Rainbow, kappa=0.01, bounds=bounds, lr=0.1)
    agent.learn(batch())
    expected = resolve_bounds(agent.online, bounds)
    for name, layer in agent.online.named_modules():
        if isinstance(layer, NoisyLinear):
            own = [expected[f"{name}.{tensor}"].s for tensor, _ in layer.named_parameters()]
            assert own == pytest.approx([layer.in_features**-0.5] * 4)
    for tensor, p in agent.online.named_parameters():
        s = expected[tensor].s
        assert s is not None
        assert p.abs().max().item() == pytest.approx(0.01 * s), tensor  # a box this small is reached immediately


@BOTH
def test_the_agent_uses_a_fused_optimizer_and_channels_last(name: str, kind: type[Agent]) -> None:
    agent = make_agent(name, kind)
    assert agent.optimizer.defaults["fused"]
    weight = agent.online.get_submodule("torso.0").weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


@BOTH
def test_the_target_network_is_updated_periodically(name: str, kind: type[Agent]) -> None:
    agent = make_agent(name, kind, target_update_interval=3, lr=0.01)
    for updates in range(1, 7):
        agent.learn(batch(seed=updates))
        same = all(torch.equal(p, q) for p, q in zip(agent.online.parameters(), agent.target.parameters()))
        assert same == (updates % 3 == 0)


@BOTH
def test_the_state_is_complete(name: str, kind: type[Agent]) -> None:
    one, other = (make_agent(name, kind, lr=0.01, kappa=1.0, seed=seed) for seed in (0, 1))
    for k in range(3):
        one.learn(batch(seed=k))
    other.load_state(one.state())
    for agent in (one, other):
        agent.learn(batch(seed=9))
    for own, theirs in ((one.online, other.online), (one.target, other.target)):
        for (tensor, p), q in zip(own.state_dict().items(), theirs.state_dict().values()):
            assert torch.equal(p, q), tensor
    assert other.updates == 4
