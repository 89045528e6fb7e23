"""Optimizers that average weights: Schedule-Free, ASGD and Lookahead.

They have a second set of weights, which is clipped together with the model's weights.

Schedule-Free optimizers (Defazio et al., 2024) train at y = (1 - beta) z + beta x. The model holds y in training and
x, the average of z, in evaluation; z is in the optimizer's state, and x is computed from y and z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Beta = Callable[[Optimizer, dict[str, Any]], float]


@dataclass(frozen=True)
class SecondWeights:
    """Location of an optimizer's second set of weights.

    Args:
        state_keys: entries of `optimizer.state[p]` that are weights.
        beta: the weight of x in y, for optimizers that switch the model between y and x.
    """

    state_keys: tuple[str, ...]
    beta: Beta | None = None

    @torch.no_grad()
    def clip(self, optimizer: Optimizer, group: dict[str, Any], p: Tensor, limit: Any) -> None:
        """Clip `p` and its second set of weights to [-limit, limit]; entries inside stay bitwise equal.

        The limit is a number, or a tensor with one number per unit; for a sharded tensor, that of the local shard.
        """
        state = optimizer.state.get(p, {})
        if self.beta is not None and "z" in state and _in_train_mode(optimizer, group):
            beta, z, y = self.beta(optimizer, group), _local(state["z"]), _local(p.detach())
            x = y.lerp(z, 1 - 1 / beta)
            # the difference is 0 wherever x and z are inside, so y does not change there
            y.add_(x.clamp(-limit, limit).sub_(x), alpha=beta)
            y.add_(z.clamp(-limit, limit).sub_(z), alpha=1 - beta)
        for key in self.state_keys:
            if key in state:
                _local(state[key]).clamp_(-limit, limit)
        _local(p.detach()).clamp_(-limit, limit)


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _in_train_mode(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    return bool(group.get("train_mode", getattr(optimizer, "train_mode", True)))


def _first_beta(optimizer: Optimizer, group: dict[str, Any]) -> float:
    return float(group["betas"][0])


def _group_momentum(optimizer: Optimizer, group: dict[str, Any]) -> float:
    return float(group["momentum"])


def _own_momentum(optimizer: Optimizer, group: dict[str, Any]) -> float:
    return float(optimizer.momentum)  # type: ignore[attr-defined]


_KNOWN: dict[tuple[str, str], SecondWeights] = {
    ("torch", "ASGD"): SecondWeights(("ax",)),
    ("schedulefree", "SGDScheduleFree"): SecondWeights(("z",), _group_momentum),
    **{
        ("schedulefree", name): SecondWeights(("z",), _first_beta)
        for name in ("AdamWScheduleFree", "AdamWScheduleFreePaper", "RAdamScheduleFree")
    },
    **{
        ("schedulefree", f"{name}ScheduleFreeClosure"): SecondWeights(("z",))  # the model holds x after each step
        for name in ("SGD", "AdamW", "RAdam")
    },
    **{
        ("schedulefree", f"{name}ScheduleFreeReference"): SecondWeights(("x", "y", "z"))  # y and x are both stored
        for name in ("SGD", "AdamW")
    },
    ("pytorch_optimizer", "ScheduleFreeSGD"): SecondWeights(("z",), _group_momentum),
    ("pytorch_optimizer", "ScheduleFreeAdamW"): SecondWeights(("z",), _first_beta),
    ("pytorch_optimizer", "ScheduleFreeRAdam"): SecondWeights(("z",), _first_beta),
    ("pytorch_optimizer", "ScheduleFreeWrapper"): SecondWeights(("z",), _own_momentum),
    ("pytorch_optimizer", "Lookahead"): SecondWeights(("slow_params", "backup_params")),
}


def check_nested(optimizer: Optimizer, nested: Sequence[Optimizer]) -> None:
    """Raise if a `nested` optimizer other than `optimizer` swaps the model's weights in `eval`."""
    for other in nested:
        if other is not optimizer and _swaps_weights(other):
            raise ValueError(
                f"optimizer: {type(other).__name__} swaps the model's weights for a second set in eval(), which "
                f"cannot be clipped together with {type(optimizer).__name__}; use only one of them"
            )


def _swaps_weights(optimizer: Optimizer) -> bool:
    return all(callable(getattr(type(optimizer), method, None)) for method in ("train", "eval"))


def find_second_weights(optimizer: Optimizer) -> SecondWeights | None:
    """The second set of weights of `optimizer`, or None; raises a ValueError for an unsupported optimizer.

    Optimizers with the methods `train` and `eval` swap the model's weights in them.
    """
    for cls in type(optimizer).__mro__:
        known = _KNOWN.get((cls.__module__.partition(".")[0], cls.__name__))
        if known is not None:
            return known
    if _swaps_weights(optimizer):
        raise ValueError(
            f"optimizer: {type(optimizer).__name__} swaps the model's weights for a second set in eval(), which "
            "would not be clipped; the Schedule-Free optimizers of schedulefree and pytorch_optimizer are supported"
        )
    return None
