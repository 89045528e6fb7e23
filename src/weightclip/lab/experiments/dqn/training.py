"""Training: an agent plays, remembers and learns, one part of the run after the other.

The updates that are due after some steps are made while the games take the next ones, from a memory that does not have
these yet. So it does not matter for the result which of the two is faster.
"""

from __future__ import annotations

import math
import time
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weightclip.diagnostics import (
    dormant_share,
    gradient_covariance,
    gradient_matrices,
    l2_norm,
    weight_matrices,
)
from weightclip.lab.checkpoint import Arrays, Row, from_array, to_array
from weightclip.lab.experiment import Progress, ignore
from weightclip.lab.experiments.dqn.agent import Agent
from weightclip.lab.experiments.dqn.config import Config
from weightclip.lab.experiments.dqn.dqn import DQN
from weightclip.lab.experiments.dqn.environments import FRAME_SKIP, LIMIT, make_environments
from weightclip.lab.experiments.dqn.rainbow import Rainbow
from weightclip.lab.experiments.dqn.replay_buffer import ReplayBuffer
from weightclip.lab.networks.noisy import noise_disabled
from weightclip.lab.optimizers import fraction_at_bound

AGENTS: dict[str, type[Agent]] = {"dqn": DQN, "rainbow": Rainbow}
LONGEST = LIMIT // FRAME_SKIP["atari"]
"""Steps after which an episode of an evaluation is cut."""

LOOKED_AT = 256
"""States that units are looked at with."""

_PLAY, _SAMPLE, _GAMES, _TEST, _LOOK = range(5)
"""Keep the draws of one seed apart."""


class Trainer:
    """A run of DQN or Rainbow.

    Args:
        config: a resolved one.
        device: where the networks are.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config = config
        environments = config.num_envs or 1
        self.envs = make_environments(config.suite, config.game, environments, config.sticky_action_prob or 0.0)
        self.agent = AGENTS[config.agent](config, self.envs.frame, self.envs.actions, device)
        self.replay_buffer = self._empty_buffer()
        self.steps = 0
        self._generators = {key: np.random.default_rng([config.seed, key]) for key in (_PLAY, _SAMPLE, _GAMES)}
        self._covariances: Arrays = {}
        self._returns = self._lengths = math.nan
        self._loss = self._value = self._gradient = 0.0
        self._begin()

    def _empty_buffer(self) -> ReplayBuffer:
        c = self.config
        return ReplayBuffer(
            c.buffer_size or 0,
            c.num_envs or 1,
            self.envs.frame,
            c.stack,
            c.n_step,
            c.gamma,
            c.alpha if c.agent == "rainbow" else 0.0,
        )

    def _begin(self) -> None:
        """New episodes everywhere."""
        seeds = self._generators[_GAMES].integers(2**31, size=self.config.num_envs).tolist()
        self._frames = self.envs.reset(seeds)
        self._stacks = np.tile(self._frames, (1, self.config.stack, 1, 1))

    def learn(self, part: int, on_progress: Progress = ignore) -> Row:
        """Part 0, 1, ... of the run: a row of the table."""
        config, began, before = self.config, time.perf_counter(), (self.steps, self.agent.updates)
        end = config.steps * (part + 1) // config.points
        episodes: list[tuple[float, int]] = []
        sums = torch.zeros(2, device=self.agent.device)
        while self.steps < end:
            actions = self._send()
            sums += self._update(config.max_updates)
            episodes += self._store(actions)
            if self._filled and self.steps % 100 < len(actions):  # steps of the warm-up are faster than those to come
                on_progress(self.steps * FRAME_SKIP[config.suite], self._returns)
        if part + 1 == config.points:
            sums += self._catch_up()
        if episodes:
            self._returns, self._lengths = np.mean(episodes, axis=0).tolist()
        steps, updates = self.steps - before[0], self.agent.updates - before[1]
        if updates:
            self._loss, self._value = (sums / updates).tolist()
            self._gradient = l2_norm(gradient_matrices(self.agent.online)).item()
        seconds = time.perf_counter() - began
        row = {
            "part": part + 1,
            "samples": self.steps * FRAME_SKIP[config.suite],
            "updates": self.agent.updates,
            "ended": len(episodes),
            "return": self._returns,
            "length": self._lengths,
            "test_return": self.evaluate(part),
            "training_loss": self._loss,
            "q": self._value,
            "gradient_l2": self._gradient,
            **self._look(),
            "exploration": config.epsilon_after(self.steps),
            "frames_per_second": steps * FRAME_SKIP[config.suite] / seconds,
            "updates_per_second": updates / seconds,
        }
        self._note_covariance(part)
        on_progress(self.steps * FRAME_SKIP[config.suite], self._returns)
        return row

    @property
    def due(self) -> int:
        """Updates that the replay ratio asks for and that were not made yet."""
        return self.config.updates_after(self.steps) - self.agent.updates

    @property
    def _filled(self) -> bool:
        """Whether the memory has as much as after the warm-up."""
        return self.replay_buffer.written >= (self.config.learning_starts or 0)

    def _update(self, most: int) -> Tensor:
        """Practise as much as is due, up to `most`, once the memory is filled."""
        return self.train(min(self.due, most) if self._filled else 0)

    def _catch_up(self) -> Tensor:
        """Practise all that is due, as long as there is anything to draw."""
        return self.train(self.due if len(self.replay_buffer) else 0)

    def play(self, times: int) -> None:
        """Steps of all games, without updates."""
        for _ in range(times):
            self._store(self._send())

    def train(self, updates: int) -> Tensor:
        """Updates; the sums of losses and of the best actions' values, [2]."""
        config, sums = self.config, torch.zeros(2, device=self.agent.device)
        for _ in range(updates):
            batch = self.replay_buffer.sample(
                config.batch_size, self._generators[_SAMPLE], config.beta_after(self.steps)
            )
            update = self.agent.learn(batch)
            if self.replay_buffer.prioritized:  # else the errors stay on their device
                self.replay_buffer.update_priorities(batch.places, update.errors.cpu().numpy())
            sums += torch.stack([update.loss, self.agent.q_values(update.outputs).amax(1).mean()])
        return sums

    def _send(self) -> NDArray[np.int64]:
        """Begin a step of all games: the actions [e]."""
        actions = self.agent.act(self._stacks, self.config.epsilon_after(self.steps), self._generators[_PLAY])
        self.envs.send(actions)
        return actions

    def _store(self, actions: NDArray[np.int64]) -> list[tuple[float, int]]:
        """End a step: remember it; the episodes that ended with it."""
        step = self.envs.receive()
        terminal = step.terminated | step.lost if self.config.terminal_on_life_loss else step.terminated
        rewards = np.sign(step.rewards) if self.config.clip_rewards else step.rewards
        self.replay_buffer.add(self._frames, actions, rewards, terminal, step.truncated, step.final)
        self._frames = step.frames
        self._stacks = stacked(self._stacks, step.frames, terminal | step.truncated)
        self.steps += len(actions)
        return step.episodes

    @torch.no_grad()
    def evaluate(self, part: int) -> float:
        """The mean return of whole games that are played with few random actions, and without noise."""
        config, generator = self.config, np.random.default_rng([self.config.seed, _TEST, part])
        games = make_environments(config.suite, config.game, config.eval_episodes, config.sticky_action_prob or 0.0)
        frames = games.reset(generator.integers(2**31, size=config.eval_episodes).tolist())
        stacks = np.tile(frames, (1, config.stack, 1, 1))
        returns, running = np.zeros(config.eval_episodes), np.ones(config.eval_episodes, bool)
        with noise_disabled(self.agent.online), closing(games):
            for _ in range(LONGEST):
                games.send(self.agent.act(stacks, config.evaluation_eps, generator))
                step = games.receive()
                returns += step.rewards * running
                over = step.terminated | step.truncated
                stacks = stacked(stacks, step.frames, over)
                running &= ~over
                if not running.any():
                    break
        return float(returns.mean())

    @torch.no_grad()
    def _look(self) -> dict[str, float]:
        """What is measured of the network at a part's end."""
        online = self.agent.online
        outputs: list[Tensor] = []
        hooks = [
            layer.register_forward_hook(lambda _, __, output: outputs.append(output))
            for layer in online.modules()
            if isinstance(layer, nn.ReLU)
        ]
        dormant = math.nan
        if len(self.replay_buffer):
            generator = np.random.default_rng([self.config.seed, _LOOK, self.steps])
            batch = self.replay_buffer.sample_uniformly(LOOKED_AT, generator)
            with noise_disabled(online):
                self.agent.values(torch.from_numpy(batch.states[0]).to(self.agent.device))
            dormant = dormant_share(outputs)
        for hook in hooks:
            hook.remove()
        return {
            "weight_l2": l2_norm(weight_matrices(online)).item(),
            "clipped": fraction_at_bound(self.agent.optimizer),
            "dormant": dormant,
        }

    def covariance(self) -> Tensor:
        """C[i, j], the cosine of the gradients of transitions' losses, drawn uniformly, without noise: [k, k]."""
        generator = np.random.default_rng([self.config.seed, _LOOK, self.steps, 1])
        batch = self.agent.to_device(self.replay_buffer.sample_uniformly(self.config.covariance, generator))

        def loss(outputs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
            return self.agent.errors(outputs, actions, targets).sum()

        with noise_disabled(self.agent.online, self.agent.target):
            targets = self.agent.targets(batch)
            return gradient_covariance(self.agent.online, loss, (batch.states, batch.actions, targets))

    def _note_covariance(self, part: int) -> None:
        """Take it, where that was asked for and there are transitions."""
        points = self.config.points
        wanted = self.config.covariance and len(self.replay_buffer)
        for percent in self.config.covariance_at:
            if wanted and (part + 1) * 100 == percent * points:
                self._covariances[str(percent)] = self.covariance().numpy()

    def covariances(self) -> Arrays:
        """By percent of the run."""
        return dict(self._covariances)

    def state(self) -> Arrays:
        """All that a later process needs to go on, but for the episodes under way: other ones begin."""
        found = {
            **{f"agent/{name}": array for name, array in self.agent.state().items()},
            **{f"generator/{key}": to_array(own) for key, own in self._generators.items()},
            **{f"covariance/{name}": array for name, array in self._covariances.items()},
            "steps": np.array(self.steps),
            "last": np.array([self._returns, self._lengths, self._loss, self._value, self._gradient]),
        }
        if self.config.save_buffer:
            found |= {f"memory/{name}": array for name, array in self.replay_buffer.state().items()}
            found["frames"] = self._frames
        return found

    def load_state(self, state: Arrays) -> None:
        """Go on where `state` was taken, in new episodes."""

        def part(name: str) -> Arrays:
            return {key.removeprefix(name): array for key, array in state.items() if key.startswith(name)}

        self.agent.load_state(part("agent/"))
        for key, generator in self._generators.items():
            from_array(generator, state[f"generator/{key}"])
        self._covariances = part("covariance/")
        self.steps = int(state["steps"])
        self._returns, self._lengths, self._loss, self._value, self._gradient = state["last"].tolist()
        memory = part("memory/")
        if memory:
            self.replay_buffer.load_state(memory)
            self.replay_buffer.interrupt(state["frames"])
        self._begin()

    def close(self) -> None:
        """Let go of the games."""
        self.envs.close()


def stacked(stacks: NDArray[np.uint8], frames: NDArray[np.uint8], begun: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Stacks [e, stack * channels, ...] with the next frames [e, channels, ...], repeated at the beginning."""
    channels = frames.shape[1]
    found = np.concatenate([stacks[:, channels:], frames], axis=1)
    if begun.any():
        found[begun] = np.tile(frames[begun], (1, stacks.shape[1] // channels, 1, 1))
    return found
