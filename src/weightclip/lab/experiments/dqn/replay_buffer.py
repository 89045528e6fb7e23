"""Replay buffer: stores every frame once and assembles frame stacks and n-step returns when sampling.

Each environment has its own ring buffer. A slot holds a frame, the action taken on it and the outcome. A truncated
episode ends with an additional slot for its last frame, without an action: earlier slots bootstrap from it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays

Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]

_MIN_ERROR = 1e-6
"""Added to each error, so that no priority is 0."""

_CHUNK = 1 << 12
"""Bytes of compressed frames that are decompressed at a time."""

_COLUMNS = ("_actions", "_rewards", "_terminal", "_last", "_final", "_valid")


@dataclass(frozen=True)
class Batch:
    """n sampled transitions.

    Args:
        states: [2, n, channels, height, width], uint8: the states and the next states. Channels last in memory.
        actions: [n].
        returns: [n], sum of gamma^i r_i over the m steps to the next state.
        discounts: [n], gamma^m; 0 if the episode terminated within these steps.
        weights: [n], importance weights in the loss; 1 for uniform sampling.
        indices: [n], indices in the replay buffer.
    """

    states: NDArray[np.uint8]
    actions: Indices
    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    weights: NDArray[np.float32]
    indices: Indices


class ReplayBuffer:
    """The most recent transitions of several environments.

    Args:
        capacity: total number of slots, divided equally among the environments.
        environments: the number of environments.
        frame: the shape of a frame, [channels, height, width].
        stack: frames per state; the first frame of an episode is repeated.
        steps: n of n-step returns.
        gamma: discount factor.
        alpha: priority exponent, p = |error|^alpha; 0 is uniform sampling.
    """

    def __init__(
        self,
        capacity: int,
        environments: int,
        frame: Sequence[int],
        stack: int = 4,
        steps: int = 3,
        gamma: float = 0.99,
        alpha: float = 0.0,
    ) -> None:
        self._length = capacity // environments
        self._stack, self._steps, self._gamma, self._alpha = stack, steps, gamma, alpha
        shape = (environments, self._length)
        self._frames = np.zeros((*shape, *frame), np.uint8)
        self._actions = np.zeros(shape, np.int64)
        self._rewards = np.zeros(shape, np.float32)
        self._terminal, self._last, self._final, self._valid = (np.zeros(shape, bool) for _ in range(4))
        self._written = np.zeros(environments, np.int64)
        self._tree = SumTree(environments * self._length) if alpha else None
        self._highest = 1.0

    def __len__(self) -> int:
        """The number of transitions that can be sampled."""
        return int(self._valid.sum())

    @property
    def written(self) -> int:
        """Slots written so far, including those overwritten since."""
        return int(self._written.sum())

    @property
    def prioritized(self) -> bool:
        """Whether transitions are sampled by priority."""
        return self._tree is not None

    def add(
        self,
        frames: NDArray[np.uint8],
        actions: Indices,
        rewards: NDArray[Any],
        terminal: Bools,
        truncated: Bools,
        final: NDArray[np.uint8],
    ) -> None:
        """Add a step of each environment e.

        Args:
            frames: [e, channels, height, width], before the step.
            actions: [e].
            rewards: [e].
            terminal: [e], whether the episode terminated.
            truncated: [e], whether the episode was truncated.
            final: [e, channels, height, width], the last frames of truncated episodes.
        """
        every = np.arange(len(frames))
        self._put(every, frames, actions, rewards, terminal, terminal, np.zeros_like(terminal))
        self._truncate(np.flatnonzero(truncated & ~terminal), final)

    def truncate_episodes(self, frames: NDArray[np.uint8]) -> None:
        """Truncate the unfinished episodes; `frames` are their last frames, [e, channels, height, width]."""
        newest = (np.arange(len(frames)), (self._written - 1) % self._length)
        self._truncate(np.flatnonzero((self._written > 0) & ~self._last[newest]), frames)

    def _truncate(self, which: Indices, final: NDArray[np.uint8]) -> None:
        """Add a slot with the last frame of each of these environments."""
        if len(which):
            nothing, yes = np.zeros(len(which), bool), np.ones(len(which), bool)
            self._put(which, final[which], np.zeros(len(which), np.int64), np.zeros(len(which)), nothing, yes, yes)

    def _put(
        self,
        which: Indices,
        frames: NDArray[np.uint8],
        actions: Indices,
        rewards: NDArray[Any],
        terminal: Bools,
        last: Bools,
        final: Bools,
    ) -> None:
        slots = self._written[which] % self._length
        self._frames[which, slots] = frames
        self._actions[which, slots] = actions
        self._rewards[which, slots] = rewards
        self._terminal[which, slots], self._last[which, slots] = terminal, last
        self._final[which, slots] = final
        self._written[which] += 1
        rows = (self._valid, self._terminal, self._final, self._written, which, self._stack, self._steps)
        changed = _refresh(*rows)
        if self._tree is not None and len(changed):
            self._tree[changed] = np.where(self._valid.reshape(-1)[changed], self._highest, 0.0)

    def sample(self, number: int, generator: np.random.Generator, beta: float = 1.0) -> Batch:
        """Sample transitions, by priority if there are priorities; weights are (N P)^-beta divided by their maximum."""
        if self._tree is None:
            return self.sample_uniformly(number, generator)
        self._check_any()
        indices = self._tree.draw(number, generator)
        raw = self._tree[indices] ** -beta  # N and the sum of priorities cancel in the division
        return self._batch(indices, (raw / raw.max()).astype(np.float32))

    def sample_uniformly(self, number: int, generator: np.random.Generator) -> Batch:
        """Sample transitions uniformly, regardless of priorities."""
        self._check_any()
        return self._batch(self._sample_indices(number, generator), np.ones(number, np.float32))

    def _check_any(self) -> None:
        if not self._valid.any():
            raise ValueError(
                f"replay buffer: got {self.written} slots without a complete transition, expected at least one"
            )

    def _batch(self, indices: Indices, weights: NDArray[np.float32]) -> Batch:
        number = len(indices)
        parts = (self._rewards, self._terminal, self._last, self._final, self._written)
        rows, returns, discounts = _gather(*parts, indices, self._stack, self._steps, self._gamma)
        channels, height, width = self._frames.shape[2:]
        flat = self._frames.reshape(-1, channels, height * width)
        seen = _gather_frames(flat, rows.reshape(2 * number, self._stack))
        # Convolutions are faster with channels last in memory.
        states = seen.reshape(2, number, height, width, -1).transpose(0, 1, 4, 2, 3)
        return Batch(states, self._actions.reshape(-1)[indices], returns, discounts, weights, indices)

    def update_priorities(self, indices: Indices, errors: NDArray[Any]) -> None:
        """Set the priorities of the transitions at `indices` from their errors."""
        if self._tree is None:
            return
        priorities = (np.abs(errors).astype(np.float64) + _MIN_ERROR) ** self._alpha
        self._tree[indices] = priorities
        self._highest = max(self._highest, float(priorities.max()))

    def state(self) -> Arrays:
        """The whole content, with compressed frames."""
        used = min(int(self._written.max(initial=0)), self._length)
        found: Arrays = {name: getattr(self, name)[:, :used].copy() for name in _COLUMNS}
        found |= {f"frames/{e}": _packed(frames[:used]) for e, frames in enumerate(self._frames)}
        found["written"] = self._written.copy()
        if self._tree is not None:
            found |= {"priorities": self._tree[self._all(used)], "highest": np.array(self._highest)}
        return found

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`."""
        used = state["_valid"].shape[1]
        for name in _COLUMNS:
            getattr(self, name)[:, :used] = state[name]
        for e, frames in enumerate(self._frames):
            _unpack(state[f"frames/{e}"], frames[:used])
        self._written[:] = state["written"]
        if self._tree is not None:
            self._tree[self._all(used)] = state["priorities"]
            self._highest = float(state["highest"])

    def _all(self, used: int) -> Indices:
        """The first `used` indices of each environment."""
        return (np.arange(len(self._frames))[:, None] * self._length + np.arange(used)).reshape(-1)

    def _sample_indices(self, number: int, generator: np.random.Generator) -> Indices:
        """Indices of transitions, sampled uniformly."""
        used = min(int(self._written.max()), self._length)
        valid = self._valid.reshape(-1)
        found = np.empty(0, np.int64)
        while len(found) < number:  # most slots hold a complete transition, so this ends soon
            environments = generator.integers(len(self._frames), size=number)
            indices = environments * self._length + generator.integers(used, size=number)
            found = np.concatenate([found, indices[valid[indices]]])
        return found[:number]


def _packed(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Compress frames without copying them."""
    return np.frombuffer(zlib.compress(frames.data, 1), np.uint8)


def _unpack(packed: NDArray[np.uint8], frames: NDArray[np.uint8]) -> None:
    """Decompress into `frames` in chunks, without a second copy in memory."""
    rows, reader, at = frames.reshape(-1), zlib.decompressobj(), 0
    for start in range(0, len(packed), _CHUNK):
        piece = np.frombuffer(reader.decompress(packed[start : start + _CHUNK].data), np.uint8)
        rows[at : at + len(piece)] = piece
        at += len(piece)
    if at != len(rows):
        raise ValueError(f"frames: got {at} bytes, expected {len(rows)}")


@njit(cache=True)
def _refresh(
    valid: Bools, terminal: Bools, final: Bools, written: Indices, which: Indices, stack: int, steps: int
) -> Indices:
    """Update which slots hold a complete transition after a write in each of `which`; return the changed indices."""
    length = valid.shape[1]
    changed = np.empty(len(which) * (steps + stack + 2), np.int64)
    number = 0
    for e in which:
        newest, oldest = written[e] - 1, max(0, written[e] - length)
        # The overwritten slot is not complete yet; the oldest slots have lost earlier frames of their stack.
        invalid = [newest]
        if oldest > 0:
            for t in range(oldest, min(oldest + stack - 1, newest)):
                invalid.append(t)
        for t in invalid:
            if valid[e, t % length]:
                valid[e, t % length] = False
                changed[number] = e * length + t % length
                number += 1
        first = oldest + stack - 1 if oldest > 0 else 0
        for t in range(max(first, newest - steps), newest + 1):
            slot = t % length
            if valid[e, slot] or final[e, slot]:
                continue
            whole = False
            for m in range(steps):
                if t + m > newest:
                    break
                if terminal[e, (t + m) % length]:
                    whole = True
                    break
                if t + m + 1 <= newest and (m == steps - 1 or final[e, (t + m + 1) % length]):
                    whole = True
                    break
            if whole:
                valid[e, slot] = True
                changed[number] = e * length + slot
                number += 1
    return changed[:number]


@njit(cache=True)
def _gather(
    rewards: NDArray[np.float32],
    terminal: Bools,
    last: Bools,
    final: Bools,
    written: Indices,
    indices: Indices,
    stack: int,
    steps: int,
    gamma: float,
) -> tuple[Indices, NDArray[np.float32], NDArray[np.float32]]:
    """Frame indices of both states [2, n, stack], n-step returns [n] and discounts [n]."""
    length = rewards.shape[1]
    rows = np.empty((2, len(indices), stack), np.int64)
    returns, discounts = np.zeros(len(indices), np.float32), np.zeros(len(indices), np.float32)
    for k in range(len(indices)):
        e, slot = indices[k] // length, indices[k] % length
        newest, oldest = written[e] - 1, max(0, written[e] - length)
        t = oldest + (slot - oldest) % length
        total, factor, end = 0.0, 1.0, t
        for m in range(steps):
            total += factor * rewards[e, (t + m) % length]
            factor *= gamma
            if terminal[e, (t + m) % length]:
                factor = 0.0
                break
            end = t + m + 1
            if end > newest or final[e, end % length]:
                break
        returns[k], discounts[k] = total, factor
        for which, at in enumerate((t, end)):
            frame = at
            rows[which, k, stack - 1] = e * length + frame % length
            for j in range(1, stack):
                if frame - 1 >= oldest and not last[e, (frame - 1) % length]:
                    frame -= 1
                rows[which, k, stack - 1 - j] = e * length + frame % length
    return rows, returns, discounts


@njit(cache=True)
def _gather_frames(frames: NDArray[np.uint8], rows: Indices) -> NDArray[np.uint8]:
    """Frames [rows, channels, pixels] at rows [n, stack] -> stacks [n, pixels, stack * channels]."""
    _, channels, pixels = frames.shape
    stack = rows.shape[1]
    found = np.empty((len(rows), pixels, stack * channels), np.uint8)
    for k in range(len(rows)):
        if stack == 4 and channels == 1:  # Atari: a single sequential pass takes a third of the time
            first, second = frames[rows[k, 0], 0], frames[rows[k, 1], 0]
            third, fourth = frames[rows[k, 2], 0], frames[rows[k, 3], 0]
            for p in range(pixels):
                found[k, p, 0], found[k, p, 1] = first[p], second[p]
                found[k, p, 2], found[k, p, 3] = third[p], fourth[p]
        else:
            for j in range(stack):
                for channel in range(channels):
                    seen, at = frames[rows[k, j], channel], j * channels + channel
                    for p in range(pixels):
                        found[k, p, at] = seen[p]
    return found


Floats = NDArray[np.float64]


class SumTree:
    """Priorities, initially 0.

    The tree is an array: node i is the sum of its children 2 i and 2 i + 1; the leaves are its second half.

    Args:
        size: the number of priorities.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << (size - 1).bit_length()
        self.nodes = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.nodes[1])

    def __getitem__(self, indices: Indices) -> Floats:
        return self.nodes[self._leaves + indices]

    def __setitem__(self, indices: Indices, priorities: Floats | float) -> None:
        _set(self.nodes, self._leaves, indices, np.broadcast_to(np.asarray(priorities, np.float64), indices.shape))

    def draw(self, number: int, generator: np.random.Generator) -> Indices:
        """Indices [number], by stratified sampling: one from each of `number` equal parts of the total."""
        at = (np.arange(number) + generator.random(number)) * (self.total / number)
        return _find(self.nodes, self._leaves, at)


@njit(cache=True)
def _set(nodes: Floats, leaves: int, indices: Indices, priorities: Floats) -> None:
    for k in range(len(indices)):
        i = leaves + indices[k]
        nodes[i] = priorities[k]
        while i > 1:
            i //= 2
            nodes[i] = nodes[2 * i] + nodes[2 * i + 1]  # recomputed, as differences would accumulate rounding errors


@njit(cache=True)
def _find(nodes: Floats, leaves: int, at: Floats) -> Indices:
    found = np.empty(len(at), np.int64)
    for k in range(len(at)):
        i, rest = 1, at[k]
        while i < leaves:
            i *= 2
            # Go left if rounding would lead to a right subtree without priority.
            if rest >= nodes[i] and nodes[i + 1] > 0.0:
                rest -= nodes[i]
                i += 1
        found[k] = i - leaves
    return found
