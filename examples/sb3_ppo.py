"""Weight clipping in Stable-Baselines3's PPO, which creates its own optimizer: pass an optimizer class that clips.

The class is saved with the agent, so clipping continues after `PPO.load`. It sees shapes, not layers: the bare vector
`log_std` is skipped, but with `use_sde=True` it is a matrix and raises an error. `sb3_dqn.py` shows the callback, which
knows the layers.

    python examples/sb3_ppo.py
"""

import torch
from stable_baselines3 import PPO

import weightclip as wc


def main(kappa: float = 3.0, steps: int = 2048) -> PPO:
    """Train on Pendulum-v1."""
    agent = PPO(
        "MlpPolicy",
        "Pendulum-v1",
        n_steps=512,
        policy_kwargs={
            "optimizer_class": wc.clipped(torch.optim.Adam),
            "optimizer_kwargs": {"kappa": kappa, "eps": 1e-5},  # PPO's eps, which SB3 sets only for its default Adam
        },
        seed=0,
        device="cpu",
    )
    agent.learn(steps)
    print(agent.policy.optimizer.clipper)
    return agent


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
