"""Weight clipping in a CleanRL-style PPO loop: one line after the optimizer is created.

The agent's bare parameter `actor_logstd` is skipped; `bounds="paper"` clips it as the paper's code does.

    python examples/cleanrl_ppo.py
"""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import weightclip as wc


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """A policy and a value network."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = self.network(observations, 1, std=1.0)
        self.actor_mean = self.network(observations, actions, std=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    @staticmethod
    def network(inputs: int, outputs: int, std: float) -> nn.Sequential:
        hidden = [layer_init(nn.Linear(inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh()]
        return nn.Sequential(*hidden, layer_init(nn.Linear(64, outputs), std))

    def policy(self, observation: Tensor) -> Normal:
        return Normal(self.actor_mean(observation), self.actor_logstd[0].exp())


def main(
    kappa: float = 3.0,
    total_timesteps: int = 20_480,
    num_steps: int = 2048,
    update_epochs: int = 10,
    num_minibatches: int = 32,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    clip_coef: float = 0.2,
    vf_coef: float = 0.5,
    max_grad_norm: float = 0.5,
) -> Agent:
    """Train on Pendulum-v1."""
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1"))
    env = gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(gym.wrappers.ClipAction(env)), gamma=gamma)

    agent = Agent(env.observation_space.shape[0], env.action_space.shape[0])
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    clipper = wc.clip_weights(optimizer, agent, kappa)  # the only line added for clipping

    obs = torch.zeros(num_steps, *env.observation_space.shape)
    actions = torch.zeros(num_steps, *env.action_space.shape)
    logprobs, rewards, dones, values = (torch.zeros(num_steps) for _ in range(4))
    next_obs, next_done = torch.as_tensor(env.reset(seed=1)[0], dtype=torch.float32), 0.0
    for _ in range(total_timesteps // num_steps):
        returns_of_episodes = []
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                distribution = agent.policy(next_obs)
                actions[step] = distribution.sample()
                logprobs[step] = distribution.log_prob(actions[step]).sum()
                values[step] = agent.critic(next_obs)
            observation, reward, terminated, truncated, info = env.step(actions[step].numpy())
            rewards[step], next_done = float(reward), float(terminated or truncated)
            if terminated or truncated:
                returns_of_episodes.append(float(info["episode"]["r"]))
                observation, _ = env.reset()
            next_obs = torch.as_tensor(observation, dtype=torch.float32)

        with torch.no_grad():  # generalized advantage estimation
            advantages, last, next_value = torch.zeros(num_steps), 0.0, agent.critic(next_obs).squeeze()
            for t in reversed(range(num_steps)):
                alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                value_after = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * value_after * alive - values[t]
                advantages[t] = last = delta + gamma * gae_lambda * alive * last
            returns = advantages + values

        for _ in range(update_epochs):
            for batch in torch.as_tensor(rng.permutation(num_steps)).chunk(num_minibatches):
                distribution = agent.policy(obs[batch])
                ratio = (distribution.log_prob(actions[batch]).sum(1) - logprobs[batch]).exp()
                advantage = advantages[batch]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                pg_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
                v_loss = 0.5 * (agent.critic(obs[batch]).squeeze(1) - returns[batch]).square().mean()
                optimizer.zero_grad()
                (pg_loss + vf_coef * v_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
                optimizer.step()
        print(f"mean episodic return: {np.mean(returns_of_episodes):.0f}")
    print(clipper)
    return agent


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
