"""Approximate KL and weight norm of Stable-Baselines3's PPO on Ant-v4, with and without clipping.

The only difference is the optimizer class in `policy_kwargs`. Needs stable-baselines3 and gymnasium[mujoco].

    python examples/sb3_ppo_ant.py [STEPS]
"""

import argparse
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import weightclip as wc
from weightclip.diagnostics import l2_norm, weight_matrices


class RecordKL(BaseCallback):
    """Records the approximate KL and the weight norm after each update."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, float, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.record()

    def _on_training_end(self) -> None:
        self.record()

    def record(self) -> None:
        kl = self.model.logger.name_to_value.get("train/approx_kl")
        if kl is not None:  # not available before the first update
            self.rows.append((self.num_timesteps, kl, l2_norm(weight_matrices(self.model.policy)).item()))


def train(kappa: float | None, steps: int, seed: int = 0) -> list[tuple[int, float, float]]:
    """Train, with clipping if kappa is given; return steps, approximate KL and weight norm after each update."""
    optimizer: dict[str, Any] = {}
    if kappa is not None:
        optimizer = {
            "optimizer_class": wc.clipped(torch.optim.Adam),
            "optimizer_kwargs": {"kappa": kappa, "eps": 1e-5},
        }
    env = VecNormalize(make_vec_env("Ant-v4", seed=seed))
    callback = RecordKL()
    PPO("MlpPolicy", env, policy_kwargs=optimizer, seed=seed, device="cpu").learn(steps, callback=callback)
    env.close()
    return callback.rows


def main(steps: int = 40_960, kappas: tuple[float | None, ...] = (None, 3.0)) -> dict[float | None, Any]:
    """Train with each kappa and print a table."""
    runs = {kappa: train(kappa, steps) for kappa in kappas}
    print("kappa  steps    approximate KL  weight norm")
    for kappa, rows in runs.items():
        for done, kl, norm in (rows[0], rows[len(rows) // 2], rows[-1]):
            print(f"{kappa or '-':>5}  {done:<8,} {kl:<15.4f} {norm:.2f}")
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "steps", metavar="STEPS", type=int, nargs="?", default=40_960, help="steps per run (default: 40960)"
    )
    torch.set_num_threads(1)
    main(parser.parse_args().steps)
