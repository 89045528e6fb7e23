import gymnasium as gym
import numpy as np
import pytest
from toy_env import NAME

from weightclip.lab.experiments.ppo.environments import Environments, Normalizer


@pytest.mark.parametrize("name", [NAME, "InvertedPendulum-v5"])
def test_normalization_matches_gymnasiums_wrappers(name: str) -> None:
    seeds, gamma = (3, 5), 0.9
    ours, normalizer = Environments(name, len(seeds)), None
    actions = np.random.default_rng(0).uniform(-1, 1, (120, 2, ours.actions))
    wrapped = []
    for seed in seeds:
        env = gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(gym.make(name)), gamma=gamma)
        seen, _ = env.reset(seed=seed)
        wrapped.append((env, [seen]))
    normalizer = Normalizer(len(seeds), ours.observations, gamma)
    now = normalizer.observe(ours.reset(seeds))
    ends = 0
    for t in range(120):
        for i, (_, history) in enumerate(wrapped):
            np.testing.assert_allclose(now[i], np.clip(history[-1], -10, 10), rtol=2e-5, atol=1e-5)
        step = ours.step(actions[t])
        now = normalizer.observe(step.final_obs)
        rewards = normalizer.reward(step.rewards, step.terminated)
        ended = step.terminated | step.truncated
        if ended.any():
            now = normalizer.observe(step.observations, ended)
        for i, (env, history) in enumerate(wrapped):
            low, high = env.action_space.low, env.action_space.high
            seen, reward, terminated, truncated, _ = env.step(np.clip(actions[t, i], low, high))
            assert rewards[i] == pytest.approx(np.clip(reward, -10, 10), rel=1e-5)
            if terminated or truncated:
                ends += 1
                seen, _ = env.reset()
            history.append(seen)
    assert ends > 2
