"""Weight clipping in Tianshou's DQN: attach clipping in the optimizer factory, which receives the module.

The algorithm's `state_dict` holds kappa; clipping resumes if it is loaded into an algorithm made with this factory.

    python examples/tianshou_dqn.py
"""

from typing import Any

import gymnasium as gym
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import LRScheduler, TorchOptimizerFactory
from tianshou.data import Collector, ReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import weightclip as wc


class ClippedOptimizerFactory(TorchOptimizerFactory):
    """Creates optimizers of any class that clip the weights of their module."""

    def __init__(self, optim_class: type[torch.optim.Optimizer], *, kappa: float, **kwargs: Any) -> None:
        super().__init__(optim_class, **kwargs)
        self.kappa = kappa
        self.clippers: list[wc.Clipper] = []  # one per optimizer; an actor-critic creates several

    def create_instances(self, module: torch.nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        optimizer, scheduler = super().create_instances(module)
        self.clippers.append(wc.clip_weights(optimizer, module, kappa=self.kappa, track_clipped=True))
        return optimizer, scheduler


def main(kappa: float = 1.0, steps: int = 1000) -> DQN:
    """Train on CartPole-v1."""
    torch.manual_seed(0)
    env = gym.make("CartPole-v1")
    network = Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=(64, 64))
    factory = ClippedOptimizerFactory(torch.optim.Adam, lr=1e-3, kappa=kappa)
    algorithm = DQN(
        policy=DiscreteQLearningPolicy(model=network, action_space=env.action_space, eps_training=0.1),
        optim=factory,
        target_update_freq=100,
    )
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=Collector(algorithm, DummyVectorEnv([lambda: env]), ReplayBuffer(10_000)),
            collection_step_num_env_steps=10,
            epoch_num_steps=steps,
            max_epochs=1,
            verbose=False,
            show_progress=False,
        )
    )
    for clipper in factory.clippers:
        print(clipper)
        print(f"the last step cut {clipper.clipped_fraction:.1%} of the weights")
    return algorithm


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
