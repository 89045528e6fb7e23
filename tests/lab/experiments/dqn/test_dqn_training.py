import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scripted_games import Event, Scripted, places
from short_runs import config

from weightclip.lab.experiments.dqn import training
from weightclip.lab.experiments.dqn.agent import Update
from weightclip.lab.experiments.dqn.config import Config
from weightclip.lab.experiments.dqn.environments import Step
from weightclip.lab.experiments.dqn.replay_buffer import Batch
from weightclip.lab.experiments.dqn.training import Trainer, stacked
from weightclip.lab.networks.q_networks import QNetwork, noise_disabled, noisy_layers

CPU = torch.device("cpu")


def trained(parts: int = 4, **more: object) -> tuple[Trainer, list[dict[str, float]]]:
    trainer = Trainer(config(**more), CPU)  # type: ignore[arg-type]
    return trainer, [trainer.learn(part) for part in range(parts)]


def without_speed(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if "per_second" not in name} for row in rows]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0, 4.0, 0.3])
@pytest.mark.parametrize("environments", [1, 3])
def test_the_replay_ratio_is_exact_over_the_run(ratio: float, environments: int) -> None:
    trainer, rows = trained(replay_ratio=ratio, num_envs=environments, learning_starts=80)
    steps = trainer.steps
    assert steps == 400 - 400 % environments
    assert trainer.agent.updates == int(Fraction(str(ratio)) * (steps - 80))
    assert rows[-1]["updates"] == trainer.agent.updates


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_runs_are_deterministic(agent: str) -> None:
    (_, one), (_, same), (_, other) = (trained(agent=agent, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_equal(without_speed(one), without_speed(same))
    assert without_speed(one) != without_speed(other)


def test_a_row_contains_the_metrics() -> None:
    trainer, rows = trained(method="adam+wc", kappa=0.5)
    assert [row["samples"] for row in rows] == [100, 200, 300, 400]
    last = rows[-1]
    assert last["training_loss"] > 0
    assert last["weight_l2"] > 0
    assert last["gradient_l2"] > 0
    assert 0 < last["clipped"] < 1
    assert 0 <= last["dormant"] < 1
    assert last["exploration"] == pytest.approx(1 - 0.95 * 400 / 30_000)
    assert sum(row["ended"] for row in rows) > 3
    assert last["frames_per_second"] > 0
    assert (
        rows[0]["updates"] == 39
    )  # learning starts after 60 steps, and the update of step 100 is made with the next step
    trainer.close()


def test_a_row_contains_means_over_its_part() -> None:
    trainer = Trainer(config(method="adam", replay_ratio=0.5), CPU)
    learn, receive, updates, episodes = trainer.agent.learn, trainer.envs.receive, [], []

    def recording_learn(batch: Batch) -> Update:
        updates.append(learn(batch))
        return updates[-1]

    def recording_receive() -> Step:
        step = receive()
        episodes.extend(step.episodes)
        return step

    trainer.agent.learn = recording_learn  # type: ignore[method-assign]
    trainer.envs.receive = recording_receive  # type: ignore[method-assign]
    for part in range(3):
        updates.clear()
        episodes.clear()
        row = trainer.learn(part)
    assert row["updates"] == trainer.agent.updates == int(0.5 * (299 - 60))
    assert len(updates) == 50
    assert row["training_loss"] == pytest.approx(np.mean([one.loss for one in updates]), rel=1e-5)
    assert row["q"] == pytest.approx(np.mean([one.outputs.max(1).values.mean() for one in updates]), rel=1e-5)
    assert row["ended"] == len(episodes) > 1
    assert (row["return"], row["length"]) == pytest.approx(tuple(np.mean(episodes, axis=0)))
    weights = [p for p in trainer.agent.online.parameters() if p.dim() > 1]
    assert row["weight_l2"] == pytest.approx(math.sqrt(sum(p.square().sum().item() for p in weights)))
    assert row["gradient_l2"] == pytest.approx(math.sqrt(sum(p.grad.square().sum().item() for p in weights)))
    assert row["frames_per_second"] == pytest.approx(2 * row["updates_per_second"])
    trainer.close()


def test_settings_are_passed_to_the_replay_buffer_and_the_network() -> None:
    trainer = Trainer(config("rainbow", alpha=0.5, noisy_sigma=0.3, scale_pixels=True), CPU)
    for layer in noisy_layers(trainer.agent.online):
        torch.testing.assert_close(layer.sigma_bias, torch.full_like(layer.sigma_bias, 0.3 / layer.in_features**0.5))
    assert trainer.agent.online.scale == Trainer(config(scale_pixels=True), CPU).agent.online.scale == 1 / 255
    assert Trainer(config("rainbow"), CPU).agent.online.scale == Trainer(config(), CPU).agent.online.scale == 1
    trainer.play(400)
    assert len(trainer.replay_buffer) <= 300
    drawn = trainer.replay_buffer.sample(2000, np.random.default_rng(0)).indices
    trainer.replay_buffer.update_priorities(drawn, np.where(drawn % 2, 16.0, 1.0))
    weights = trainer.replay_buffer.sample(200, np.random.default_rng(0), beta=1.0).weights
    assert np.unique(weights.round(4)).tolist() == [0.25, 1.0]  # from the priorities 16^0.5 and 1^0.5
    trainer.close()


def test_rainbows_noise_and_initial_weights_have_different_seeds() -> None:
    noise = Trainer(config("rainbow", seed=3), CPU).agent._noise  # type: ignore[attr-defined]
    first = torch.randn(1000, generator=noise)
    assert not torch.allclose(first, torch.randn(1000, generator=torch.Generator().manual_seed(3)))


def test_progress_is_reported_after_learning_starts() -> None:
    reported: list[int] = []
    trainer = Trainer(config(learning_starts=150), CPU)
    trainer.learn(0, lambda steps, score: reported.append(steps))
    assert reported == [100]  # at the end of the part
    trainer.learn(1, lambda steps, score: reported.append(steps))
    assert reported == [100, 200, 200]
    trainer.close()


def without_games(trainer: Trainer) -> dict[str, Any]:
    """Return the state of a trainer whose games cannot be saved."""
    return {name: array for name, array in trainer.state().items() if not name.startswith("games/")}


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
@pytest.mark.parametrize("game", ["asterix", "breakout", "freeway", "seaquest", "space_invaders"])
def test_training_resumes_bit_for_bit(agent: str, game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_EVAL_STEPS", 20)
    more = {"game": game, "buffer_size": 150, "num_envs": 2}
    trainer, _ = trained(2, agent=agent, **more)
    other = Trainer(config(agent, **more), CPU)
    other.load_state(trainer.state())
    assert other.restarted is None
    for part in (2, 3):
        np.testing.assert_equal(without_speed([other.learn(part)]), without_speed([trainer.learn(part)]))
    np.testing.assert_equal(other.state(), trainer.state())


def test_games_saved_in_another_format_restart() -> None:
    trainer, _ = trained(1)
    other = Trainer(config(), CPU)
    other.load_state({**trainer.state(), "games/version": np.array(0)})
    assert other.restarted == "environment: got a state of format 0, expected 1"
    other.learn(1)


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_without_saved_games_everything_else_resumes(agent: str) -> None:
    trainer, _ = trained(2, agent=agent)
    state = without_games(trainer)
    rows = []
    for _ in range(2):
        other = Trainer(config(agent), CPU)
        other.load_state(state)
        assert other.restarted == "the checkpoint has no games"
        assert other.steps == 200
        assert len(other.replay_buffer) == 200  # includes the unfinished games, which are truncated
        rows.append([other.learn(part) for part in (2, 3)])
        assert other.agent.updates == other.config.updates_after(400)
    np.testing.assert_equal(without_speed(rows[0]), without_speed(rows[1]))


def test_without_saved_games_training_resumes_with_the_next_random_draws() -> None:
    trainer, _ = trained(2)
    other = Trainer(config(), CPU)
    other.load_state(without_games(trainer))
    trainer._start_episodes()  # as in the other trainer
    for key, generator in trainer._generators.items():
        assert generator.bit_generator.state == other._generators[key].bit_generator.state


def test_training_resumes_with_the_last_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "evaluate", lambda self, part: 0.0)
    more = {"points": 200, "replay_ratio": 0.01}
    trainer, rows = trained(100, **more)
    other = Trainer(config(**more), CPU)  # type: ignore[arg-type]
    other.load_state(without_games(trainer))
    row = other.learn(100)  # two steps of a new game and no update
    assert (row["ended"], row["updates"]) == (0, rows[-1]["updates"])
    for name in ("return", "length", "training_loss", "q", "gradient_l2"):
        assert row[name] == rows[-1][name]
    assert row["length"] > 0
    assert row["training_loss"] > 0


@pytest.fixture
def started_seeds(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the seeds of all games started from now on."""
    found: list[list[int]] = []
    make_environments = training.make_environments

    def make(*arguments: Any) -> Any:
        games = make_environments(*arguments)
        reset = games.reset
        games.reset = lambda seeds: (found.append(list(seeds)), reset(seeds))[1]  # type: ignore[method-assign]
        return games

    monkeypatch.setattr(training, "make_environments", make)
    return found


def test_without_saved_games_training_resumes_in_new_games(started_seeds: list[list[int]]) -> None:
    state = without_games(Trainer(config(), CPU))
    Trainer(config(), CPU).load_state(state)
    first, again, later = started_seeds
    assert first == again != later


def test_each_evaluation_uses_new_games(started_seeds: list[list[int]]) -> None:
    trainers = [Trainer(config(seed=seed), CPU) for seed in (0, 0, 1)]
    training = {seed for seeds in started_seeds for seed in seeds}
    started_seeds.clear()
    for trainer, part in ((trainers[0], 0), (trainers[1], 0), (trainers[0], 1), (trainers[2], 0)):
        trainer.evaluate(part)
    first, same, later, others = started_seeds
    assert first == same
    assert len({*first, *later, *others}) == 6
    assert training.isdisjoint({*first, *later, *others})


def test_training_and_evaluation_use_the_configured_games(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []
    make_environments = training.make_environments
    monkeypatch.setattr(
        training, "make_environments", lambda *given: (requested.append(given), make_environments(*given))[1]
    )
    Trainer(config(num_envs=3, sticky_action_prob=0.3), CPU).evaluate(0)
    assert requested == [("minatar", "breakout", 3, 0.3), ("minatar", "breakout", 2, 0.3)]


def test_dormant_units_are_measured_without_noise() -> None:
    trainer, _ = trained(1, agent="rainbow")
    assert all(layer.noise_in.any() for layer in noisy_layers(trainer.agent.online))
    values = trainer.agent.values

    def checked_values(states: torch.Tensor) -> torch.Tensor:
        assert not any(layer.noise_in.any() or layer.noise_out.any() for layer in noisy_layers(trainer.agent.online))
        return values(states)

    trainer.agent.values = checked_values  # type: ignore[method-assign]
    assert 0 <= trainer._network_metrics()["dormant"] <= 1


def test_without_a_saved_replay_buffer_training_fills_a_new_one_first() -> None:
    trainer, _ = trained(2, save_buffer=False)
    state = trainer.state()
    assert not any(name.startswith("memory/") for name in state)
    other = Trainer(config(save_buffer=False), CPU)
    other.load_state(state)
    assert len(other.replay_buffer) == 0
    other.learn(2)
    other.learn(3)
    assert other.agent.updates == other.config.updates_after(400)


@pytest.mark.parametrize("replay_ratio", [0.25, 4.0])
def test_missed_updates_are_spread_over_later_steps(replay_ratio: float) -> None:
    more = {"save_buffer": False, "num_envs": 2, "replay_ratio": replay_ratio}
    trainer, _ = trained(2, **more)
    other = Trainer(config(**more), CPU)  # type: ignore[arg-type]
    other.load_state(trainer.state())
    before, made = other.agent.updates, []
    train = other.train

    def recording_train(updates: int) -> torch.Tensor:
        made.append(updates)
        return train(updates)

    other.train = recording_train  # type: ignore[method-assign]
    for part in (2, 3):
        other.learn(part)
    assert sum(made[:30]) == 0  # 60 steps until the replay buffer has `learning_starts` steps again
    assert max(made) <= other.config.max_updates == max(2, 4 * replay_ratio)
    assert other.agent.updates == before + sum(made) == other.config.updates_after(400)


def test_missed_updates_are_made_up_by_the_end() -> None:
    more = {"save_buffer": False, "points": 10, "n_step": 1}
    trainer, _ = trained(9, **more)
    other = Trainer(config(**more), CPU)  # type: ignore[arg-type]
    other.load_state(trainer.state())
    other.learn(9)  # 40 steps, fewer than `learning_starts`
    assert other.agent.updates == other.config.updates_after(400)


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_evaluation_does_not_affect_training(agent: str) -> None:
    (one, rows), other = trained(agent=agent), Trainer(config(agent), CPU)
    other.evaluate = lambda part: math.nan  # type: ignore[method-assign]
    alone = [other.learn(part) for part in range(4)]
    for row in (*rows, *alone):
        row["test_return"] = 0.0
    np.testing.assert_equal(without_speed(rows), without_speed(alone))
    for p, q in zip(one.agent.online.state_dict().values(), other.agent.online.state_dict().values()):
        assert torch.equal(p, q)


def test_a_covariance_is_measured_at_the_configured_points() -> None:
    trainer, _ = trained(covariance=6, covariance_at=(50, 100))
    found = trainer.covariances()
    assert list(found) == ["50", "100"]
    for matrix in found.values():
        assert matrix.shape == (6, 6)
        np.testing.assert_array_equal(matrix, matrix.T)
    assert not np.allclose(found["50"], found["100"])
    again = Trainer(config(covariance=6, covariance_at=(50, 100)), CPU)
    again.load_state(trainer.state())
    np.testing.assert_array_equal(again.covariances()["50"], found["50"])


def test_without_transitions_there_is_no_covariance() -> None:
    more = {"points": 400, "n_step": 10, "covariance": 6, "covariance_at": (1,), "eval_episodes": 1}
    trainer, _ = trained(4, **more)
    assert trainer.covariances() == {}


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_the_covariance_matches_gradients_computed_one_by_one(agent: str) -> None:
    trainer, _ = trained(2, agent=agent, method="adam", covariance=6)
    learner, drawn = trainer.agent, []
    sample_uniformly = trainer.replay_buffer.sample_uniformly

    def recording_sample(number: int, generator: np.random.Generator) -> Batch:
        drawn.append(sample_uniformly(number, generator))
        return drawn[-1]

    trainer.replay_buffer.sample_uniformly = recording_sample  # type: ignore[method-assign]
    found = trainer.covariance()
    gradients = []
    with noise_disabled(learner.online, learner.target):
        for k in range(6):
            names = ("actions", "returns", "discounts", "weights", "indices")
            one = {name: getattr(drawn[0], name)[k : k + 1] for name in names}
            batch = learner.to_device(Batch(drawn[0].states[:, k : k + 1], **one))
            targets = learner.targets(batch)
            learner.online.zero_grad()
            learner.errors(learner.online(batch.states), batch.actions, targets).sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in learner.online.parameters() if p.grad is not None]))
    directions = torch.nn.functional.normalize(torch.stack(gradients).double(), dim=1)
    torch.testing.assert_close(found, directions @ directions.T, rtol=1e-4, atol=1e-4)


WHOLE = (Event(3.0), Event(-2.0, lost=True), Event(0.5), Event(7.0, terminated=True))
CUT = (Event(1.0), Event(4.0), Event(0.0, truncated=True))


def scripted_trainer(monkeypatch: pytest.MonkeyPatch, *scripts: Sequence[Event], **more: Any) -> Trainer:
    """Create a trainer on scripted games."""
    monkeypatch.setattr(training, "make_environments", lambda *_: Scripted(*scripts))
    lives = more.pop("terminal_on_life_loss", True)  # MinAtar's games have no lives, but these do
    return Trainer(replace(config(num_envs=len(scripts), **more), terminal_on_life_loss=lives), CPU)


@pytest.mark.parametrize("clip_rewards", [False, True])
@pytest.mark.parametrize("lives", [False, True])
def test_rewards_and_terminations_are_stored_as_configured(
    monkeypatch: pytest.MonkeyPatch, clip_rewards: bool, lives: bool
) -> None:
    more = {"n_step": 1, "gamma": 0.5, "clip_rewards": clip_rewards, "terminal_on_life_loss": lives}
    trainer = scripted_trainer(monkeypatch, WHOLE, CUT, **more)
    trainer.play(30)
    batch = trainer.replay_buffer.sample(500, np.random.default_rng(0))
    before, after = (places(states) for states in batch.states)
    seen = set()
    for k, (game, episode, step) in enumerate(before):
        event = (WHOLE, CUT)[game][step]
        ends = event.terminated or (event.lost and lives)
        assert batch.returns[k] == (np.sign(event.reward) if clip_rewards else event.reward)
        assert batch.discounts[k] == (0.0 if ends else 0.5)
        if not ends:
            assert after[k] == (game, episode, step + 1)
        seen.add((game, step))
    assert len(seen) == len(WHOLE) + len(CUT)


@pytest.mark.parametrize("lives", [False, True])
def test_states_do_not_cross_episodes(monkeypatch: pytest.MonkeyPatch, lives: bool) -> None:
    monkeypatch.setattr(Scripted, "frame", (1, 84, 84))
    trainer = scripted_trainer(
        monkeypatch, WHOLE, CUT, suite="atari", game="SpaceInvaders", terminal_on_life_loss=lives
    )
    lost = next(step for step, event in enumerate(WHOLE) if event.lost)
    for _ in range(12):
        for e, state in enumerate(trainer._stacks):
            frames = places(state[:, None])
            game, episode, step = frames[-1]
            first = lost + 1 if lives and game == 0 and step > lost else 0
            assert game == e
            assert frames == [(game, episode, max(first, step - back)) for back in (3, 2, 1, 0)]
        trainer.play(1)


def test_after_a_checkpoint_no_transition_crosses_into_other_games(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [Event(1.0)] * 250
    trainer = scripted_trainer(monkeypatch, long, long, n_step=3)
    trainer.play(20)
    monkeypatch.setattr(training, "make_environments", lambda *_: Scripted(long, long, first_episode=7))
    other = Trainer(config(num_envs=2, n_step=3), CPU)
    other.load_state(trainer.state())
    other.play(20)
    batch = other.replay_buffer.sample(1000, np.random.default_rng(0))
    before, after = (places(states) for states in batch.states)
    assert {place[1] for place in before} == {0, 7}
    for k, (game, episode, step) in enumerate(before):
        last = 20 if episode == 0 else 19
        steps = min(3, last - step)
        assert after[k] == (game, episode, step + steps)
        assert batch.discounts[k] == pytest.approx(0.99**steps)
        assert batch.returns[k] == pytest.approx(sum(0.99**i for i in range(steps)))
    assert max(step for _, episode, step in before if episode == 0) == 19


def test_epsilon_noise_importance_weights_and_priorities_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = scripted_trainer(monkeypatch, WHOLE, CUT, agent="rainbow", exploration_steps=150, beta_steps=250)
    epsilons, betas, learned, prioritized = [], [], [], []

    def noise() -> torch.Tensor:
        return torch.cat([layer.noise_in for layer in noisy_layers(trainer.agent.online)])

    noises = [noise()]
    act, learn = trainer.agent.act, trainer.agent.learn
    sample, update_priorities = trainer.replay_buffer.sample, trainer.replay_buffer.update_priorities

    def recording_act(states: Any, epsilon: float, generator: Any) -> Any:
        epsilons.append((trainer.steps, epsilon))
        assert torch.equal(noise(), noises[-1])  # the noise of the last update
        return act(states, epsilon, generator)

    def recording_learn(batch: Batch) -> Any:
        learned.append((batch.indices, learn(batch)))
        noises.append(noise())
        return learned[-1][1]

    def recording_sample(number: int, generator: Any, beta: float) -> Batch:
        assert number == 16
        betas.append((trainer.steps, beta))
        return sample(number, generator, beta)

    def recording_update(places: Any, errors: Any) -> None:
        prioritized.append((places, errors))
        update_priorities(places, errors)

    trainer.agent.act, trainer.agent.learn = recording_act, recording_learn  # type: ignore[method-assign]
    trainer.replay_buffer.sample, trainer.replay_buffer.update_priorities = recording_sample, recording_update  # type: ignore[method-assign]
    monkeypatch.setattr(trainer, "evaluate", lambda part: 0.0)
    for part in range(4):
        trainer.learn(part)
    assert epsilons == [(steps, pytest.approx(1 - 0.95 * min(1, steps / 150))) for steps in range(0, 400, 2)]
    assert len(betas) == trainer.agent.updates == 340
    assert all(beta == pytest.approx(0.4 + 0.6 * min(1, steps / 250)) for steps, beta in betas)
    assert {steps for steps, _ in betas} == {*range(62, 402, 2)}
    for (drawn, update), (changed, errors) in zip(learned, prioritized, strict=True):
        np.testing.assert_array_equal(drawn, changed)
        np.testing.assert_array_equal(update.errors.numpy(), errors)


@pytest.mark.parametrize(("noise", "explores"), [(3.0, True), (0.0, False)])
def test_rainbow_explores_with_noisy_layers(noise: float, explores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    games = [Scripted([Event(terminated=True)], constant=True) for _ in range(2)]
    making = iter(games)
    monkeypatch.setattr(training, "make_environments", lambda *_: next(making))
    greedy = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0, "evaluation_eps": 0.0, "eval_episodes": 1}
    # With such a small step size the weights do not change; only the noise of an update can change the greedy action.
    trainer = Trainer(config("rainbow", method="adam", lr=1e-30, num_envs=1, noisy_sigma=noise, **greedy), CPU)
    trainer.play(40)
    weights = [p.clone() for p in trainer.agent.online.parameters()]
    for _ in range(30):
        trainer.train(1)
        trainer.play(2)
    for before, p in zip(weights, trainer.agent.online.parameters(), strict=True):
        torch.testing.assert_close(before, p)
    actions = [action for (action,) in games[0].sent[40:]]
    assert actions[::2] == actions[1::2]  # the noise stays until the next update
    assert (len(set(actions)) > 1) == explores
    trainer.evaluate(0)
    assert games[1].sent == games[0].sent[:1]  # the greedy action of the mean weights, as before the first update


def test_without_prioritized_replay_no_errors_are_returned_to_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = scripted_trainer(monkeypatch, WHOLE)
    monkeypatch.setattr(
        trainer.replay_buffer, "update_priorities", lambda *_: pytest.fail("called without prioritized replay")
    )
    trainer.play(40)
    assert trainer.train(2).shape == (2,)


def test_an_evaluation_is_the_mean_over_complete_games(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = scripted_trainer(
        monkeypatch, WHOLE, agent="rainbow", eval_episodes=2, evaluation_eps=0.25, clip_rewards=True
    )
    trainer.play(40)
    trainer.train(1)
    noises = [layer.noise_in.clone() for layer in noisy_layers(trainer.agent.online)]
    assert all(noise.abs().sum() > 0 for noise in noises)
    longer = (*[Event(0.25)] * 9, Event(10.0, truncated=True))
    monkeypatch.setattr(training, "make_environments", lambda *_: Scripted(WHOLE, longer))
    act = trainer.agent.act
    seen = []

    def recording_act(states: Any, epsilon: float, generator: Any) -> Any:
        assert not any(layer.noise_in.any() or layer.noise_out.any() for layer in noisy_layers(trainer.agent.online))
        assert epsilon == 0.25
        seen.append(places(states)[1])
        return act(states, epsilon, generator)

    trainer.agent.act = recording_act  # type: ignore[method-assign]
    # A lost life does not end a game, rewards are not clipped, and steps after the end of the first game do not count.
    assert trainer.evaluate(0) == (8.5 + 12.25) / 2
    assert seen == [(1, 0, step) for step in range(10)]
    for noise, layer in zip(noises, noisy_layers(trainer.agent.online)):
        assert torch.equal(noise, layer.noise_in)


def test_an_evaluation_plays_until_the_game_ends_or_reaches_the_frame_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 27_000  # steps: 108,000 frames
    random = {"eval_episodes": 2, "evaluation_eps": 1.0}  # actions without a network, for speed
    trainer = scripted_trainer(monkeypatch, WHOLE, **random)
    long, endless = [*[Event(1.0)] * (limit - 2), Event(500.0, terminated=True)], [Event(1.0)] * (limit + 10)
    games = Scripted(long, endless, constant=True)
    monkeypatch.setattr(training, "make_environments", lambda *_: games)
    assert trainer.evaluate(0) == (limit - 2 + 500 + limit) / 2
    assert len(games.sent) == limit


def test_a_lost_life_does_not_reset_the_frame_stack_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "frame", (1, 84, 84))
    trainer = scripted_trainer(monkeypatch, WHOLE, suite="atari", game="SpaceInvaders", eval_episodes=1)
    act, seen = trainer.agent.act, []

    def recording_act(states: Any, epsilon: float, generator: Any) -> Any:
        seen.append(places(states[0][:, None]))
        return act(states, epsilon, generator)

    trainer.agent.act = recording_act  # type: ignore[method-assign]
    trainer.evaluate(0)
    assert seen == [[(0, 0, max(0, step - back)) for back in (3, 2, 1, 0)] for step in range(len(WHOLE))]


def test_stacks_start_with_their_first_frame() -> None:
    stacks = np.arange(8, dtype=np.uint8).reshape(2, 4, 1, 1)
    frames = np.array([9, 10], np.uint8).reshape(2, 1, 1, 1)
    found = stacked(stacks, frames, np.array([False, True]))
    assert found[:, :, 0, 0].tolist() == [[1, 2, 3, 9], [10, 10, 10, 10]]


def test_states_match_the_replay_buffer() -> None:
    """The frame stacks seen while acting equal the sampled ones."""
    trainer = Trainer(
        config(suite="atari", game="SpaceInvaders", frames=40_000, num_envs=2, buffer_size=3000, learning_starts=50),
        CPU,
    )
    acted: dict[bytes, int] = {}
    act = trainer.agent.act

    def recording_act(states: np.ndarray, epsilon: float, generator: np.random.Generator) -> np.ndarray:
        for state in states:
            acted[state.tobytes()] = 1
        return act(states, 1.0, generator)

    trainer.agent.act = recording_act  # type: ignore[method-assign]
    trainer.play(600)
    trainer.close()
    sampled = trainer.replay_buffer.sample(200, np.random.default_rng(0))
    assert all(state.tobytes() in acted for state in sampled.states[0])
    nonterminal = sampled.discounts > 0
    assert nonterminal.sum() > 150
    assert all(state.tobytes() in acted for state in sampled.states[1][nonterminal])


def test_the_network_matches_the_suite() -> None:
    trainer = Trainer(config(), CPU)
    assert isinstance(trainer.agent.online, QNetwork)
    assert trainer.agent.online.torso[0].out_channels == 16
    assert Config().stack == 4


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_an_agent_learns_breakout(agent: str) -> None:
    """A random policy has a return of about 0.5.

    These seeds reached 3.7 to 3.8 (DQN) and 3.1 to 3.2 (Rainbow) in training, 3.6 to 5.6 and 3.1 to 5.6 in evaluation.
    """
    for seed in range(3):
        more = {
            "lr": 3e-4,
            "frames": 40_000,
            "learning_starts": 1000,
            "buffer_size": 40_000,
            "batch_size": 32,
            "target_update_interval": 500,
        }
        trainer, rows = trained(
            agent=agent,
            method="adam",
            seed=seed,
            replay_ratio=0.25,
            exploration_steps=20_000,
            eval_episodes=20,
            **more,
        )
        assert rows[0]["return"] < 1.5
        assert rows[-1]["return"] > 2.5
        assert rows[-1]["test_return"] > 2.0
        trainer.close()
