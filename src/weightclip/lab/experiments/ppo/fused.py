"""The fused backend: rollouts of all learners, and the update of one after the other, in compiled code."""

from __future__ import annotations

import inspect
import math
from collections.abc import Container, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from weightclip._box import round_down
from weightclip.clipping import find_clipper
from weightclip.diagnostics import approximate_kl
from weightclip.lab.compiled import call, is_cacheable, is_compiled, load_kernel, one_blas_thread
from weightclip.lab.data import cache_directory
from weightclip.lab.experiments.ppo import kernel
from weightclip.lab.experiments.ppo.config import Config
from weightclip.lab.experiments.ppo.environments import EPSILON, LIMIT, Array, Normalizer
from weightclip.lab.networks.actor_critic import Layers, Stack

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's moments in the state of `torch.optim.Adam`."""


def _load() -> ModuleType:
    return load_kernel(inspect.getsource(kernel), cache_directory("kernels"))


def kernel_name() -> str:
    """The name of the kernel, which contains the hash of its source."""
    return _load().__name__


def is_saved() -> bool:
    """Whether later processes find the compiled code, because the cache directory is writable."""
    return is_cacheable(_load())


def compiled() -> bool:
    """Whether the compiled code is in the cache. It is compiled from the first observation of `Learners` on."""
    return is_compiled(_load())


class FusedPolicy:
    """The mean action of the current policies: [s, d] -> [s, a]. Each learner is computed by itself.

    Args:
        layers: stacked layers of the policies.
    """

    def __init__(self, layers: Layers) -> None:
        self._kernel = _load()
        self._hidden = np.array([bias.shape[1] for _, bias in layers[:-1]], np.int64)
        self._outputs = layers[-1][1].shape[1]
        parts = [part for weight, bias in layers for part in (weight.transpose(1, 2).flatten(1), bias)]
        self._weights = torch.cat(parts, dim=1).numpy()

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        found = np.empty((len(x), self._outputs), np.float32)
        call(self._kernel, x, self._weights, self._hidden, found, function="act")
        return found


class FusedNormalizer(Normalizer):
    """`Normalizer` in compiled code, equal bit for bit."""

    def __init__(self, learners: int, observations: int, gamma: float) -> None:
        super().__init__(learners, observations, gamma)
        self._kernel = _load()
        self._all = np.ones(learners, dtype=bool)

    def observe(self, x: Array, which: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float32]:
        active = self._all if isinstance(which, slice) else which
        own, found = self.observations, np.empty(x.shape, np.float32)
        call(self._kernel, x, active, own.mean, own.var, own.count, EPSILON, LIMIT, found, function="observe")
        return found

    def reward(
        self, rewards: Array, terminated: NDArray[np.bool_], which: NDArray[np.bool_] | slice = slice(None)
    ) -> NDArray[np.float32]:
        active = self._all if isinstance(which, slice) else which
        own, found = self.returns, np.empty(rewards.shape, np.float32)
        call(
            self._kernel,
            rewards,
            terminated,
            active,
            self.discounted,
            own.mean,
            own.var,
            own.count,
            self.gamma,
            EPSILON,
            LIMIT,
            found,
            function="scale_rewards",
        )
        return found


class FusedUpdate:
    """The update of PPO for Adam, with or without weight clipping.

    The weights stay in the networks and the moments in the optimizers, so that both are saved as with the reference
    backend. Each learner is updated by itself and learns bit for bit what it learns alone.

    Args:
        config: resolved configuration.
        stack: the networks.
        optimizers: the optimizer of each network.
    """

    def __init__(self, config: Config, stack: Stack, optimizers: Sequence[Optimizer]) -> None:
        self._config, self._stack, self._optimizers = config, stack, optimizers
        self._hidden = np.array(config.hidden, np.int64)
        self._kernel = _load()

    def update(
        self,
        orders: NDArray[np.int64],
        parts: Sequence[Tensor],
        stopped: Container[int] = (),
    ) -> dict[str, Tensor]:
        """Update each learner that has not stopped, in minibatches.

        Args:
            orders: [epochs, s, t], the permutations of the steps.
            parts: observations [s, t, d], actions [s, t, a], and [s, t, 4]: log-probability, advantage, return, value.
            stopped: learners that are not updated.

        Returns:
            The metrics, [s] each, NaN for stopped learners.
        """
        learners, steps = parts[0].shape[:2]
        size = steps // self._config.num_minibatches
        updates = len(orders) * self._config.num_minibatches
        log_ratio = np.full((learners, size), math.nan, parts[0].numpy().dtype)
        found = np.full((learners, 8), math.nan)
        with one_blas_thread():
            for s in range(learners):
                if s not in stopped:
                    own = [np.ascontiguousarray(part[s].numpy()) for part in parts]
                    self._update(s, np.ascontiguousarray(orders[:, s]), size, own, log_ratio[s], found[s])
        fractions, norms, policy, value, entropy, saturated, saturated_90, units = torch.from_numpy(found).float().T
        ratios = torch.from_numpy(log_ratio)
        # Comparisons with NaN are False: the fractions of a diverged learner would be 0 instead of NaN.
        finite = torch.where(ratios.isnan().any(1), math.nan, 1.0)
        return {
            "approx_kl": approximate_kl(ratios),
            "old_approx_kl": -ratios.mean(1),
            "clip_fraction": finite * fractions / updates,
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "gradient_l2": norms / updates,
            "saturated": finite * saturated / units,
            "saturated_90": finite * saturated_90 / units,
        }

    def _update(
        self,
        s: int,
        order: NDArray[np.int64],
        size: int,
        parts: Sequence[NDArray[np.float32]],
        log_ratio: NDArray[np.float32],
        found: NDArray[np.float64],
    ) -> None:
        config, optimizer = self._config, self._optimizers[s]
        tensors = list(self._stack.members[s].parameters())
        for p in tensors:
            if not optimizer.state[p]:
                optimizer.state[p] |= {"step": torch.zeros(()), **{name: torch.zeros_like(p) for name in MOMENTS}}
        first, second = (torch.cat([optimizer.state[p][name].flatten() for p in tensors]).numpy() for name in MOMENTS)
        group = optimizer.param_groups[0]
        settings = (group["lr"], *group["betas"], group["eps"])
        settings += (config.clip_coef, config.vf_coef, config.ent_coef, config.max_grad_norm)
        call(
            self._kernel,
            self._stack.row(s).numpy(),
            first,
            second,
            clipping_limits(tensors, optimizer),
            self._hidden,
            order,
            size,
            *parts,
            np.array(settings, np.float64),
            config.clip_vloss,
            config.norm_adv,
            int(optimizer.state[tensors[0]]["step"]),
            log_ratio,
            found,
        )
        for name, moments in zip(MOMENTS, (first, second), strict=True):
            split = torch.split(torch.from_numpy(moments), [p.numel() for p in tensors])
            for p, part in zip(tensors, split, strict=True):
                optimizer.state[p][name].copy_(part.view_as(p))
        for p in tensors:
            optimizer.state[p]["step"] += order.size // size


def clipping_limits(tensors: Sequence[Tensor], optimizer: Optimizer) -> NDArray[np.float32]:
    """The limit of each entry of the tensors, flattened to [entries]; infinite for entries that are not clipped."""
    clipper = find_clipper(optimizer)
    sides: dict[Tensor, Any] = {} if clipper is None else dict(clipper.sides())
    limits = [torch.as_tensor(sides.get(p, math.inf), dtype=torch.float64).expand(p.shape).flatten() for p in tensors]
    return round_down(torch.cat(limits), tensors[0].dtype).numpy()
