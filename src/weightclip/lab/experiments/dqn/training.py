"""Training of DQN and Rainbow, one part of the run at a time.

Updates run while the environments make the next step, on a replay buffer that does not contain this step yet. The
result therefore does not depend on which of the two is faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weightclip.diagnostics import (
    dormant_fraction,
    gradient_covariance,
    gradient_matrices,
    l2_norm,
    weight_matrices,
)
from weightclip.lab.callbacks import NO_CALLBACKS, Callbacks, Progress, ignore
from weightclip.lab.checkpoint import Arrays, Row, from_array, to_array
from weightclip.lab.device import describe_device, find_device, threads
from weightclip.lab.experiments.dqn.agent import Agent
from weightclip.lab.experiments.dqn.config import NAME, Config, resolve
from weightclip.lab.experiments.dqn.dqn import DQN
from weightclip.lab.experiments.dqn.environments import FRAME_SKIP, MAX_FRAMES, Environments
from weightclip.lab.experiments.dqn.metrics import COVARIANCE, METRICS, SCHEMA, compare_with_paper
from weightclip.lab.experiments.dqn.rainbow import Rainbow
from weightclip.lab.experiments.dqn.replay_buffer import ReplayBuffer
from weightclip.lab.networks.q_networks import noise_disabled
from weightclip.lab.optimizers import fraction_at_bound
from weightclip.lab.records.record import Record, identity
from weightclip.lab.records.store import relative_path
from weightclip.lab.runner import Trial, run_trial, simulator

AGENTS: dict[str, type[Agent]] = {"dqn": DQN, "rainbow": Rainbow}
MAX_EVAL_STEPS = MAX_FRAMES // FRAME_SKIP["atari"]
"""Steps after which an evaluation episode is truncated."""

DORMANT_STATES = 256
"""Number of states for the fraction of dormant units."""

_PLAY, _SAMPLE, _EPISODES, _EVALUATION, _METRICS = range(5)
"""Separate the random streams of one seed."""


class Trainer:
    """A run of DQN or Rainbow.

    Args:
        config: a resolved configuration.
        device: device of the networks.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config = config
        self.envs = make_environments(config.suite, config.game, config.num_envs or 1, config.sticky_action_prob or 0.0)
        self.agent = AGENTS[config.agent](config, self.envs.frame, self.envs.actions, device)
        self.replay_buffer = self._empty_buffer()
        self.steps = 0
        self._generators = {key: np.random.default_rng([config.seed, key]) for key in (_PLAY, _SAMPLE, _EPISODES)}
        self._covariances: Arrays = {}
        self.restarted: str | None = None
        """Why a loaded run started new games; None if it continues bit for bit."""
        self._returns = self._lengths = math.nan
        self._loss = self._value = self._gradient = 0.0
        self._start_episodes()

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

    def _start_episodes(self) -> None:
        """Start new episodes in all environments."""
        seeds = self._generators[_EPISODES].integers(2**31, size=self.config.num_envs).tolist()
        self._frames = self.envs.reset(seeds)
        self._stacks = np.tile(self._frames, (1, self.config.stack, 1, 1))

    def learn(self, part: int, on_progress: Progress = ignore) -> Row:
        """Train for part 0, 1, ... of the run and return its row of the table."""
        config, began, before = self.config, time.perf_counter(), (self.steps, self.agent.updates)
        end = config.steps * (part + 1) // config.points
        episodes: list[tuple[float, int]] = []
        sums = torch.zeros(2, device=self.agent.device)
        while self.steps < end:
            actions = self._send()
            sums += self._update(config.max_updates)
            episodes += self._store(actions)
            # Steps before the first update are faster and would bias the estimated time.
            if self._filled and self.steps % 100 < len(actions):
                on_progress(self.steps * FRAME_SKIP[config.suite], self._returns)
        if part + 1 == config.points:
            sums += self._remaining_updates()
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
            **self._network_metrics(),
            "exploration": config.epsilon_after(self.steps),
            "frames_per_second": steps * FRAME_SKIP[config.suite] / seconds,
            "updates_per_second": updates / seconds,
        }
        self._record_covariance(part)
        on_progress(self.steps * FRAME_SKIP[config.suite], self._returns)
        return row

    @property
    def due(self) -> int:
        """The number of updates due under the replay ratio."""
        return self.config.updates_after(self.steps) - self.agent.updates

    @property
    def _filled(self) -> bool:
        """Whether the replay buffer holds `learning_starts` steps; a resumed run may start with an empty one."""
        return self.replay_buffer.written >= (self.config.learning_starts or 0)

    def _update(self, limit: int) -> Tensor:
        """Make the updates that are due, at most `limit`, once the replay buffer is filled."""
        return self.train(min(self.due, limit) if self._filled else 0)

    def _remaining_updates(self) -> Tensor:
        """Make all updates that are due, if there are transitions to sample."""
        return self.train(self.due if len(self.replay_buffer) else 0)

    def play(self, times: int) -> None:
        """Step all environments `times` times without updates."""
        for _ in range(times):
            self._store(self._send())

    def train(self, updates: int) -> Tensor:
        """Make updates and return the sums of the losses and of the maximum Q-values, [2]."""
        config, sums = self.config, torch.zeros(2, device=self.agent.device)
        for _ in range(updates):
            batch = self.replay_buffer.sample(
                config.batch_size, self._generators[_SAMPLE], config.beta_after(self.steps)
            )
            update = self.agent.learn(batch)
            if self.replay_buffer.prioritized:  # otherwise the errors stay on the device
                self.replay_buffer.update_priorities(batch.indices, update.errors.cpu().numpy())
            sums += torch.stack([update.loss, self.agent.q_values(update.outputs).amax(1).mean()])
        return sums

    def _send(self) -> NDArray[np.int64]:
        """Start a step of all environments and return the actions [e]."""
        actions = self.agent.act(self._stacks, self.config.epsilon_after(self.steps), self._generators[_PLAY])
        self.envs.send(actions)
        return actions

    def _store(self, actions: NDArray[np.int64]) -> list[tuple[float, int]]:
        """Finish a step, store it and return the episodes that ended."""
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
        """The mean return of `eval_episodes` whole games with `evaluation_eps` and without noise."""
        config, generator = self.config, np.random.default_rng([self.config.seed, _EVALUATION, part])
        envs = make_environments(config.suite, config.game, config.eval_episodes, config.sticky_action_prob or 0.0)
        frames = envs.reset(generator.integers(2**31, size=config.eval_episodes).tolist())
        stacks = np.tile(frames, (1, config.stack, 1, 1))
        returns, running = np.zeros(config.eval_episodes), np.ones(config.eval_episodes, bool)
        with noise_disabled(self.agent.online), closing(envs):
            for _ in range(MAX_EVAL_STEPS):
                envs.send(self.agent.act(stacks, config.evaluation_eps, generator))
                step = envs.receive()
                returns += step.rewards * running
                over = step.terminated | step.truncated
                stacks = stacked(stacks, step.frames, over)
                running &= ~over
                if not running.any():
                    break
        return float(returns.mean())

    @torch.no_grad()
    def _network_metrics(self) -> dict[str, float]:
        """Metrics of the network at the end of a part."""
        online = self.agent.online
        outputs: list[Tensor] = []
        hooks = [
            layer.register_forward_hook(lambda _, __, output: outputs.append(output))
            for layer in online.modules()
            if isinstance(layer, nn.ReLU)
        ]
        dormant = math.nan
        if len(self.replay_buffer):
            generator = np.random.default_rng([self.config.seed, _METRICS, self.steps])
            batch = self.replay_buffer.sample_uniformly(DORMANT_STATES, generator)
            with noise_disabled(online):
                self.agent.values(torch.from_numpy(batch.states[0]).to(self.agent.device))
            dormant = dormant_fraction(outputs)
        for hook in hooks:
            hook.remove()
        return {
            "weight_l2": l2_norm(weight_matrices(online)).item(),
            "clipped": fraction_at_bound(self.agent.optimizer),
            "dormant": dormant,
        }

    def covariance(self) -> Tensor:
        """C[i, j], the cosine of the loss gradients of transitions i and j, uniformly sampled, no noise: [k, k]."""
        generator = np.random.default_rng([self.config.seed, _METRICS, self.steps, 1])
        batch = self.agent.to_device(self.replay_buffer.sample_uniformly(self.config.covariance, generator))

        def loss(outputs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
            return self.agent.errors(outputs, actions, targets).sum()

        with noise_disabled(self.agent.online, self.agent.target):
            targets = self.agent.targets(batch)
            return gradient_covariance(self.agent.online, loss, (batch.states, batch.actions, targets))

    def _record_covariance(self, part: int) -> None:
        """Record the gradient covariance at the configured percentages, if there are transitions."""
        points = self.config.points
        is_enabled = self.config.covariance and len(self.replay_buffer)
        for percent in self.config.covariance_at:
            if is_enabled and (part + 1) * 100 == percent * points:
                self._covariances[str(percent)] = self.covariance().numpy()

    def covariances(self) -> Arrays:
        """Percent of the run -> gradient covariance matrix."""
        return dict(self._covariances)

    def state(self) -> Arrays:
        """The state at the end of a part, with the replay buffer and the games if they are saved."""
        found = {
            **{f"agent/{name}": array for name, array in self.agent.state().items()},
            **{f"generator/{key}": to_array(generator) for key, generator in self._generators.items()},
            **{f"covariance/{name}": array for name, array in self._covariances.items()},
            "steps": np.array(self.steps),
            "last": np.array([self._returns, self._lengths, self._loss, self._value, self._gradient]),
        }
        if self.config.save_buffer:
            found |= {f"memory/{name}": array for name, array in self.replay_buffer.state().items()}
            found |= {"frames": self._frames, "stacks": self._stacks}
            found |= {f"games/{name}": array for name, array in self.envs.state().items()}
        return found

    def load_state(self, state: Arrays) -> None:
        """Restore a `state`. Without the games, new ones start; `restarted` is the reason."""

        def part(name: str) -> Arrays:
            return {key.removeprefix(name): array for key, array in state.items() if key.startswith(name)}

        self.agent.load_state(part("agent/"))
        for key, generator in self._generators.items():
            from_array(generator, state[f"generator/{key}"])
        self._covariances = part("covariance/")
        self.steps = int(state["steps"])
        self._returns, self._lengths, self._loss, self._value, self._gradient = state["last"].tolist()
        buffer, games = part("memory/"), part("games/")
        if buffer:
            self.replay_buffer.load_state(buffer)
        self.restarted = (
            self._load_games(games, state)
            if games
            else f"the checkpoint has no {'games' if buffer else 'replay buffer'}"
        )
        if self.restarted is not None:
            if buffer:
                self.replay_buffer.truncate_episodes(state["frames"])
            self._start_episodes()

    def _load_games(self, games: Arrays, state: Arrays) -> str | None:
        """Continue the saved games, or return why this is impossible."""
        try:
            self.envs.load_state(games)
        except ValueError as error:
            return str(error)
        self._frames, self._stacks = state["frames"], state["stacks"]
        return None

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def make_environments(suite: str, game: str, num_envs: int, sticky_action_prob: float) -> Environments:
    """Several environments of a game.

    Args:
        suite: one of `environments.SUITES`.
        game: name of the game in any spelling.
        num_envs: the number of environments.
        sticky_action_prob: the probability that the last action is repeated instead of the one sent.
    """
    if suite == "minatar":
        from weightclip.lab.experiments.dqn.minatar import MinAtar

        return MinAtar(game, num_envs, sticky_action_prob)
    from weightclip.lab.experiments.dqn.atari import Atari

    return Atari(game, num_envs, sticky_action_prob)


def stacked(stacks: NDArray[np.uint8], frames: NDArray[np.uint8], started: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Append frames [e, channels, ...] to stacks [e, stack * channels, ...]; repeat the first frame of an episode."""
    channels = frames.shape[1]
    found = np.concatenate([stacks[:, channels:], frames], axis=1)
    if started.any():
        found[started] = np.tile(frames[started], (1, stacks.shape[1] // channels, 1, 1))
    return found


WHOLE = ("part", "samples", "updates", "ended")
"""Integer columns."""

MADE_BY = {"atari": "ale-py", "minatar": "MinAtar"}
"""Suite -> package of its games."""


def run_config(
    config: Config, out: Path | None = None, overwrite: bool = False, callbacks: Callbacks = NO_CALLBACKS
) -> Record:
    """Run one configuration, resume it after its last part, or read its record if it is finished.

    A resumed run continues bit for bit if `save_buffer` is set; otherwise it starts new games.
    """
    requested, config = config, resolve(config)
    device = find_device(config.device)

    def learn(trainer: Trainer, part: int, rows: Sequence[Row]) -> Row:
        return trainer.learn(part, callbacks.on_progress)

    with threads(config.threads), ExitStack() as end:

        def make() -> Trainer:
            trainer = Trainer(config, device)
            end.callback(trainer.close)
            return trainer

        trial = Trial(
            schema=SCHEMA,
            identity=identity(NAME, config.facts(), None),
            relative_path=relative_path(SCHEMA, config),
            label=f"{config.game} {config.agent} {config.method} seed {config.seed}",
            config=config.facts(),
            data=simulator(config.game, (MADE_BY[config.suite],)),
            comparison=compare_with_paper(config),
            loss="training_loss",
            rows=config.points,
            make=make,
            learn=learn,
            table=lambda rows: _table(config, rows),
            columns=("part", "samples", *METRICS),
            tables=lambda trainer: _covariances(trainer.covariances()),
            platform=describe_device(device),
            device=device.type,
            restarted=lambda trainer: trainer.restarted,
        )
        return run_trial(trial, out, overwrite, callbacks.on_event, partial(callbacks.on_row, requested))


def _table(config: Config, rows: Sequence[Row]) -> pl.DataFrame:
    """The table, with null before the first game has ended and before the first update."""
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.Float64))
    early, idle = pl.col("ended").cum_sum() == 0, pl.col("updates") == 0
    found = table.with_columns(
        pl.lit(config.seed, pl.Int64).alias("seed"),
        pl.col(WHOLE).cast(pl.Int64),
        pl.when(~early).then(pl.col("return", "length")),
        pl.when(~idle).then(pl.col("training_loss", "q", "gradient_l2")),
    )
    return found.select("seed", pl.exclude("seed"))


def _covariances(found: Arrays) -> dict[str, pl.DataFrame]:
    tables = []
    for percent, matrix in found.items():
        row, column = np.indices(matrix.shape)
        columns = {"row": row.ravel(), "column": column.ravel(), "value": matrix.ravel().astype(np.float32)}
        tables.append(pl.DataFrame(columns).insert_column(0, pl.Series("percent", [int(percent)] * matrix.size)))
    return {COVARIANCE: pl.concat(tables)} if tables else {}
