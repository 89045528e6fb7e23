"""Replay memory: every frame once, stacks and n-step returns put together when they are sampled.

Each environment writes into a ring of its own. A slot holds the frame that was seen, the action on it and what came of
that. An episode that was cut by its time limit ends with a slot more, for its last frame: there is no action on it, but
the slots before it go on from there.
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
from weightclip.lab.experiments.dqn.sum_tree import SumTree

Bools = NDArray[np.bool_]
Places = NDArray[np.int64]

_MORE = 1e-6
"""Added to an error before it becomes a priority, so that no transition is lost."""

_PIECE = 1 << 12
"""Bytes of compressed frames that are unpacked at a time."""

_COLUMNS = ("_actions", "_rewards", "_terminal", "_last", "_final", "_valid")


@dataclass(frozen=True)
class Batch:
    """Sampled transitions, n of them.

    Args:
        states: [2, n, channels, height, width], whole numbers: where the actions were taken, and where they led to.
            In memory, the channels come last.
        actions: [n].
        returns: [n], sum of gamma^i r over the steps to the second state.
        discounts: [n], gamma^m after m steps; 0 where the episode ended on the way.
        weights: [n], of the transitions in the loss: 1 if they are drawn uniformly.
        places: [n], in the memory.
    """

    states: NDArray[np.uint8]
    actions: Places
    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    weights: NDArray[np.float32]
    places: Places


class ReplayBuffer:
    """The last transitions of several environments.

    Args:
        capacity: slots in all; each environment has an equal part.
        environments: how many.
        frame: the shape of a frame, [channels, height, width].
        stack: frames that make a state; before an episode's first one, that one is repeated.
        steps: n, of n-step returns.
        gamma: discount.
        alpha: of priorities, p = |error|^alpha; 0 draws uniformly.
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
        """Transitions that can be sampled."""
        return int(self._valid.sum())

    @property
    def written(self) -> int:
        """Slots that were written since it was empty, those included that were written over."""
        return int(self._written.sum())

    @property
    def prioritized(self) -> bool:
        """Whether transitions are drawn by their priorities."""
        return self._tree is not None

    def add(
        self,
        frames: NDArray[np.uint8],
        actions: Places,
        rewards: NDArray[Any],
        terminal: Bools,
        truncated: Bools,
        final: NDArray[np.uint8],
    ) -> None:
        """A step of each environment e.

        Args:
            frames: [e, channels, height, width], what was seen before it.
            actions: [e].
            rewards: [e].
            terminal: [e], whether nothing more was to be had after it.
            truncated: [e], whether the episode was cut after it.
            final: [e, channels, height, width], the last frame of episodes that were cut.
        """
        every = np.arange(len(frames))
        self._put(every, frames, actions, rewards, terminal, terminal, np.zeros_like(terminal))
        self._cut(np.flatnonzero(truncated & ~terminal), final)

    def interrupt(self, frames: NDArray[np.uint8]) -> None:
        """Cut the episodes under way, which nobody will go on with: their last frames [e, channels, height, width]."""
        newest = (np.arange(len(frames)), (self._written - 1) % self._length)
        self._cut(np.flatnonzero((self._written > 0) & ~self._last[newest]), frames)

    def _cut(self, which: Places, final: NDArray[np.uint8]) -> None:
        """A slot for the last frame of each of these environments."""
        if len(which):
            nothing, yes = np.zeros(len(which), bool), np.ones(len(which), bool)
            self._put(which, final[which], np.zeros(len(which), np.int64), np.zeros(len(which)), nothing, yes, yes)

    def _put(
        self,
        which: Places,
        frames: NDArray[np.uint8],
        actions: Places,
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
        """Transitions, by their priorities if there are some; weights are (N P)^-beta, by the largest of them."""
        if self._tree is None:
            return self.sample_uniformly(number, generator)
        self._check_any()
        places = self._tree.draw(number, generator)
        raw = self._tree[places] ** -beta  # N and the sum of priorities are the same in all of them
        return self._batch(places, (raw / raw.max()).astype(np.float32))

    def sample_uniformly(self, number: int, generator: np.random.Generator) -> Batch:
        """Transitions that are drawn uniformly, in random order, whatever their priorities."""
        self._check_any()
        return self._batch(self._drawn(number, generator), np.ones(number, np.float32))

    def _check_any(self) -> None:
        if not self._valid.any():
            raise ValueError(f"memory: got {self.written} slots without a whole transition, expected one to draw")

    def _batch(self, places: Places, weights: NDArray[np.float32]) -> Batch:
        number = len(places)
        parts = (self._rewards, self._terminal, self._last, self._final, self._written)
        rows, returns, discounts = _gather(*parts, places, self._stack, self._steps, self._gamma)
        channels, height, width = self._frames.shape[2:]
        flat = self._frames.reshape(-1, channels, height * width)
        seen = _look(flat, rows.reshape(2 * number, self._stack))
        # In memory the channels come last, as convolutions like them.
        states = seen.reshape(2, number, height, width, -1).transpose(0, 1, 4, 2, 3)
        return Batch(states, self._actions.reshape(-1)[places], returns, discounts, weights, places)

    def update_priorities(self, places: Places, errors: NDArray[Any]) -> None:
        """The transitions at `places` had these errors."""
        if self._tree is None:
            return
        priorities = (np.abs(errors).astype(np.float64) + _MORE) ** self._alpha
        self._tree[places] = priorities
        self._highest = max(self._highest, float(priorities.max()))

    def state(self) -> Arrays:
        """All of it, the frames compressed."""
        used = min(int(self._written.max(initial=0)), self._length)
        found: Arrays = {name: getattr(self, name)[:, :used].copy() for name in _COLUMNS}
        found |= {f"frames/{e}": _packed(own[:used]) for e, own in enumerate(self._frames)}
        found["written"] = self._written.copy()
        if self._tree is not None:
            found |= {"priorities": self._tree[self._all(used)], "highest": np.array(self._highest)}
        return found

    def load_state(self, state: Arrays) -> None:
        """As it was when `state` was taken."""
        used = state["_valid"].shape[1]
        for name in _COLUMNS:
            getattr(self, name)[:, :used] = state[name]
        for e, own in enumerate(self._frames):
            _unpack(state[f"frames/{e}"], own[:used])
        self._written[:] = state["written"]
        if self._tree is not None:
            self._tree[self._all(used)] = state["priorities"]
            self._highest = float(state["highest"])

    def _all(self, used: int) -> Places:
        """The first `used` places of each environment."""
        return (np.arange(len(self._frames))[:, None] * self._length + np.arange(used)).reshape(-1)

    def _drawn(self, number: int, generator: np.random.Generator) -> Places:
        """Places of transitions, drawn uniformly."""
        used = min(int(self._written.max()), self._length)
        valid = self._valid.reshape(-1)
        found = np.empty(0, np.int64)
        while len(found) < number:  # few slots hold no whole transition, so this ends soon
            environments = generator.integers(len(self._frames), size=number)
            places = environments * self._length + generator.integers(used, size=number)
            found = np.concatenate([found, places[valid[places]]])
        return found[:number]


def _packed(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Compressed, without a copy of the frames."""
    return np.frombuffer(zlib.compress(frames.data, 1), np.uint8)


def _unpack(packed: NDArray[np.uint8], frames: NDArray[np.uint8]) -> None:
    """Write what was packed into `frames`, piece by piece, so that it is never there twice."""
    rows, reader, at = frames.reshape(-1), zlib.decompressobj(), 0
    for start in range(0, len(packed), _PIECE):
        piece = np.frombuffer(reader.decompress(packed[start : start + _PIECE].data), np.uint8)
        rows[at : at + len(piece)] = piece
        at += len(piece)
    if at != len(rows):
        raise ValueError(f"frames: got {at} bytes, expected {len(rows)}")


@njit(cache=True)
def _refresh(
    valid: Bools, terminal: Bools, final: Bools, written: Places, which: Places, stack: int, steps: int
) -> Places:
    """Mark which slots hold a whole transition now that one was written in each of `which`; places that changed."""
    length = valid.shape[1]
    changed = np.empty(len(which) * (steps + stack + 2), np.int64)
    number = 0
    for e in which:
        newest, oldest = written[e] - 1, max(0, written[e] - length)
        # The slot that was written over is not whole yet; of the oldest ones, earlier frames are lost.
        gone = [newest]
        if oldest > 0:
            for t in range(oldest, min(oldest + stack - 1, newest)):
                gone.append(t)
        for t in gone:
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
    written: Places,
    places: Places,
    stack: int,
    steps: int,
    gamma: float,
) -> tuple[Places, NDArray[np.float32], NDArray[np.float32]]:
    """Rows of frames [2, n, stack] of both states, n-step returns [n] and discounts [n]."""
    length = rewards.shape[1]
    rows = np.empty((2, len(places), stack), np.int64)
    returns, discounts = np.zeros(len(places), np.float32), np.zeros(len(places), np.float32)
    for k in range(len(places)):
        e, slot = places[k] // length, places[k] % length
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
def _look(frames: NDArray[np.uint8], rows: Places) -> NDArray[np.uint8]:
    """Frames [rows, channels, pixels] at rows [n, stack] -> stacks [n, pixels, stack * channels]."""
    _, channels, pixels = frames.shape
    stack = rows.shape[1]
    found = np.empty((len(rows), pixels, stack * channels), np.uint8)
    for k in range(len(rows)):
        if stack == 4 and channels == 1:  # Atari's: one pass, which writes from end to end, takes a third of the time
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
