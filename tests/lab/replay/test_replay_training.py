from fractions import Fraction

import numpy as np
import pytest
import torch
from short_runs import config

from weightclip.lab.nets.q_networks import QNetwork
from weightclip.lab.replay.config import Config
from weightclip.lab.replay.training import Trainer, stacked

CPU = torch.device("cpu")


def trained(parts: int = 4, **more: object) -> tuple[Trainer, list[dict[str, float]]]:
    trainer = Trainer(config(**more), CPU)  # type: ignore[arg-type]
    return trainer, [trainer.learn(part) for part in range(parts)]


def without_speed(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if "per_second" not in name} for row in rows]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0, 4.0, 0.3])
@pytest.mark.parametrize("environments", [1, 3])
def test_the_replay_ratio_is_exact_over_the_run(ratio: float, environments: int) -> None:
    trainer, rows = trained(replay_ratio=ratio, environments=environments, warm_up=80)
    steps = trainer.steps
    assert steps == 400 - 400 % environments
    assert trainer.agent.updates == int(Fraction(str(ratio)) * (steps - 80))
    assert rows[-1]["updates"] == trainer.agent.updates


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_a_seed_decides_everything(agent: str) -> None:
    (_, one), (_, same), (_, other) = (trained(agent=agent, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_equal(without_speed(one), without_speed(same))
    assert without_speed(one) != without_speed(other)


def test_a_row_tells_what_was_measured() -> None:
    trainer, rows = trained(method="adam+wc", kappa=0.5)
    assert [row["samples"] for row in rows] == [100, 200, 300, 400]
    last = rows[-1]
    assert last["loss"] > 0
    assert last["weight_l2"] > 0
    assert last["gradient_l2"] > 0
    assert 0 < last["clipped"] < 1
    assert 0 <= last["dormant"] < 1
    assert last["epsilon"] == pytest.approx(1 - 0.95 * 400 / 30_000)
    assert sum(row["episodes"] for row in rows) > 3
    assert last["frames_per_second"] > 0
    assert rows[0]["updates"] == 39  # 60 steps of warm-up, and the 100th step's update comes with the next one
    trainer.close()


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_it_goes_on_with_all_but_the_games(agent: str) -> None:
    trainer, _ = trained(2, agent=agent)
    state = trainer.state()
    rows = []
    for _ in range(2):
        other = Trainer(config(agent), CPU)
        other.load_state(state)
        assert other.steps == 200
        assert len(other.memory) == len(trainer.memory)
        rows.append([other.learn(part) for part in (2, 3)])
        assert other.agent.updates == other.config.updates_after(400)
    np.testing.assert_equal(without_speed(rows[0]), without_speed(rows[1]))


def test_without_its_memory_it_fills_a_new_one_first() -> None:
    trainer, _ = trained(2, save_memory=False)
    state = trainer.state()
    assert not any(name.startswith("memory/") for name in state)
    other = Trainer(config(save_memory=False), CPU)
    other.load_state(state)
    assert len(other.memory) == 0
    other.learn(2)
    other.learn(3)
    assert other.agent.updates == other.config.updates_after(400)


def test_evaluation_disturbs_nothing() -> None:
    (one, _), (other, _) = trained(1), trained(1)
    one.evaluate(7)
    np.testing.assert_equal(without_speed([one.learn(1)]), without_speed([other.learn(1)]))


def test_a_covariance_is_taken_when_it_is_asked_for() -> None:
    trainer, _ = trained(covariance=6, covariance_at=(50, 100))
    found = trainer.covariances()
    assert list(found) == ["50", "100"]
    for matrix in found.values():
        assert matrix.shape == (6, 6)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-6)
    assert not np.allclose(found["50"], found["100"])
    again = Trainer(config(covariance=6, covariance_at=(50, 100)), CPU)
    again.load_state(trainer.state())
    np.testing.assert_array_equal(again.covariances()["50"], found["50"])


def test_stacks_begin_with_their_first_frame() -> None:
    stacks = np.arange(8, dtype=np.uint8).reshape(2, 4, 1, 1)
    frames = np.array([9, 10], np.uint8).reshape(2, 1, 1, 1)
    found = stacked(stacks, frames, np.array([False, True]))
    assert found[:, :, 0, 0].tolist() == [[1, 2, 3, 9], [10, 10, 10, 10]]


def test_what_it_acts_on_is_what_the_memory_gives_back() -> None:
    """Stacks while playing and stacks that are sampled are one thing."""
    trainer = Trainer(
        config(suite="atari", game="SpaceInvaders", frames=40_000, environments=2, memory=3000, warm_up=50), CPU
    )
    acted: dict[bytes, int] = {}
    act = trainer.agent.act

    def noting(states: np.ndarray, epsilon: float, generator: np.random.Generator) -> np.ndarray:
        for state in states:
            acted[state.tobytes()] = 1
        return act(states, 1.0, generator)

    trainer.agent.act = noting  # type: ignore[method-assign]
    trainer.play(600)
    trainer.close()
    sampled = trainer.memory.sample(200, np.random.default_rng(0))
    assert all(state.tobytes() in acted for state in sampled.states[0])
    going_on = sampled.discounts > 0
    assert going_on.sum() > 150
    assert all(state.tobytes() in acted for state in sampled.states[1][going_on])


def test_the_network_is_that_of_the_suite() -> None:
    trainer = Trainer(config(), CPU)
    assert isinstance(trainer.agent.online, QNetwork)
    assert trainer.agent.online.torso[0].out_channels == 16
    assert Config().stack == 4
