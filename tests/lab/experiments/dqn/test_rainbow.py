import numpy as np
import pytest
import torch
from short_runs import batch, config

from weightclip.lab.experiments.dqn.rainbow import Rainbow, project
from weightclip.lab.networks.q_networks import NoisyLinear, draw_noise


def make_agent(**more: object) -> Rainbow:
    given = {"method": "sgd", "lr": 0.1, "atoms": 11, "v_min": -2.0, "v_max": 2.0, **more}
    agent = Rainbow(config("rainbow", **given), (4, 10, 10), 6, torch.device("cpu"))  # type: ignore[arg-type]
    with torch.no_grad():
        for p in agent.target.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    return agent


def by_hand(probabilities: list[float], places: list[float], atoms: list[float]) -> list[float]:
    """Project atom by atom, as in algorithm 1 of Bellemare et al."""
    found = [0.0] * len(atoms)
    step = atoms[1] - atoms[0]
    for probability, place in zip(probabilities, places):
        at = (min(max(place, atoms[0]), atoms[-1]) - atoms[0]) / step
        low, high = int(np.floor(at)), min(int(np.ceil(at)), len(atoms) - 1)
        if low == high:
            found[low] += probability
        else:
            found[low] += probability * (high - at)
            found[high] += probability * (at - low)
    return found


def test_a_distribution_is_projected_atom_by_atom() -> None:
    generator = np.random.default_rng(0)
    atoms = torch.linspace(-10, 10, 51)
    probabilities = torch.from_numpy(generator.dirichlet(np.ones(51), 8)).float()
    places = torch.from_numpy(generator.normal(0, 8, (8, 51))).float()
    places[0], places[1] = atoms, 10.0  # exactly on atoms, including the last
    found = project(probabilities, places, atoms)
    for k in range(8):
        expected = by_hand(probabilities[k].tolist(), places[k].tolist(), atoms.tolist())
        assert found[k].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found.sum(1), torch.ones(8))


@pytest.mark.parametrize("double", [False, True])
def test_targets_match_their_definition(double: bool) -> None:
    agent, sampled = make_agent(double=double), batch()
    found = agent.targets(agent.to_device(sampled))
    following = torch.from_numpy(sampled.states[1])
    online, target = agent.online(following).exp(), agent.target(following).exp()
    atoms = agent.atoms.tolist()
    for k in range(6):
        chooser = (online if double else target)[k]
        means = [sum(p * z for p, z in zip(chooser[a].tolist(), atoms)) for a in range(6)]
        best = int(np.argmax(means))
        places = [sampled.returns[k] + sampled.discounts[k] * z for z in atoms]
        assert found[k].tolist() == pytest.approx(by_hand(target[k, best].tolist(), places, atoms), abs=1e-5)


def test_the_loss_is_the_weighted_cross_entropy_and_the_errors_are_the_priorities() -> None:
    agent, sampled = make_agent(noisy=False), batch()
    targets = agent.targets(agent.to_device(sampled))
    outputs = agent.online(torch.from_numpy(sampled.states[0]))
    errors = [-sum((targets[k] * outputs[k, sampled.actions[k]]).tolist()) for k in range(6)]
    update = agent.learn(sampled)
    assert update.errors.tolist() == pytest.approx(errors, rel=1e-4)
    assert update.loss.item() == pytest.approx(np.mean(sampled.weights * errors), rel=1e-4)


def test_values_are_means_of_the_distributions() -> None:
    agent = make_agent(noisy=False)
    states = torch.from_numpy(batch().states[0])
    expected = (agent.online(states).exp() * torch.linspace(-2, 2, 11)).sum(2)
    torch.testing.assert_close(agent.values(states), expected)


def test_an_update_uses_the_noise_drawn_for_it() -> None:
    agent, same, sampled = make_agent(), make_agent(), batch()
    draw_noise(same.online, same._noise)
    draw_noise(same.target, same._noise)
    targets = same.targets(same.to_device(sampled))
    outputs = same.online(torch.from_numpy(sampled.states[0]))
    errors = [-sum((targets[k] * outputs[k, sampled.actions[k]]).tolist()) for k in range(6)]
    assert agent.learn(sampled).errors.tolist() == pytest.approx(errors, rel=1e-5)


def test_every_update_draws_new_noise() -> None:
    agent = make_agent()
    seen = []
    for k in range(3):
        agent.learn(batch(seed=k))
        seen += [
            tuple(layer.noise_in.tolist())
            for network in (agent.online, agent.target)
            for layer in network.modules()
            if isinstance(layer, NoisyLinear)
        ]
    assert len(set(seen)) == len(seen)


def test_noisy_layers_and_dueling_can_be_disabled() -> None:
    agent = make_agent(noisy=False, dueling=False)
    assert not any(isinstance(layer, NoisyLinear) for layer in agent.online.modules())
    assert agent.online.value is None
