import pytest
import torch
from short_runs import batch, config

from weightclip.lab.replay.agent import Agent
from weightclip.lab.replay.dqn import DQN
from weightclip.lab.replay.rainbow import Rainbow


@pytest.mark.parametrize(("name", "kind"), [("dqn", DQN), ("rainbow", Rainbow)])
def test_its_state_is_all_of_it(name: str, kind: type[Agent]) -> None:
    one, other = (
        kind(config(name, method="adam+wc", lr=0.01, kappa=1.0, seed=seed), (4, 10, 10), 6, torch.device("cpu"))
        for seed in (0, 1)
    )
    for k in range(3):
        one.learn(batch(seed=k))
    other.load_state(one.state())
    for made in (one, other):
        made.learn(batch(seed=9))
    for own, theirs in ((one.online, other.online), (one.target, other.target)):
        for (tensor, p), q in zip(own.state_dict().items(), theirs.state_dict().values()):
            assert torch.equal(p, q), tensor
    assert other.updates == 4
