"""Weight clipping in Stable-Baselines3: pass one callback to `learn`.

It finds every optimizer of the policy and knows the policy's layers, so it works with every agent and policy of
Stable-Baselines3 and sb3-contrib. After `DQN.load`, pass it to `learn` again: clipping resumes with the saved kappa.

    python examples/sb3_dqn.py
"""

import torch
from stable_baselines3 import DQN

from weightclip.integrations.sb3 import ClipCallback


def main(kappa: float = 1.0, steps: int = 2000) -> DQN:
    """Train on CartPole-v1."""
    agent = DQN("MlpPolicy", "CartPole-v1", learning_rate=1e-3, seed=0, device="cpu")
    clip = ClipCallback(kappa, track_clipped=True)
    agent.learn(steps, callback=clip)
    (clipper,) = clip.clippers
    print(clipper)
    print(f"the last step clipped {clipper.clipped_fraction:.1%} of the weights")
    return agent


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
