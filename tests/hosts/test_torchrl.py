"""torchrl's losses stack the parameters of several critics in tensors that no module owns."""

import pytest
import torch
from torch import nn

import weightclip as wc

pytest.importorskip("torchrl")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore")]


def make_loss() -> tuple[nn.Module, nn.Module, nn.Module]:
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.data import Bounded
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss

    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        spec=Bounded(-torch.ones(2), torch.ones(2), (2,)),
    )

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return self.layers(torch.cat([observation, action], -1))

    critic = ValueOperator(Critic(), in_keys=["observation", "action"])
    return SACLoss(actor, critic, num_qvalue_nets=2), actor, critic


def batch() -> object:
    from tensordict import TensorDict

    n = 8
    return TensorDict(
        {
            "observation": torch.randn(n, 4),
            "action": torch.rand(n, 2) * 2 - 1,
            "next": {
                "observation": torch.randn(n, 4),
                "reward": torch.randn(n, 1) * 100,
                "done": torch.zeros(n, 1, dtype=torch.bool),
                "terminated": torch.zeros(n, 1, dtype=torch.bool),
            },
        },
        [n],
    )


def test_stacked_critics_are_clipped_with_the_bounds_of_one() -> None:
    loss, actor, critic = make_loss()
    optimizer = torch.optim.Adam(loss.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"does not own \d+ of the optimizer's .*weightclip\.stacked"):
        wc.clip_weights(optimizer, nn.ModuleList([actor, critic]), kappa=1.0)
    models = nn.ModuleList([actor, wc.stacked(critic, loss.qvalue_network_params)])
    alpha = [p for p in loss.parameters() if p.dim() == 0]
    clipper = wc.clip_weights(optimizer, models, kappa=1.0, strict=not alpha)
    values = loss(batch())
    sum(values[key] for key in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
    optimizer.step()
    stacked = dict(loss.qvalue_network_params.flatten_keys(".").items())
    first = stacked["module.layers.0.weight"]
    assert first.shape == (2, 16, 6)
    assert first.abs().max().item() == pytest.approx(6**-0.5)
    assert first.abs().max().item() <= 6**-0.5
    assert sum(bound.s is not None for bound in clipper.bounds.values()) == 8


def test_the_loss_module_alone_warns_about_the_layers_it_hides() -> None:
    loss, _, _ = make_loss()
    optimizer = torch.optim.Adam(loss.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="nothing to clip"):
        wc.clip_weights(optimizer, loss, kappa=1.0)
