"""ale-py's `AtariVectorEnv` with the interface of the lab, as the reference for the lab's environments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from weightclip.lab.checkpoint import Arrays
from weightclip.lab.experiments.dqn.environments import (
    FRAME_SKIP,
    MAX_FRAMES,
    Frames,
    Scores,
    Step,
    find_game,
)


class VectorAtari:
    """An environment like `weightclip.lab.experiments.dqn.atari.Atari` whose state cannot be saved."""

    def __init__(self, game: str, number: int, sticky_action_prob: float = 0.0, max_frames: int = MAX_FRAMES) -> None:
        self._games = AtariVectorEnv(
            find_game("atari", game),
            number,
            batch_size=0,  # step all environments
            num_threads=1,
            thread_affinity_offset=-1,  # no CPU affinity
            max_num_frames_per_episode=max_frames,
            repeat_action_probability=sticky_action_prob,
            full_action_space=False,
            continuous=False,
            continuous_action_threshold=0.5,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=84,
            img_width=84,
            grayscale=True,
            stack_num=1,
            frameskip=FRAME_SKIP["atari"],
            maxpool=True,
            noop_max=30,
            episodic_life=False,  # lives are tracked here, so that returns are of whole games
            life_loss_info=False,
            reward_clipping=False,
            use_fire_reset=True,
        )
        self.actions = int(self._games.single_action_space.n)  # type: ignore[attr-defined]
        self.frame = (1, 84, 84)
        self._lives = np.zeros(number, np.int64)
        self._scores = Scores(number)

    def reset(self, seeds: Sequence[int]) -> Frames:
        frames, about = self._games.reset(seed=np.array(seeds, np.int64))
        self._lives = np.array(about["lives"])
        self._scores.reset()
        return np.array(frames)

    def send(self, actions: NDArray[np.int64]) -> None:
        self._games.send(actions)

    def receive(self) -> Step:
        frames, rewards, terminated, truncated, about = self._games.recv()
        lives, over = np.array(about["lives"]), np.array(terminated | truncated)
        lost = (lives > 0) & (lives < self._lives) & ~over
        self._lives = lives
        # The next step overwrites the memory of the received frames.
        frames = np.array(frames)
        final = np.where(over[:, None, None, None], about["final_obs"], frames) if over.any() else frames
        rewards = np.array(rewards, np.float64)
        episodes = self._scores.add(rewards, over)
        return Step(frames, rewards, lost, np.array(terminated), np.array(truncated), final, episodes)

    def state(self) -> Arrays:
        return {}

    def load_state(self, state: Arrays) -> None:
        raise ValueError("environment: AtariVectorEnv cannot restore a state")

    def close(self) -> None:
        self._games.close()
