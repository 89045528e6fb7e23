import numpy as np
import pytest
import torch
from short_runs import batch, config

from weightclip.lab.experiments.dqn.dqn import DQN


def make_agent(**more: object) -> DQN:
    agent = DQN(config("dqn", **{"method": "sgd", "lr": 0.1, **more}), (4, 10, 10), 6, torch.device("cpu"))  # type: ignore[arg-type]
    with torch.no_grad():  # so that the two networks differ
        for p in agent.target.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    return agent


@pytest.mark.parametrize("double", [False, True])
def test_targets_match_their_definition(double: bool) -> None:
    agent, sampled = make_agent(double=double), batch()
    found = agent.targets(agent.to_device(sampled))
    following = torch.from_numpy(sampled.states[1])
    online, target = agent.online(following), agent.target(following)
    for k in range(6):
        best = int((online if double else target)[k].argmax())
        expected = sampled.returns[k] + sampled.discounts[k] * target[k, best].item()
        assert found[k].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert found[0].item() == pytest.approx(sampled.returns[0])
    assert not torch.equal(online.argmax(1), target.argmax(1))  # otherwise the test is vacuous


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_an_update_descends_the_gradient_of_the_weighted_loss(loss: str) -> None:
    agent, sampled = make_agent(loss=loss), batch()
    targets = agent.targets(agent.to_device(sampled))
    before = agent.online.head[2].bias.detach().clone()
    values = agent.online(torch.from_numpy(sampled.states[0]))
    gradient = torch.zeros(6)
    total = 0.0
    for k in range(6):
        error = values[k, sampled.actions[k]].item() - targets[k].item()
        small = abs(error) < 1
        each = error**2 if loss == "squared" else 0.5 * error**2 if small else abs(error) - 0.5
        slope = 2 * error if loss == "squared" else error if small else np.sign(error)
        total += sampled.weights[k] * each / 6
        gradient[sampled.actions[k]] += sampled.weights[k] * slope / 6
    update = agent.learn(sampled)
    assert update.loss.item() == pytest.approx(total, rel=1e-4)
    torch.testing.assert_close(agent.online.head[2].bias.detach(), before - 0.1 * gradient, rtol=1e-4, atol=1e-5)


def test_actions_are_epsilon_greedy() -> None:
    agent, states = make_agent(), batch(50).states[0]
    best = agent.online(torch.from_numpy(states)).argmax(1).numpy()
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(agent.act(states, 0.0, generator), best)
    assert 0.05 < (agent.act(states, 1.0, generator) == best).mean() < 0.4
    some = np.mean([(agent.act(states, 0.3, generator) != best).mean() for _ in range(50)])
    assert some == pytest.approx(0.3 * 5 / 6, abs=0.04)
