import itertools
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import plain_ppo
import pytest
import torch
from gymnasium.vector import VectorEnv
from torch.distributions.normal import Normal
from toy_env import LIMIT, NAME, config

from weightclip.lab.checkpoint import from_array
from weightclip.lab.experiments.ppo.config import Config, resolve
from weightclip.lab.experiments.ppo.environments import Environments, Step
from weightclip.lab.experiments.ppo.ppo import Learners, discounted_sums
from weightclip.lab.networks.actor_critic import ActorCritic


def learners(method: str = "adam+wc", seeds: range = range(3), **more: object) -> Learners:
    return Learners([config(method, seed, **more) for seed in seeds])


@pytest.mark.parametrize("method", ["adam", "adam+wc", "adam+sp", "madam", "adam+l2init+wc", "sgd+l2"])
def test_in_lockstep_each_seed_learns_the_same_as_alone(method: str) -> None:
    more = {"decay": 0.01, "sigma": 0.01} if "l2" in method or "sp" in method else {}
    more = {name: value for name, value in more.items() if name == "decay" or "sp" in method}
    given = {"lr": 0.01, **({"kappa": 1.0} if "wc" in method or method == "madam" else {}), **more}
    together = learners(method, range(8), **given)
    alone = [learners(method, range(seed, seed + 1), **given) for seed in range(8)]
    for iteration in range(3):
        rows, episodes = together.iterate(iteration)
        for seed, one in enumerate(alone):
            (row,), own = one.iterate(iteration)
            ours = [(episode.step, episode.length) for episode in episodes if episode.learner == seed]
            assert ours == [(episode.step, episode.length) for episode in own]
            for name in set(row) - {"speed"}:
                assert rows[seed][name] == pytest.approx(row[name], rel=1e-3, abs=1e-4, nan_ok=True), name


@pytest.mark.parametrize(
    ("env", "backend", "hidden"),
    [
        *itertools.product(["Walker2d-v4", "Ant-v5", "InvertedPendulum-v4"], ["fused", "reference"], [(64, 64)]),
        ("Hopper-v4", "fused", (30,)),
        ("Hopper-v4", "fused", (9, 21)),
    ],
)
def test_in_lockstep_each_seed_learns_the_same_as_alone_bit_for_bit_on_mujoco(
    env: str, backend: str, hidden: tuple[int, ...]
) -> None:
    common = {"env": env, "num_steps": 256, "num_minibatches": 4, "update_epochs": 4, "steps": 1024, "hidden": hidden}

    def make(seeds: range) -> Learners:
        return Learners([resolve(Config(**common, backend=backend, seed=seed)) for seed in seeds])

    together, alone = make(range(8)), make(range(5, 6))
    for iteration in range(3):
        rows, (row,) = together.iterate(iteration)[0], alone.iterate(iteration)[0]
        assert torch.equal(together.stack.row(5), alone.stack.row(0))
        for name in set(row) - {"speed"}:
            assert rows[5][name] == pytest.approx(row[name], rel=0, abs=0, nan_ok=True), name


# HalfCheetah is chaotic: rounding errors grow tenfold within some tens of steps. Adam divides gradients by at least its
# eps of 1e-5, so an error of 3e-8 in one of them, a rounding error of float32, moves a weight by up to lr * 3e-3.
@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize(
    ("env", "rollout", "iterations", "lr"), [(NAME, 64, 4, 0.01), ("HalfCheetah-v4", 32, 1, 0.001)]
)
def test_ppo_learns_the_same_as_a_plain_loop_from_the_same_draws(
    env: str, rollout: int, iterations: int, lr: float, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"lr": lr, "vf_coef": 0.3, "gamma": 0.97, "gae_lambda": 0.9, "clip_coef": 0.1, "max_grad_norm": 0.3}
    ours = learners("adam", range(2), env=env, num_steps=rollout, steps=iterations * rollout, backend=backend, **given)
    observations, actions = ours.stack.members[0].actor_mean[0].in_features, ours.stack.members[0].actor_logstd.numel()
    noise, orders = ([np.random.default_rng([seed, key]) for seed in range(2)] for key in range(2))
    seed = 0  # of the plain loop

    class GivenNoise(Normal):
        def sample(self) -> torch.Tensor:
            return self.mean + self.stddev * torch.from_numpy(
                noise[seed].standard_normal((1, actions), dtype=np.float32)
            )

    def shuffle(indices: np.ndarray) -> None:
        indices[:] = orders[seed].permutation(len(indices))

    agents: list[plain_ppo.Agent] = []

    class RecordedAgent(plain_ppo.Agent):
        def __init__(self, envs: VectorEnv, seed: int) -> None:
            super().__init__(envs, seed)
            self.networks = ActorCritic(observations, actions, ours.config.hidden, seed)
            agents.append(self)

    monkeypatch.setattr(plain_ppo, "Normal", GivenNoise)
    monkeypatch.setattr(plain_ppo, "Agent", RecordedAgent)
    monkeypatch.setattr(np.random, "shuffle", shuffle)
    settings = plain_ppo.Settings(num_steps=rollout, num_minibatches=4, update_epochs=2, **given)
    plain = [plain_ppo.train(env, seed, iterations, settings) for seed in range(2)]
    for iteration in range(iterations):
        _, episodes = ours.iterate(iteration)
        for seed, loop in enumerate(plain):
            expected = pytest.approx(next(loop), rel=1e-4)
            assert [one.score for one in episodes if one.learner == seed] == expected
            for mine, theirs in zip(ours.stack.members[seed].parameters(), agents[seed].networks.parameters()):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("clip_values", "normalize"), [(True, True), (False, True), (True, False)])
def test_losses_match_their_definition(clip_values: bool, normalize: bool) -> None:
    ours = learners("adam", range(2), clip_coef=0.1, clip_vloss=clip_values, norm_adv=normalize)
    rollout = ours.collect()
    targets = ours.advantages(rollout)
    with torch.no_grad():  # differs from the acting policy
        ours.stack.weights += 0.1 * torch.randn(ours.stack.weights.shape, generator=torch.Generator().manual_seed(0))
    parts = (rollout.log_probs, targets.advantages, targets.returns, targets.values)
    found = ours._losses(rollout.observations[:, :-1], rollout.actions, torch.stack(parts, dim=2))
    for s, member in enumerate(ours.stack.members):
        means, values = member(rollout.observations[s, :-1])
        policy = Normal(means, member.actor_logstd.exp().expand_as(means))
        ratio = torch.exp(policy.log_prob(rollout.actions[s]).sum(1) - rollout.log_probs[s])
        assert not torch.allclose(ratio, ratio.clamp(0.9, 1.1))  # otherwise the test is vacuous
        own = targets.advantages[s]
        if normalize:
            own = (own - own.mean()) / (own.std() + 1e-8)
        policy_loss = -torch.min(ratio * own, ratio.clamp(0.9, 1.1) * own).mean()
        old, returns, new = targets.values[s], targets.returns[s], values.squeeze(1)
        errors, near_errors = (new - returns) ** 2, (old + (new - old).clamp(-0.1, 0.1) - returns) ** 2
        assert (near_errors > errors + 0.01).any()  # otherwise clipping has no effect
        if clip_values:
            errors = torch.max(errors, near_errors)
        assert found.policy[s].item() == pytest.approx(policy_loss.item(), rel=1e-4)
        assert found.value[s].item() == pytest.approx(0.5 * errors.mean().item(), rel=1e-4)
        assert found.entropy[s].item() == pytest.approx(policy.entropy().sum(1).mean().item(), rel=1e-5)
        kl = ((ratio - 1) - ratio.log()).mean().item()
        assert ((found.ratio - 1) - found.log_ratio).mean(1)[s].item() == pytest.approx(kl, rel=1e-3)


def test_log_probabilities_are_from_the_acting_policy() -> None:
    ours = learners("adam", range(2))
    rollout = ours.collect()
    for s, member in enumerate(ours.stack.members):
        means, _ = member(rollout.observations[s, :-1])
        expected = Normal(means, member.actor_logstd.exp().expand_as(means)).log_prob(rollout.actions[s]).sum(1)
        torch.testing.assert_close(rollout.log_probs[s], expected.detach(), rtol=1e-4, atol=1e-4)


def test_advantages_match_their_definition() -> None:
    generator = np.random.default_rng(0)
    deltas = torch.from_numpy(generator.normal(size=(2, 30)))
    ended = generator.uniform(size=(2, 30)) < 0.2
    factors = torch.from_numpy(0.9 * ~ended)
    found = discounted_sums(deltas, factors)
    for s in range(2):
        for t in range(30):
            total, weight = 0.0, 1.0
            for k in range(t, 30):
                total += weight * deltas[s, k].item()
                if ended[s, k]:
                    break
                weight *= 0.9
            assert found[s, t].item() == pytest.approx(total)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_truncated_episode_ends_unless_it_is_bootstrapped(bootstrap: bool) -> None:
    ours = learners("adam", range(2), bootstrap_truncated=bootstrap, num_steps=128)
    rollout = ours.collect()
    cut = rollout.truncated.bool()
    assert cut.any()
    assert (rollout.ended.bool() & ~cut).any()
    assert not (cut & ~rollout.ended.bool()).any()
    targets = ours.advantages(rollout)
    for s, member in enumerate(ours.stack.members):
        for t in cut[s].nonzero().flatten().tolist():
            last = member.critic(rollout.final_obs[s, t]).item()
            expected = rollout.rewards[s, t].item() + (ours.config.gamma * last if bootstrap else 0.0)
            assert targets.returns[s, t].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert not torch.equal(rollout.final_obs[s, t], rollout.observations[s, t + 1])


def test_an_episode_that_terminates_with_its_last_step_is_not_bootstrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = learners("adam", range(2), bootstrap_truncated=True, num_steps=128)
    step = ours.environments.step

    def both(actions: np.ndarray, stopped: dict[int, str]) -> Step:
        found = step(actions, stopped)
        return replace(found, terminated=found.terminated | found.truncated)  # as reported by Gymnasium's time limit

    monkeypatch.setattr(ours.environments, "step", both)
    rollout = ours.collect()
    assert rollout.ended.sum() > 2 * (128 // LIMIT)
    assert rollout.truncated.sum() == 0
    last = rollout.ended.bool()
    torch.testing.assert_close(ours.advantages(rollout).returns[last], rollout.rewards[last])


def test_each_gradient_is_clipped_separately() -> None:
    ours = learners("adam", range(2), max_grad_norm=0.5)
    ours.stack.gradients.zero_()
    ours.stack.gradients[0, :4] = 3.0
    ours.stack.gradients[1, :4] = 0.1
    before = ours._clip_gradients()
    assert before.tolist() == pytest.approx([6.0, 0.2])
    assert ours.stack.gradients.norm(dim=1).tolist() == pytest.approx([0.5, 0.2], rel=1e-5)


def test_the_learning_rate_is_annealed_linearly() -> None:
    ours = learners("adam", range(1), lr=0.1, anneal_lr=True)
    seen = []
    for iteration in range(4):
        ours.iterate(iteration)
        seen.append(ours.optimizers[0].param_groups[0]["lr"])
    assert seen == pytest.approx([0.1, 0.075, 0.05, 0.025])
    constant = learners("adam", range(1), lr=0.1, anneal_lr=False)
    constant.iterate(3)
    assert constant.optimizers[0].param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("bounds", ["paper", "fan_in"])
def test_weights_stay_in_their_boxes_and_only_the_papers_bounds_clip_log_std(bounds: str) -> None:
    ours = learners("adam+wc", range(2), lr=0.001, kappa=0.5, bounds=bounds)
    for member in ours.stack.members:
        member.actor_logstd.data -= 1
    rows, _ = ours.iterate(0)
    for member in ours.stack.members:
        for name, tensor in member.named_parameters():
            if name.endswith("weight"):
                side = 0.5 / math.sqrt(tensor.shape[1])
                assert tensor.abs().max().item() <= side * (1 + 1e-6), name
        log_std = member.actor_logstd.mean().item()
        assert log_std == pytest.approx(-0.5 / math.sqrt(2) if bounds == "paper" else -1, abs=0.05)
    assert 0.05 < rows[0]["clipped"] <= 1
    assert learners("adam", range(1)).iterate(0)[0][0]["clipped"] == 0


def test_a_seed_with_nonfinite_weights_stops_and_the_others_continue() -> None:
    ours, whole = learners("adam+wc", range(3)), learners("adam+wc", range(3))
    ours.iterate(0)
    whole.iterate(0)
    with torch.no_grad():
        ours.stack.members[1].actor_mean[0].weight[0, 0] = math.nan
    rows, episodes = ours.iterate(1)
    expected, _ = whole.iterate(1)
    assert ours.stopped == {1: "its actions are not finite"}
    assert math.isnan(rows[1]["weight_l2"])
    assert not any(episode.learner == 1 for episode in episodes)
    for s in (0, 2):
        assert rows[s]["weight_l2"] == pytest.approx(expected[s]["weight_l2"], rel=1e-5)
    ours.iterate(2)
    with torch.no_grad():
        ours.stack.members[2].critic[0].weight[0, 0] = math.nan
    ours.iterate(3)
    assert ours.stopped[2] == "its weights are not finite"


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.filterwarnings("error")
def test_a_stopped_seed_is_unchanged_and_does_not_warn(value: float) -> None:
    ours = learners("adam", range(2))
    ours.iterate(0)
    with torch.no_grad():
        ours.stack.members[1].actor_mean[0].weight[:] = value
        ours.stack.members[1].actor_logstd[:] = 100.0
    ours.iterate(1)
    assert list(ours.stopped) == [1]
    before = [{name: array.copy() for name, array in ours.policy(s).items()} for s in (0, 1)]
    ours.iterate(2)
    after = [ours.policy(s) for s in (0, 1)]
    for name in ("mean", "var"):
        np.testing.assert_array_equal(after[1][name], before[1][name])
        assert not np.array_equal(after[0][name], before[0][name])
    for s in (0, 1):
        ours.load_state(s, ours.state(s))  # as in a resumed run; the environment cannot be saved
    for name in ("mean", "var"):
        np.testing.assert_array_equal(ours.policy(1)[name], before[1][name])
        assert not np.array_equal(ours.policy(0)[name], after[0][name])


def test_a_stopped_seed_makes_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = learners("adam", range(4))
    clock = itertools.count()
    monkeypatch.setattr("weightclip.lab.experiments.ppo.ppo.time.perf_counter", lambda: float(next(clock)))
    steps = [4 * ours.config.num_steps, ours.config.num_steps]
    assert ours.iterate(0)[0][0]["speed"] == steps[0]
    ours.stopped = dict.fromkeys((1, 2, 3), "")
    assert ours.iterate(1)[0][0]["speed"] == steps[1]


def test_ppo_improves_the_return() -> None:
    ours = learners(
        "adam", range(2), num_steps=512, num_minibatches=8, update_epochs=10, lr=0.003, steps=20 * 512, anneal_lr=False
    )
    first, *_, last = (np.mean([row["return"] for row in ours.iterate(iteration)[0]]) for iteration in range(12))
    assert last > first + 2


def test_every_restart_begins_another_episode() -> None:
    """The seeds of new episodes come from a generator whose state is saved."""
    first, second, third = (learners("adam", range(1)) for _ in range(3))
    first.iterate(0)
    second.load_state(0, first.state(0))
    third.load_state(0, second.state(0))
    starts = [one.environments._environments[0].unwrapped.at for one in (second, third)]  # type: ignore[attr-defined]
    assert not np.array_equal(*starts)


def test_without_its_environments_state_a_learner_resumes_everything_but_its_episode() -> None:
    ours = learners("adam+sp", range(2), decay=0.01, sigma=0.01)
    ours.iterate(0)
    states = [ours.state(s) for s in range(2)]
    others = [learners("adam+sp", range(2), decay=0.01, sigma=0.01) for _ in range(2)]
    for other in others:
        for s, state in enumerate(states):
            assert other.load_state(s, state) == "the checkpoint has no state of the environment"
        for name, array in other.normalizer.arrays().items():
            if not name.startswith("observations"):  # includes the first observation of a new episode
                np.testing.assert_array_equal(array, ours.normalizer.arrays()[name])
        torch.testing.assert_close(other.stack.weights, ours.stack.weights, rtol=0, atol=0)
        for s in range(2):
            assert len(ours.optimizers[s].state) == len(other.optimizers[s].state) > 0
            for one, same in zip(ours.optimizers[s].state.values(), other.optimizers[s].state.values()):
                assert torch.equal(one["exp_avg"], same["exp_avg"])
                assert one["step"] == same["step"] > 1
            drawn = [own.random() for own in other.generators[s][:2]]
            assert drawn == [deepcopy(own).random() for own in ours.generators[s][:2]]
            for key, generator in enumerate(other.generators[s][:2]):
                from_array(generator, states[s][f"generator/{key}"])
        seeds = [int(deepcopy(own[2]).integers(2**31)) for own in ours.generators]
        first = Environments(ours.config.env, 2).reset(seeds)
        np.testing.assert_array_equal(other._obs, other.normalizer.normalize(first))
    rows = [other.iterate(1)[0] for other in others]
    for one, other in zip(*rows):
        assert {**one, "speed": 0} == {**other, "speed": 0}
