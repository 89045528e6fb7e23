"""The metrics of an iteration, recomputed from its rollout for one learner according to their definitions."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions.normal import Normal
from toy_env import config

from weightclip.lab.experiments.ppo.config import Config
from weightclip.lab.experiments.ppo.metrics import METRICS
from weightclip.lab.experiments.ppo.ppo import Learners, Rollout
from weightclip.lab.networks.actor_critic import ActorCritic

GIVEN = {
    "lr": 0.01,
    "clip_coef": 0.1,
    "kappa": 2.0,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "max_grad_norm": 0.3,
    "ent_coef": 0.01,
}


def clip_to_boxes(network: ActorCritic, kappa: float) -> None:
    """Clip as in the authors' code: the fan-in of a bias is its layer's, that of the log-std the number of actions."""
    for part in (network.actor_mean, network.critic):
        for layer in (one for one in part if isinstance(one, nn.Linear)):
            side = kappa / math.sqrt(layer.in_features)
            layer.weight.data.clamp_(-side, side)
            layer.bias.data.clamp_(-side, side)
    side = kappa / math.sqrt(network.actor_logstd.shape[1])
    network.actor_logstd.data.clamp_(-side, side)


def fraction_at_the_bounds(network: ActorCritic, kappa: float) -> float:
    at, entries = 0, 0
    for part in (network.actor_mean, network.critic):
        for layer in (one for one in part if isinstance(one, nn.Linear)):
            side = kappa / math.sqrt(layer.in_features)
            for tensor in (layer.weight, layer.bias):
                at += int((tensor.abs() > 0.99999 * side).sum())
                entries += tensor.numel()
    log_std = network.actor_logstd
    at += int((log_std.abs() > 0.99999 * kappa / math.sqrt(log_std.shape[1])).sum())
    return at / (entries + log_std.numel())


def tanh_outputs(part: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for layer in part:
        x = layer(x)
        if isinstance(layer, nn.Tanh):
            found.append(x.detach().flatten())
    return found


def matrices(part: nn.Sequential) -> list[np.ndarray]:
    return [layer.weight.detach().double().numpy() for layer in part if isinstance(layer, nn.Linear)]


def lipschitz(part: nn.Sequential) -> float:
    return math.prod(float(np.linalg.svd(weight)[1].max()) for weight in matrices(part))


def expected_row(given: Config, network: ActorCritic, rollout: Rollout, s: int) -> dict[str, float]:
    """Train the network in place on learner s's part of a rollout; return the expected metrics."""
    observations, actions, old = rollout.observations[s], rollout.actions[s], rollout.log_probs[s]
    with torch.no_grad():
        critic_values = network.critic(observations).squeeze(1)
    values, advantages, last = critic_values[:-1], torch.zeros(given.num_steps), 0.0
    for t in reversed(range(given.num_steps)):
        nonterminal = 1.0 - rollout.ended[s, t].item()
        next_value = given.gamma * critic_values[t + 1].item() * nonterminal
        delta = rollout.rewards[s, t].item() + next_value - critic_values[t].item()
        advantages[t] = last = delta + given.gamma * given.gae_lambda * nonterminal * last
    returns = advantages + values
    optimizer = torch.optim.Adam(network.parameters(), lr=given.lr, eps=1e-5)
    orders = np.random.default_rng(np.random.SeedSequence([given.seed, 1]))
    clipped, norms, parts = [], [], (network.actor_mean, network.critic)
    for _ in range(given.update_epochs):
        for rows in np.split(orders.permutation(given.num_steps), given.num_minibatches):
            means, found = network(observations[rows])
            policy = Normal(means, network.actor_logstd.exp().expand_as(means))
            log_ratio = policy.log_prob(actions[rows]).sum(1) - old[rows]
            ratio, entropy = log_ratio.exp(), policy.entropy().sum(1).mean()
            own = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
            near = ratio.clamp(1 - given.clip_coef, 1 + given.clip_coef)
            policy_loss = -torch.min(ratio * own, near * own).mean()
            new, before = found.squeeze(1), values[rows]
            near = before + (new - before).clamp(-given.clip_coef, given.clip_coef)
            value_loss = 0.5 * torch.max((new - returns[rows]) ** 2, (near - returns[rows]) ** 2).mean()
            outputs = torch.cat([unit for part in parts for unit in tanh_outputs(part, observations[rows])])
            optimizer.zero_grad()
            (policy_loss + given.vf_coef * value_loss - given.ent_coef * entropy).backward()
            norms.append(nn.utils.clip_grad_norm_(network.parameters(), given.max_grad_norm).item())
            clipped.append(((ratio < 1 - given.clip_coef) | (ratio > 1 + given.clip_coef)).float().mean().item())
            optimizer.step()
            clip_to_boxes(network, given.kappa)
    episodes = [one for one in rollout.episodes if one.learner == s]
    both = [*matrices(network.actor_mean), *matrices(network.critic)]
    return {
        "return": np.mean([one.score for one in episodes]),
        "length": np.mean([one.length for one in episodes]),
        "episodes": len(episodes),
        "approx_kl": (ratio - 1 - log_ratio).mean().item(),
        "old_approx_kl": -log_ratio.mean().item(),
        "clip_fraction": np.mean(clipped),
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.item(),
        "explained_variance": 1 - np.var((returns - values).numpy()) / np.var(returns.numpy()),
        "gradient_l2": np.mean(norms),
        "saturated": (outputs.abs() >= 0.95).float().mean().item(),
        "saturated_90": (outputs.abs() >= 0.90).float().mean().item(),
        "weight_l2": math.sqrt(sum(float((weight**2).sum()) for weight in both)),
        "clipped": fraction_at_the_bounds(network, given.kappa),
        "lipschitz_policy": lipschitz(network.actor_mean),
        "lipschitz_value": lipschitz(network.critic),
        "log_std": network.actor_logstd.mean().item(),
    }


def test_a_row_matches_its_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Learners([config("adam+wc", seed, **GIVEN) for seed in (0, 1)])
    for member in ours.stack.members:  # the policy saturates more than the critic, and its log-std is not 0
        member.actor_mean[0].weight.data *= 3
        member.critic[0].weight.data *= 2
        member.actor_logstd.data -= 0.3
    before = deepcopy(ours.stack.members)
    seen: list[Rollout] = []
    collect = ours.collect
    monkeypatch.setattr(ours, "collect", lambda steps: (seen.append(collect(steps)), seen[0])[1])
    rows, _ = ours.iterate(0)
    for s, row in enumerate(rows):
        expected = expected_row(ours.configs[s], before[s], seen[0], s)
        assert {*expected, "speed"} == {*row} == {*METRICS, "episodes"}
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
        # Otherwise the numbers would not distinguish the definitions.
        assert 0 < row["saturated"] < row["saturated_90"] < 1
        assert 0.05 < row["clip_fraction"] < 0.95
        assert 0 < row["clipped"] < 1
        assert abs(row["old_approx_kl"]) > 1e-3
        assert row["gradient_l2"] > ours.config.max_grad_norm
        assert row["speed"] > 0


def test_the_last_finished_episodes_count_after_resuming() -> None:
    def make() -> Learners:
        return Learners([config("adam", seed, num_steps=4, num_minibatches=2, steps=100 * 4) for seed in (0, 1)])

    ours, other = make(), make()
    for iteration in range(8):  # longer than any episode
        rows, _ = ours.iterate(iteration)
    for s in range(2):
        other.load_state(s, ours.state(s))
    again, _ = other.iterate(8)  # the first steps of an episode, too few to terminate
    for row, same in zip(rows, again):
        assert same["episodes"] == 0
        assert (same["return"], same["length"]) == (row["return"], row["length"])
        assert math.isfinite(row["return"])
    assert rows[0]["return"] != rows[1]["return"]


def test_metrics_are_kept_until_a_seed_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Learners([config("adam+wc", seed) for seed in range(3)])
    first, _ = ours.iterate(0)
    step, steps = ours.environments.step, 0

    def counted(actions: np.ndarray, stopped: dict[int, str]) -> object:
        nonlocal steps
        steps += 1
        return step(actions, stopped)

    def broken(*seen: object) -> np.ndarray:
        """Make the second learner's observations NaN at step 40."""
        return np.where([[False], [steps == 40], [False]], math.nan, observe(*seen))

    monkeypatch.setattr(ours.environments, "step", counted)
    observe = ours.normalizer.observe
    monkeypatch.setattr(ours.normalizer, "observe", broken)
    rows, episodes = ours.iterate(1)
    assert ours.stopped == {1: "its actions are not finite"}
    own = [one for one in episodes if one.learner == 1]
    assert own
    assert all(64 < one.step <= 64 + 40 for one in own)
    assert rows[1]["episodes"] == len(own)
    assert rows[1]["return"] == pytest.approx(np.mean([one.score for one in own]))
    assert math.isnan(rows[1]["approx_kl"])  # the policy was not updated
    assert math.isnan(rows[1]["explained_variance"])
    assert rows[1]["weight_l2"] == pytest.approx(first[1]["weight_l2"])  # the weights are unchanged
    assert math.isfinite(rows[1]["lipschitz_policy"])
    rows, episodes = ours.iterate(2)
    assert all(math.isnan(value) for value in rows[1].values())
    assert not any(one.learner == 1 for one in episodes)


def test_metrics_of_the_rollout_are_kept_if_the_update_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Learners([config("adam", seed) for seed in range(2)])
    update = ours.update

    def breaking(*arguments: object) -> object:
        ours.stack.weights.data[1, 0] = math.nan  # of the critic
        return update(*arguments)

    monkeypatch.setattr(ours, "update", breaking)
    rows, episodes = ours.iterate(0)
    assert ours.stopped == {1: "its weights are not finite"}
    own = [one for one in episodes if one.learner == 1]
    assert rows[1]["episodes"] == len(own) > 0
    assert rows[1]["return"] == pytest.approx(np.mean([one.score for one in own]))
    for name in ("weight_l2", "clipped", "lipschitz_policy", "value_loss", "gradient_l2", "saturated", "clip_fraction"):
        assert math.isnan(rows[1][name]), name
        assert math.isfinite(rows[0][name]), name
