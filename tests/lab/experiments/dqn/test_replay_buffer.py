"""The replay buffer compared with lists of complete episodes."""

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from weightclip.lab.experiments.dqn.replay_buffer import Batch, ReplayBuffer

GAMMA = 0.9


@dataclass
class Episode:
    """An episode: its frames, actions and rewards, and whether it terminated."""

    frames: list[int] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminal: bool = False


def frame(value: int) -> Any:
    return np.array([value % 256, value // 256], np.uint8).reshape(1, 1, 2)


def fill(
    buffer: ReplayBuffer, steps: int, environments: int, seed: int = 0, cuts: bool = True, first: int = 1
) -> list[list[Episode]]:
    """Add random episodes with numbered frames; return the episodes of each environment."""
    generator = np.random.default_rng(seed)
    number = iter(range(first, 10**9))
    played = [[Episode(frames=[next(number)])] for _ in range(environments)]
    for _ in range(steps):
        now = np.stack([frame(own[-1].frames[-1]) for own in played])
        actions, rewards = generator.integers(4, size=environments), generator.normal(size=environments)
        terminal = generator.random(environments) < 0.15
        truncated = (generator.random(environments) < 0.1) & cuts
        final = np.zeros_like(now)
        for e, own in enumerate(played):
            episode = own[-1]
            episode.actions.append(int(actions[e]))
            episode.rewards.append(float(rewards[e]))
            if terminal[e]:
                episode.terminal = True
            else:
                episode.frames.append(next(number))
                final[e] = frame(episode.frames[-1])
            if terminal[e] or truncated[e]:
                own.append(Episode(frames=[next(number)]))
        buffer.add(now, actions, rewards, terminal, truncated, final)
    return played


def expected(played: list[list[Episode]], stack: int, steps: int) -> dict[int, tuple[Any, ...]]:
    """First frame of a transition -> its stack, action, return, discount and next stack."""
    found = {}
    for own in played:
        for episode, last in zip(own, [*[False] * (len(own) - 1), True]):
            ended = not last

            def stacked(t: int, frames: list[int] = episode.frames) -> tuple[int, ...]:
                return tuple(frames[max(0, t - j)] for j in reversed(range(stack)))

            length = len(episode.actions)
            for t in range(length):
                m = min(steps, length - t)
                reaches_end = t + m == length and episode.terminal
                if not reaches_end and not ended and t + steps > length - 1:
                    continue  # the next stack is not in the replay buffer yet
                value = sum(GAMMA**i * episode.rewards[t + i] for i in range(m))
                following = None if reaches_end else stacked(t + m)
                discount = 0.0 if reaches_end else GAMMA**m
                found[episode.frames[t]] = (stacked(t), episode.actions[t], value, discount, following)
    return found


def complete_frames(played: list[list[Episode]], length: int, stack: int) -> set[int]:
    """Frames in ring buffers of the given length, except the oldest, whose stacks are incomplete."""
    found: set[int] = set()
    for own in played:
        *ended, current = own
        slots = [number for episode in ended if episode.actions for number in episode.frames]
        slots += current.frames[:-1]
        found |= set(slots if len(slots) <= length else slots[-length:][stack - 1 :])
    return found


def sampled_transition(batch: Batch, k: int) -> tuple[Any, ...]:
    numbers = batch.states[..., 0, 0].astype(int) + 256 * batch.states[..., 0, 1].astype(int)  # [2, n, stack]
    return (
        tuple(numbers[0, k]),
        int(batch.actions[k]),
        float(batch.returns[k]),
        float(batch.discounts[k]),
        tuple(numbers[1, k]),
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize(("environments", "capacity"), [(1, 1000), (3, 3000), (3, 90), (2, 41)])
@pytest.mark.parametrize(("stack", "steps"), [(1, 1), (4, 3), (2, 5)])
def test_sampled_stacks_and_returns_match_the_episodes(
    alpha: float, environments: int, capacity: int, stack: int, steps: int
) -> None:
    buffer = ReplayBuffer(capacity, environments, (1, 1, 2), stack, steps, GAMMA, alpha)
    played = fill(buffer, 200, environments)
    wanted = expected(played, stack, steps)
    # No complete transition is missing.
    assert check_sampled(buffer, wanted) == set(wanted) & complete_frames(played, capacity // environments, stack)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize(("environments", "capacity"), [(1, 1000), (3, 3000), (3, 150)])
@pytest.mark.parametrize(("stack", "steps"), [(1, 1), (4, 3), (2, 5)])
@pytest.mark.parametrize("before", [0, 2, 33, 100])
def test_transitions_do_not_cross_truncated_episodes(
    alpha: float, environments: int, capacity: int, stack: int, steps: int, before: int
) -> None:
    buffer, other = (ReplayBuffer(capacity, environments, (1, 1, 2), stack, steps, GAMMA, alpha) for _ in range(2))
    played = fill(buffer, before, environments)
    current = np.stack([frame(own[-1].frames[-1]) for own in played])
    other.load_state(buffer.state())
    other.truncate_episodes(current)
    wanted = expected([[*own, Episode()] for own in played], stack, steps)
    if before:
        assert check_sampled(other, wanted) <= set(wanted)
    for own, more in zip(played, fill(other, 40, environments, seed=1, first=10_000)):
        own += more
    wanted = expected(played, stack, steps)
    assert check_sampled(other, wanted) == set(wanted) & complete_frames(played, capacity // environments, stack)


def check_sampled(buffer: ReplayBuffer, wanted: dict[int, tuple[Any, ...]]) -> set[int]:
    """Compare sampled transitions with the expected ones; return the first frames of all transitions."""
    generator = np.random.default_rng(1)
    drawn = set()
    for _ in range(300):
        batch = buffer.sample(32, generator)
        for k in range(32):
            states, action, value, discount, following = sampled_transition(batch, k)
            drawn.add(states[-1])
            right = wanted[states[-1]]
            assert (states, action) == right[:2]
            assert (value, discount) == pytest.approx(right[2:4], abs=1e-5)
            if right[4] is not None:
                assert following == right[4]
    assert len(drawn) == len(buffer)  # every transition was sampled
    return drawn


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_sampling_before_the_first_complete_transition_raises_an_error(alpha: float) -> None:
    buffer = ReplayBuffer(40, 1, (1, 1, 2), 1, 3, alpha=alpha)
    nothing = np.zeros(1, bool)
    for written in range(4):
        for draw in (buffer.sample, buffer.sample_uniformly):
            with pytest.raises(ValueError, match=f"replay buffer: got {written} slots without a complete"):
                draw(2, np.random.default_rng(0))
        buffer.add(frame(written)[None], np.zeros(1, np.int64), np.zeros(1), nothing, nothing, frame(0)[None])
    assert len(buffer.sample(2, np.random.default_rng(0)).indices) == 2


@pytest.mark.parametrize(("stack", "channels"), [(4, 1), (4, 2), (1, 3)])
def test_channels_of_a_state_are_ordered_by_frame(stack: int, channels: int) -> None:
    buffer, generator = ReplayBuffer(50, 1, (channels, 5, 3), stack, 1), np.random.default_rng(0)
    frames = generator.integers(256, size=(30, 1, channels, 5, 3)).astype(np.uint8)
    nothing = np.zeros(1, bool)
    for now in frames:
        buffer.add(now, np.zeros(1, np.int64), np.zeros(1), nothing, nothing, now)
    batch = buffer.sample(40, generator)
    for k, place in enumerate(batch.indices):
        for which in (0, 1):
            wanted = [frames[max(0, place + which - j), 0] for j in reversed(range(stack))]
            np.testing.assert_array_equal(batch.states[which, k], np.concatenate(wanted))


def test_sampling_is_uniform_without_priorities() -> None:
    buffer = ReplayBuffer(200, 2, (1, 1, 2), 1, 1)
    fill(buffer, 500, 2)
    generator = np.random.default_rng(0)
    counts = np.bincount(np.concatenate([buffer.sample(50, generator).indices for _ in range(2000)]))
    counts = counts[counts > 0]
    assert len(counts) == len(buffer)
    assert counts.std() / counts.mean() < 0.06


def test_priorities_and_weights_match_their_definition() -> None:
    buffer = ReplayBuffer(40, 1, (1, 1, 2), 1, 1, alpha=0.5)
    fill(buffer, 20, 1, cuts=False)
    generator = np.random.default_rng(0)
    places = np.unique(buffer.sample(500, generator).indices)
    errors = np.linspace(0.1, 4.0, len(places))
    buffer.update_priorities(places, errors)
    priorities = (errors + 1e-6) ** 0.5
    fractions = priorities / priorities.sum()
    batch = buffer.sample(20_000, generator, beta=0.7)
    counts = np.array([(batch.indices == place).mean() for place in places])
    np.testing.assert_allclose(counts, fractions, atol=0.005)
    weights = (len(places) * fractions) ** -0.7
    expected = (weights / weights.max())[np.searchsorted(places, batch.indices)]
    np.testing.assert_allclose(batch.weights, expected, rtol=1e-4)
    assert (buffer.sample(50, generator, beta=0.0).weights == 1).all()


def test_uniform_samples_ignore_priorities_and_order() -> None:
    buffer = ReplayBuffer(200, 2, (1, 1, 2), 1, 1, alpha=1.0)
    fill(buffer, 500, 2)
    generator = np.random.default_rng(0)
    places = np.unique(buffer.sample(2000, generator).indices)
    buffer.update_priorities(places, np.linspace(0.01, 50.0, len(places)))
    batch = buffer.sample_uniformly(100_000, generator)
    counts = np.bincount(batch.indices)[places]
    assert counts.sum() == 100_000
    assert counts.std() / counts.mean() < 0.06
    assert (batch.weights == 1).all()
    assert abs(np.corrcoef(np.arange(100_000), batch.indices)[0, 1]) < 0.01


def test_new_transitions_have_the_highest_priority_so_far() -> None:
    buffer = ReplayBuffer(100, 1, (1, 1, 2), 1, 1, alpha=1.0)
    fill(buffer, 10, 1, cuts=False)
    places = np.unique(buffer.sample(200, np.random.default_rng(0)).indices)
    buffer.update_priorities(places, np.full(len(places), 8.0))
    buffer.update_priorities(places[:3], np.full(3, 0.1))
    before = len(buffer)
    fill(buffer, 1, 1, seed=3, cuts=False)
    assert len(buffer) == before + 1
    batch = buffer.sample(5000, np.random.default_rng(0))
    counts = np.bincount(batch.indices)[np.setdiff1d(batch.indices, places[:3])]
    assert len(counts) == before + 1 - 3
    assert counts.min() > 0.7 * counts.max()


def test_the_saved_state_is_small_and_complete() -> None:
    buffers = [ReplayBuffer(300, 3, (1, 1, 2), 4, 3, GAMMA, 0.5) for _ in range(2)]
    fill(buffers[0], 150, 3)
    batch = buffers[0].sample(32, np.random.default_rng(0))
    buffers[0].update_priorities(batch.indices, np.arange(32.0))
    buffers[1].load_state(buffers[0].state())
    for _ in range(2):  # immediately, and after further steps
        one, other = (buffer.sample(64, np.random.default_rng(5), 0.4) for buffer in buffers)
        for name in ("states", "actions", "returns", "discounts", "weights", "indices"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for buffer in buffers:
            fill(buffer, 10, 3, seed=1)
    big = ReplayBuffer(2000, 1, (1, 84, 84))
    frames = np.zeros((1, 1, 84, 84), np.uint8)
    for _ in range(2000):
        big.add(frames, np.zeros(1, np.int64), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), frames)
    assert sum(array.nbytes for array in big.state().values()) < 2000 * 84 * 84 / 50


def test_loading_truncated_frames_raises_an_error() -> None:
    buffers = [ReplayBuffer(300, 3, (1, 1, 2)) for _ in range(2)]
    fill(buffers[0], 50, 3)
    state = buffers[0].state()
    with pytest.raises(ValueError, match=r"frames: got \d+ bytes, expected"):
        buffers[1].load_state({**state, "frames/1": state["frames/1"][:-20]})


def test_saving_and_loading_use_little_additional_memory() -> None:
    buffers = [ReplayBuffer(4000, 2, (1, 84, 84)) for _ in range(2)]
    nothing = np.zeros(2, bool)
    for k in range(2000):
        frames = np.full((2, 1, 84, 84), k % 256, np.uint8)
        buffers[0].add(frames, np.zeros(2, np.int64), np.zeros(2), nothing, nothing, frames)
    tracemalloc.start()
    buffers[1].load_state(buffers[0].state())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4000 * 84 * 84 / 5
    one, other = (buffer.sample(64, np.random.default_rng(5)) for buffer in buffers)
    np.testing.assert_array_equal(one.states, other.states)


def test_frames_are_stored_once() -> None:
    buffer = ReplayBuffer(1000, 10, (1, 84, 84))
    stored = sum(array.nbytes for array in vars(buffer).values() if isinstance(array, np.ndarray))
    assert 100 * stored < 0.9e9  # of 100k transitions
    assert 1000 * stored < 8e9
