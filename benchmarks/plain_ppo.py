"""A single-file PPO for comparison: one environment, Gymnasium's wrappers, one PyTorch call per step.

It follows CleanRL's `ppo_continuous_action.py`: a forward pass and a sampled action at every step, storage in tensors,
advantages computed backward in time, and minibatches of shuffled indices. It is written for this comparison and is not
optimized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions.normal import Normal

from weightclip.lab.experiments.ppo.environments import make_environment
from weightclip.lab.networks.actor_critic import ActorCritic


@dataclass(frozen=True)
class Settings:
    """CleanRL's hyperparameters."""

    num_steps: int = 2048
    num_minibatches: int = 32
    update_epochs: int = 10
    lr: float = 3e-4
    eps: float = 1e-5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def wrapped(name: str, gamma: float) -> gym.Env:
    """An environment with normalized observations and rewards."""
    env: gym.Env = gym.wrappers.FlattenObservation(make_environment(name))
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env = gym.wrappers.ClipAction(env)
    env = gym.wrappers.NormalizeObservation(env)
    env = gym.wrappers.TransformObservation(env, lambda x: np.clip(x, -10, 10), env.observation_space)
    env = gym.wrappers.NormalizeReward(env, gamma=gamma)
    return gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


class Agent(nn.Module):
    """An actor and a critic."""

    def __init__(self, envs: gym.vector.VectorEnv, seed: int) -> None:
        super().__init__()
        shapes = envs.single_observation_space.shape, envs.single_action_space.shape
        self.networks = ActorCritic(*(int(np.prod(shape)) for shape in shapes), seed=seed)

    def value(self, x: Tensor) -> Tensor:
        return self.networks.critic(x)

    def act(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean = self.networks.actor_mean(x)
        policy = Normal(mean, torch.exp(self.networks.actor_logstd.expand_as(mean)))
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action).sum(1), policy.entropy().sum(1), self.networks.critic(x)


def train(name: str, seed: int, iterations: int, settings: Settings | None = None) -> Iterator[list[float]]:
    """Yield the returns of the episodes that ended in each iteration."""
    s = settings or Settings()
    np.random.seed(seed)
    torch.manual_seed(seed)
    same_step = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: wrapped(name, s.gamma)], autoreset_mode=same_step)
    agent = Agent(envs, seed)
    optimizer = torch.optim.Adam(agent.parameters(), lr=s.lr, eps=s.eps)
    shape = (s.num_steps, 1)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions = torch.zeros((*shape, *envs.single_action_space.shape))
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    next_obs = torch.Tensor(envs.reset(seed=seed)[0])
    next_done = torch.zeros(1)
    for iteration in range(iterations):
        optimizer.param_groups[0]["lr"] = (1.0 - iteration / iterations) * s.lr
        episode_returns: list[float] = []
        for step in range(s.num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, log_prob, _, value = agent.act(next_obs)
            values[step], actions[step], log_probs[step] = value.flatten(), action, log_prob
            observation, reward, terminated, truncated, infos = envs.step(action.numpy())
            next_done = torch.Tensor(np.logical_or(terminated, truncated))
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs = torch.Tensor(observation)
            if "final_info" in infos and "episode" in infos["final_info"]:
                episode_returns.append(float(infos["final_info"]["episode"]["r"][0]))
        with torch.no_grad():
            next_value = agent.value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            last = torch.zeros(1)
            for t in reversed(range(s.num_steps)):
                nonterminal = 1.0 - (next_done if t == s.num_steps - 1 else dones[t + 1])
                bootstrap = next_value if t == s.num_steps - 1 else values[t + 1]
                delta = rewards[t] + s.gamma * bootstrap * nonterminal - values[t]
                advantages[t] = last = delta + s.gamma * s.gae_lambda * nonterminal * last
            returns = advantages + values
        rollout = [
            part.reshape(s.num_steps, *part.shape[2:])
            for part in (obs, actions, log_probs, advantages, returns, values)
        ]
        indices = np.arange(s.num_steps)
        size = s.num_steps // s.num_minibatches
        for _ in range(s.update_epochs):
            np.random.shuffle(indices)
            for start in range(0, s.num_steps, size):
                rows = indices[start : start + size]
                learn(agent, optimizer, s, *(part[rows] for part in rollout))
        yield episode_returns
    envs.close()


def learn(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    s: Settings,
    obs: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    values: Tensor,
) -> None:
    """Update on one minibatch."""
    _, new_log_prob, entropy, new_value = agent.act(obs, actions)
    log_ratio = new_log_prob - log_probs
    ratio = log_ratio.exp()
    with torch.no_grad():  # metrics that CleanRL logs
        (-log_ratio).mean()
        ((ratio - 1) - log_ratio).mean()
        ((ratio - 1.0).abs() > s.clip_coef).float().mean().item()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = torch.max(
        -advantages * ratio, -advantages * torch.clamp(ratio, 1 - s.clip_coef, 1 + s.clip_coef)
    ).mean()
    new_value = new_value.view(-1)
    v_clipped = values + torch.clamp(new_value - values, -s.clip_coef, s.clip_coef)
    value_loss = 0.5 * torch.max((new_value - returns) ** 2, (v_clipped - returns) ** 2).mean()
    loss = policy_loss - 0.0 * entropy.mean() + s.vf_coef * value_loss
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), s.max_grad_norm)
    optimizer.step()
