"""Stable-Baselines3's gSDE has a matrix of log-stds, which is not a layer."""

import pytest
import torch

import weightclip as wc

sb3 = pytest.importorskip("stable_baselines3")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
def test_the_log_std_matrix_of_gsde_raises_an_error_by_shape_and_is_skipped_by_module(algorithm: str) -> None:
    options = {"policy": "MlpPolicy", "env": "Pendulum-v1", "use_sde": True, "device": "cpu"}
    policy = {"optimizer_class": wc.clipped(torch.optim.Adam), "optimizer_kwargs": {"kappa": 2.0}}
    with pytest.raises(ValueError, match=r"its entries are all equal, like log-stds.*weightclip\.clip_weights"):
        getattr(sb3, algorithm)(**options, policy_kwargs=policy)

    agent = getattr(sb3, algorithm)(**options, learning_rate=0.1)
    actor = agent.policy.actor if algorithm == "SAC" else agent.policy
    clipper = wc.clip_weights(actor.optimizer, actor, kappa=2.0)
    assert clipper.bounds["log_std"].s is None
    before = actor.log_std.detach().clone()
    clipper.clip()
    assert torch.equal(actor.log_std, before)
