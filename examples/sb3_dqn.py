"""Weight clipping in Stable-Baselines3's DQN: attach it to the optimizer of the constructed agent.

It knows the policy's layers, so it suits every policy. `agent.set_parameters(path)` keeps clipping; `DQN.load` makes a
new optimizer, so call `clip_weights` again on the agent that it returns. `sb3_ppo.py` shows the way that survives
`load`.

    python examples/sb3_dqn.py
"""

import torch
from stable_baselines3 import DQN

import weightclip as wc


def main(kappa: float = 1.0, steps: int = 2000) -> DQN:
    """Train on CartPole-v1."""
    agent = DQN("MlpPolicy", "CartPole-v1", learning_rate=1e-3, seed=0, device="cpu")
    clipper = wc.clip_weights(agent.policy.optimizer, agent.policy, kappa=kappa, statistics=True)
    agent.learn(steps)
    print(clipper)
    print(f"the last step cut {clipper.clipped_fraction:.1%} of the weights")
    return agent


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
