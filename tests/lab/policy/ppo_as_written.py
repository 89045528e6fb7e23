"""PPO for one seed as it is written down, with Gymnasium's wrappers and PyTorch's distributions; nothing is batched."""

from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions.normal import Normal

from weightclip.lab.nets.actor_critic import ActorCritic
from weightclip.lab.policy.config import Config


@dataclass
class Draws:
    """Noise [t, a] of a rollout's actions, and the order of each pass over it."""

    noise: np.ndarray
    orders: list[np.ndarray]


def train(config: Config, network: ActorCritic, draws: Iterator[Draws]) -> Iterator[list[float]]:
    """Learns in place; after each iteration, the returns of the episodes that ended in it."""
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(config.env))
    env = gym.wrappers.ClipAction(env)
    env = gym.wrappers.NormalizeObservation(env)
    env = gym.wrappers.TransformObservation(env, lambda x: np.clip(x, -10, 10), env.observation_space)
    env = gym.wrappers.NormalizeReward(env, gamma=config.gamma)
    env = gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=config.lr, eps=1e-5)
    seen, _ = env.reset(seed=config.seed)
    for iteration in range(config.iterations):
        optimizer.param_groups[0]["lr"] = config.lr * (1 - iteration / config.iterations)
        drawn, ended = next(draws), []
        states, actions, log_probs, rewards, values, dones = [], [], [], [], [], []
        for t in range(config.rollout):
            state = torch.tensor(seen, dtype=torch.float32)
            with torch.no_grad():
                mean, value = network(state)
                policy = Normal(mean, network.actor_logstd[0].exp())
                action = mean + policy.scale * torch.from_numpy(drawn.noise[t])
            seen, reward, terminated, truncated, about = env.step(action.numpy())
            if terminated or truncated:
                ended.append(float(about["episode"]["r"]))
                seen, _ = env.reset()
            for own, one in zip(
                (states, actions, log_probs, rewards, values, dones),
                (state, action, policy.log_prob(action).sum(), reward, value.item(), terminated or truncated),
            ):
                own.append(one)
        with torch.no_grad():
            following = network(torch.tensor(seen, dtype=torch.float32))[1].item()
        advantages, last = np.zeros(config.rollout, np.float32), 0.0
        for t in reversed(range(config.rollout)):
            after = 0.0 if dones[t] else 1.0
            delta = rewards[t] + config.gamma * following * after - values[t]
            advantages[t] = last = delta + config.gamma * config.lam * after * last
            following = values[t]
        parts = [torch.stack(states), torch.stack(actions), torch.stack(log_probs), torch.from_numpy(advantages)]
        parts += [torch.from_numpy(advantages + np.float32(values)), torch.tensor(values)]
        for order in drawn.orders:
            for rows in np.split(order, config.minibatches):
                loss = _loss(config, network, *(part[rows] for part in parts))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), config.gradient_norm)
                optimizer.step()
        yield ended


def _loss(
    config: Config,
    network: ActorCritic,
    states: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    values: Tensor,
) -> Tensor:
    means, found = network(states)
    policy = Normal(means, network.actor_logstd.exp().expand_as(means))
    ratio = torch.exp(policy.log_prob(actions).sum(1) - log_probs)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - config.clip, 1 + config.clip) * advantages).mean()
    found = found.squeeze(1)
    near = values + (found - values).clamp(-config.clip, config.clip)
    error = 0.5 * torch.max((found - returns) ** 2, (near - returns) ** 2).mean()
    return -surrogate + config.value_weight * error - config.entropy_weight * policy.entropy().sum(1).mean()
