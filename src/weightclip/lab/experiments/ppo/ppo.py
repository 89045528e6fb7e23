"""PPO (Schulman et al., 2017) with continuous actions, equivalent to CleanRL's; several seeds train in lockstep.

Each seed has its own environment, networks, optimizer, normalizers and generators. The seeds share matrix products: a
step of all environments needs one batched product, a minibatch of all learners one backward pass. Each seed learns bit
for bit what it learns alone, if `in_lockstep` holds for the configuration; otherwise seeds have to train one at a time.

An iteration: `collect` a rollout, compute `advantages`, `update`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weightclip.certificate import lipschitz_bounds
from weightclip.diagnostics import approximate_kl, l2_norm, saturated_fraction, weight_matrices
from weightclip.lab.checkpoint import Arrays, Row, from_array, load_training_state, to_array, training_state
from weightclip.lab.experiments.ppo.config import Config
from weightclip.lab.experiments.ppo.environments import Environments, Normalizer
from weightclip.lab.networks.actor_critic import ActorCritic, Layers, Stack, aligned, batched, layers_of
from weightclip.lab.optimizers import fraction_at_bound

if TYPE_CHECKING:
    from weightclip.lab.experiments.ppo.fused import FusedUpdate

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
SATURATED_90 = 0.9
WEIGHT_METRICS = ("weight_l2", "clipped", "lipschitz_policy", "lipschitz_value", "log_std")
"""Metrics of the weights alone."""

_NOISE, _ORDER, _EPISODES = range(3)
"""Separate the random streams of one seed."""

_ENVIRONMENT = "environment/"
"""Prefix of the environment's state in the state of a learner."""


@dataclass(frozen=True)
class Episode:
    """A finished episode: the learner, the learner's step at its end (from 1), its return and length."""

    learner: int
    step: int
    score: float
    length: int


@dataclass(frozen=True)
class Rollout:
    """The data of one iteration: [s, t, ...] for s learners and t steps.

    Args:
        observations: [s, t + 1, d], normalized; no action follows the last one.
        actions: [s, t, a], as sampled, not clipped.
        log_probs: [s, t], of the actions under the policy that sampled them.
        rewards: [s, t], normalized.
        ended: [s, t], 1 where the episode ended with that step, else 0.
        truncated: [s, t], 1 where the episode was truncated and not terminated, else 0.
        final_obs: [s, t, d], the last observation, normalized, of a truncated episode; undefined elsewhere.
        episodes: the episodes that ended.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    ended: Tensor
    truncated: Tensor
    final_obs: Tensor
    episodes: list[Episode]


@dataclass(frozen=True)
class Targets:
    """Advantages, returns (the targets of the value function) and values of a rollout: [s, t] each."""

    advantages: Tensor
    returns: Tensor
    values: Tensor


@dataclass(frozen=True)
class Losses:
    """Losses of one minibatch for each learner.

    Args:
        policy, value, entropy: [s].
        ratio, log_ratio: [s, n], new / old probability of an action.
        units: outputs of tanh units, [s, n, units] for each hidden layer of both networks.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor
    ratio: Tensor
    log_ratio: Tensor
    units: list[Tensor]

    def total(self, config: Config) -> Tensor:
        """The loss to minimize: policy loss - ent_coef * entropy + vf_coef * value loss, [s]."""
        return self.policy - config.ent_coef * self.entropy + config.vf_coef * self.value


def in_lockstep(config: Config) -> bool:
    """Whether each seed of a resolved configuration learns in lockstep, bit for bit, what it learns alone.

    The reference backend needs hidden layers and minibatches of multiples of 16, so that the numbers of all seeds have
    the same alignment in memory.
    """
    sizes = (*config.hidden, config.num_steps // config.num_minibatches)
    return config.backend == "fused" or all(size == aligned(size) for size in sizes)


class Learners:
    """Several seeds of one configuration, in lockstep.

    A learner whose actions or weights are not finite stops, with the reason in `stopped`; the others continue. Its
    metrics of that iteration are kept, with NaN for missing ones; later metrics are NaN.

    Args:
        configs: resolved configurations that differ only in their seeds.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = list(configs)
        self.config = configs[0]
        self.stopped: dict[int, str] = {}
        seeds = [one.seed for one in configs]
        self.environments = Environments(self.config.env, len(seeds), direct=self.config.backend == "fused")
        observations, actions = self.environments.observations, self.environments.actions
        self.stack = Stack([ActorCritic(observations, actions, self.config.hidden, seed) for seed in seeds])
        self.optimizers = [
            config.make_optimizer(member, config.bounds, fused=True)
            for config, member in zip(configs, self.stack.members, strict=True)
        ]
        self.fused: FusedUpdate | None = None
        normalizer: type[Normalizer] = Normalizer
        self._make_policy: Callable[[Layers], _MeanActions] = _Policy
        if self.config.backend == "fused":
            from weightclip.lab.experiments.ppo import fused  # imports numba

            self.fused = fused.FusedUpdate(self.config, self.stack, self.optimizers)
            normalizer, self._make_policy = fused.FusedNormalizer, fused.FusedPolicy
        self.normalizer = normalizer(len(seeds), observations, self.config.gamma)
        self.generators = [
            [np.random.default_rng([seed, key]) for key in (_NOISE, _ORDER, _EPISODES)] for seed in seeds
        ]
        self._returns = np.full(len(seeds), math.nan)
        self._lengths = np.full(len(seeds), math.nan)
        self._obs = self.normalizer.observe(self.environments.reset(seeds))

    def iterate(self, iteration: int) -> tuple[list[Row], list[Episode]]:
        """Run iteration 0, 1, ...; return a row for each learner (NaN if it has stopped) and the finished episodes."""
        began, stopped_before = time.perf_counter(), frozenset(self.stopped)
        if self.config.anneal_lr:
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = self.config.step_size(iteration)
        rollout = self.collect(iteration * self.config.num_steps)
        not_updated = frozenset(self.stopped)
        measured = self.update(rollout, self.advantages(rollout))
        self._stop(~torch.isfinite(self.stack.weights.detach()).all(1).numpy(), "its weights are not finite")
        weights = [self._weights(s) for s in range(len(self.configs))]
        speed = (len(self.configs) - len(stopped_before)) * self.config.num_steps / (time.perf_counter() - began)
        rows = []
        for s in range(len(self.configs)):
            own = [(one.score, one.length) for one in rollout.episodes if one.learner == s]
            if own:
                self._returns[s], self._lengths[s] = np.mean(own, axis=0)
            row: Row = {
                "return": self._returns[s],
                "length": self._lengths[s],
                "episodes": len(own),
                **{name: math.nan if s in not_updated else values[s].item() for name, values in measured.items()},
                **weights[s],
                "speed": speed,
            }
            rows.append({name: math.nan if s in stopped_before else float(value) for name, value in row.items()})
        return rows, rollout.episodes

    @np.errstate(over="ignore", invalid="ignore")  # divergence is reported for each learner
    def collect(self, steps_before: int = 0) -> Rollout:
        """Collect a rollout with the current policy; each environment has made `steps_before` steps."""
        learners, steps = len(self.configs), self.config.num_steps
        observations = np.empty((steps + 1, learners, self.environments.observations), np.float32)
        final_obs = np.zeros_like(observations[1:])
        rewards, ended, truncated = np.empty((3, steps, learners), np.float32)
        shape = (steps, self.environments.actions)
        draws = [own[_NOISE].standard_normal(shape, dtype=np.float32) for own in self.generators]
        noise = np.stack(draws, axis=1)  # [t, s, a]
        tensors = {name: tensor.detach() for name, tensor in self.stack.tensors().items()}
        log_std = tensors["actor_logstd"].numpy()[:, 0]  # [s, a]
        scaled = np.exp(log_std) * noise
        policy = self._make_policy(layers_of(tensors, "actor_mean"))
        actions = np.empty_like(noise)
        episodes = []
        for t in range(steps):
            observations[t] = self._obs
            np.add(policy(self._obs), scaled[t], out=actions[t])
            self._stop(~np.isfinite(actions[t]).all(axis=1), "its actions are not finite")
            step = self.environments.step(actions[t], self.stopped)
            active = self._active()
            self._obs = self.normalizer.observe(step.final_obs, active)
            rewards[t] = self.normalizer.reward(step.rewards, step.terminated, active)
            ended[t], truncated[t] = step.terminated | step.truncated, step.truncated & ~step.terminated
            if step.episodes:  # the last observation and the first one of the next episode both update the statistics
                final_obs[t] = self._obs
                self._obs = self.normalizer.observe(step.observations, step.terminated | step.truncated)
                episodes += [Episode(s, steps_before + t + 1, score, length) for s, score, length in step.episodes]
        observations[steps] = self._obs
        log_probs = (-0.5 * noise * noise - log_std - HALF_LOG_2PI).sum(axis=2)
        return Rollout(
            _by_learner(observations),
            _by_learner(actions),
            _by_learner(log_probs),
            _by_learner(rewards),
            _by_learner(ended),
            _by_learner(truncated),
            _by_learner(final_obs),
            episodes,
        )

    @torch.no_grad()
    def advantages(self, rollout: Rollout) -> Targets:
        """Generalized advantage estimation: A_t = delta_t + gamma lambda A_(t+1), delta_t = r_t + gamma V_(t+1) - V_t.

        V_(t+1) and A_(t+1) are 0 at the end of an episode. A truncated episode counts as terminated; with
        `bootstrap_truncated`, gamma V(final observation) is added to its last reward.
        """
        config, values = self.config, self._values(rollout.observations)  # [s, t + 1]
        rewards, continues = rollout.rewards, 1.0 - rollout.ended
        if config.bootstrap_truncated:
            rewards = rewards + config.gamma * self._values(rollout.final_obs) * rollout.truncated
        deltas = rewards + config.gamma * values[:, 1:] * continues - values[:, :-1]
        advantages = discounted_sums(deltas, config.gamma * config.gae_lambda * continues)
        return Targets(advantages, advantages + values[:, :-1], values[:, :-1])

    def _values(self, observations: Tensor) -> Tensor:
        """The values [s, n] of observations [s, n, d]."""
        n = observations.shape[1]
        # With padded rows, the units of all learners have the same alignment, whatever their number.
        padded = nn.functional.pad(observations, (0, 0, 0, aligned(n) - n))
        return batched(layers_of(self.stack.tensors(), "critic"), padded)[0][:, :n, 0]

    def update(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        """Update for `update_epochs` epochs in minibatches and return the metrics, [s] each."""
        config, learners = self.config, len(self.configs)
        assert config.update_epochs is not None  # resolved
        scalars = [rollout.log_probs, targets.advantages, targets.returns, targets.values]
        parts = [rollout.observations[:, :-1], rollout.actions, torch.stack(scalars, dim=2)]
        orders = np.stack(
            [
                [own[_ORDER].permutation(config.num_steps) for own in self.generators]
                for _ in range(config.update_epochs)
            ]
        )  # [epochs, s, t]
        explained = 1 - (targets.returns - targets.values).var(1) / targets.returns.var(1)
        if self.fused is not None:
            return {**self.fused.update(orders, parts, self.stopped), "explained_variance": explained}
        flat = [part.reshape(learners * config.num_steps, -1) for part in parts]
        first = torch.arange(learners).unsqueeze(1) * config.num_steps
        clipped, norms = torch.zeros(2, learners)
        for order in orders:
            for rows in (torch.from_numpy(order) + first).chunk(config.num_minibatches, dim=1):
                batch = [whole.index_select(0, rows.flatten()).view(*rows.shape, -1) for whole in flat]
                losses = self._losses(*batch)
                self.stack.gradients.zero_()
                losses.total(config).sum().backward()  # type: ignore[no-untyped-call]
                norms += self._clip_gradients()
                for s, optimizer in enumerate(self.optimizers):
                    if s not in self.stopped:
                        optimizer.step()
                clipped += ((losses.ratio.detach() - 1).abs() > config.clip_coef).float().mean(1)
        updates = config.num_minibatches * config.update_epochs
        units = [[unit[s] for unit in losses.units] for s in range(learners)]
        # Comparisons with NaN are False: the fractions of a diverged learner would be 0 instead of NaN.
        finite = torch.where(losses.log_ratio.detach().isnan().any(1), math.nan, 1.0)
        return {
            "approx_kl": approximate_kl(losses.log_ratio),
            "old_approx_kl": -losses.log_ratio.detach().mean(1),
            "clip_fraction": finite * clipped / updates,
            "policy_loss": losses.policy.detach(),
            "value_loss": losses.value.detach(),
            "entropy": losses.entropy.detach(),
            "explained_variance": explained,
            "gradient_l2": norms / updates,
            "saturated": finite * torch.tensor([saturated_fraction(own) for own in units]),
            "saturated_90": finite * torch.tensor([saturated_fraction(own, SATURATED_90) for own in units]),
        }

    def _losses(self, observations: Tensor, actions: Tensor, scalars: Tensor) -> Losses:
        """Losses of a minibatch for each learner: observations [s, n, d], actions [s, n, a], scalars [s, n, 4]."""
        config = self.config
        old_log_probs, advantages, returns, old_values = scalars.unbind(2)
        if config.norm_adv:
            deviation, mean = torch.std_mean(advantages, dim=1, keepdim=True)
            advantages = (advantages - mean) / (deviation + 1e-8)
        tensors = self.stack.tensors()
        means, policy_units = batched(layers_of(tensors, "actor_mean"), observations)
        values, value_units = batched(layers_of(tensors, "critic"), observations)
        log_std = tensors["actor_logstd"]  # [s, 1, a]
        deviations = (actions - means) * torch.exp(-log_std)
        log_probs = (-0.5 * deviations.square() - log_std - HALF_LOG_2PI).sum(2)
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        clipped_ratio = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
        values = values.squeeze(2)
        errors = (values - returns).square()
        if config.clip_vloss:
            clipped_values = old_values + (values - old_values).clamp(-config.clip_coef, config.clip_coef)
            errors = torch.max(errors, (clipped_values - returns).square())
        return Losses(
            policy=torch.max(-advantages * ratio, -advantages * clipped_ratio).mean(1),
            value=0.5 * errors.mean(1),
            entropy=(log_std + 0.5 + HALF_LOG_2PI).sum((1, 2)),
            ratio=ratio,
            log_ratio=log_ratio,
            units=[*policy_units, *value_units],
        )

    @torch.no_grad()
    def _clip_gradients(self) -> Tensor:
        """Clip each learner's gradient to `max_grad_norm` and return the norms before clipping, [s]."""
        norms: Tensor = torch.linalg.vector_norm(self.stack.gradients, dim=1)
        self.stack.gradients.mul_((self.config.max_grad_norm / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1))
        return norms

    @torch.no_grad()
    def _weights(self, s: int) -> Row:
        """Metrics of a learner's weights at the end of an iteration; NaN if they are not finite."""
        if not torch.isfinite(self.stack.weights[s]).all():
            return dict.fromkeys(WEIGHT_METRICS, math.nan)
        own = self.stack.members[s]
        both = weight_matrices(nn.ModuleList([own.actor_mean, own.critic]))
        numbers = (
            l2_norm(both).item(),
            fraction_at_bound(self.optimizers[s]),
            lipschitz_bounds(own.actor_mean).now[2],
            lipschitz_bounds(own.critic).now[2],
            own.actor_logstd.mean().item(),
        )
        return dict(zip(WEIGHT_METRICS, numbers, strict=True))

    def _stop(self, which: NDArray[np.bool_], reason: str) -> None:
        if which.any():
            self.stopped = {**dict.fromkeys(map(int, np.flatnonzero(which)), reason), **self.stopped}

    def _active(self) -> NDArray[np.bool_] | slice:
        """Learners that have not stopped."""
        if not self.stopped:
            return slice(None)
        return ~np.isin(np.arange(len(self.configs)), list(self.stopped))

    def policy(self, s: int) -> Arrays:
        """The policy of learner s: all weights of its networks in one row, and the statistics of observations."""
        running = self.normalizer.observations
        weights = self.stack.row(s).numpy().copy()
        return {"weights": weights, "mean": running.mean[s].copy(), "var": running.var[s].copy()}

    def close(self) -> None:
        """Close the environments."""
        self.environments.close()

    def state(self, s: int) -> Arrays:
        """The state of learner s at the end of an iteration, with its environment if that can be saved."""
        return {
            **training_state(self.stack.members[s], self.optimizers[s]),
            **{f"normalizer/{name}": array[s].copy() for name, array in self.normalizer.arrays().items()},
            **{f"generator/{key}": to_array(own) for key, own in enumerate(self.generators[s])},
            **{f"{_ENVIRONMENT}{name}": array for name, array in self.environments.state(s).items()},
            "now": self._obs[s].copy(),
            "last": np.array([self._returns[s], self._lengths[s]]),
        }

    def load_state(self, s: int, state: Arrays) -> str | None:
        """Restore the state of learner s.

        Without the state of its environment, the learner starts a new episode, seeded by its own generator.

        Returns:
            The reason for a new episode, or None if the learner continues bit for bit.
        """
        own = {name: array for name, array in state.items() if name.startswith(("model/", "optimizer/"))}
        load_training_state(self.stack.members[s], self.optimizers[s], own)
        for name, array in self.normalizer.arrays().items():
            array[s] = state[f"normalizer/{name}"]
        for key, generator in enumerate(self.generators[s]):
            from_array(generator, state[f"generator/{key}"])
        self._returns[s], self._lengths[s] = state["last"]
        saved = {
            name.removeprefix(_ENVIRONMENT): array for name, array in state.items() if name.startswith(_ENVIRONMENT)
        }
        reason = "the checkpoint has no state of the environment"
        if saved:
            try:
                self.environments.load_state(s, saved)
                self._obs[s] = state["now"]
                return None
            except ValueError as error:
                reason = str(error)
        first = self.environments.restart(s, int(self.generators[s][_EPISODES].integers(2**31)))
        if s not in self.stopped:
            self._obs[s] = self.normalizer.observe(first, np.arange(len(self.configs)) == s)[s]
        return reason


_MeanActions = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class _Policy:
    """The mean action of the current policy in NumPy: [s, d] -> [s, a]."""

    def __init__(self, layers: Layers) -> None:
        self._layers = [
            (weight.transpose(1, 2).contiguous().numpy(), bias.unsqueeze(1).numpy()) for weight, bias in layers
        ]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        h = x[:, None]
        for i, (weight, bias) in enumerate(self._layers):
            h = np.matmul(h, weight) + bias
            if i < len(self._layers) - 1:
                np.tanh(h, out=h)
        return h[:, 0]


def discounted_sums(deltas: Tensor, factors: Tensor) -> Tensor:
    """sum_k deltas[t + k] factors[t] ... factors[t + k - 1]: [s, t], [s, t] -> [s, t].

    Examples:
        >>> discounted_sums(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[0.5, 0.0, 0.5]])).tolist()
        [[1.5, 1.0, 1.0]]
    """
    by_time, by_time_factors = deltas.T.numpy(), factors.T.numpy()
    found = np.empty_like(by_time)
    later = np.zeros_like(by_time[0])
    for t in reversed(range(len(by_time))):
        later = by_time[t] + by_time_factors[t] * later
        found[t] = later
    return torch.from_numpy(found.T.copy())


def _by_learner(array: NDArray[np.float32]) -> Tensor:
    """[t, s, ...] -> [s, t, ...], with the same alignment for each learner."""
    steps, learners, *shape = array.shape
    found = torch.empty(learners, aligned(steps), *shape)[:, :steps]
    return found.copy_(torch.from_numpy(np.swapaxes(array, 0, 1)))
