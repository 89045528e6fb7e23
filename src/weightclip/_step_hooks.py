"""Calls around the steps of an optimizer, for its monitors."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from torch.optim import Optimizer

from weightclip._hooks import move_to_end
from weightclip._torch_private import has_step_hooks, step_post_hooks, step_runs_hooks
from weightclip._wrappers import call_around, unwrap_optimizer

_ATTRIBUTE = "_weightclip_step_hooks"


class Listener(Protocol):
    """An object that acts around steps."""

    armed: bool

    def before_step(self) -> None:
        """Run before a step if `armed` is true."""

    def after_step(self) -> None:
        """Run after every step."""


class StepHooks:
    """The hooks of one optimizer for all of its listeners.

    The hooks stay for the life of the optimizer and do nothing without a listener. PyTorch iterates over the
    dictionaries of hooks, so removing a hook during a step raises an error. They are called once per step, also if
    `step` calls the step of its base class, or if `first_step` and `second_step` (SAM) replace it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.listeners: list[Listener] = []
        self._depth = 0
        self._levels = _levels(optimizer)
        self._hooks = step_post_hooks(optimizer)
        optimizer.register_step_pre_hook(self._before)
        self._post_step = optimizer.register_step_post_hook(self._after)
        if all(callable(getattr(optimizer, method, None)) for method in ("first_step", "second_step")):
            call_around(optimizer, "first_step", before=self._before)
            call_around(optimizer, "second_step", after=self._after)
        if callable(getattr(optimizer, "fused_backward", None)):  # LOMO
            call_around(optimizer, "fused_backward", before=self._before, after=self._after)

    @staticmethod
    def of(optimizer: Optimizer) -> StepHooks:
        """The hooks of an optimizer; an attribute of it, which copies and pickles do not contain."""
        hooks: StepHooks | None = optimizer.__dict__.get(_ATTRIBUTE)
        if hooks is None:
            hooks = StepHooks(optimizer)
            setattr(optimizer, _ATTRIBUTE, hooks)
        return hooks

    def add(self, listener: Listener) -> None:
        self.listeners = [*self.listeners, listener]

    def discard(self, listener: Listener) -> None:
        self.listeners = [one for one in self.listeners if one is not listener]  # the old list may be iterated over

    def _before(self, *_: object) -> None:
        self._depth = min(self._depth + 1, self._levels)  # larger after a step that raised an error
        if self._depth > 1:
            return
        for listener in self.listeners:
            if listener.armed:
                move_to_end(self._hooks, self._post_step.id)  # after all other hooks, such as clipping
                listener.before_step()

    def _after(self, *_: object) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._depth = 0
        for listener in self.listeners:
            listener.after_step()


def stepping_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose steps run hooks: the given one or the first such one inside it (Lookahead, Accelerate)."""
    *_, inner = unwrap_optimizer(optimizer)
    if not (step_runs_hooks(inner) and has_step_hooks(inner)):
        raise TypeError(
            f"optimizer: {type(inner).__name__} does not call Optimizer.__init__, so its steps run no hooks; pass the "
            "optimizer that updates the weights"
        )
    return inner


def _levels(optimizer: Optimizer) -> int:
    """Largest number of nested calls in one step: one per class with a step of its own, one for other methods."""
    steps: set[Any] = {inspect.unwrap(vars(cls)["step"]) for cls in type(optimizer).__mro__ if "step" in vars(cls)}
    others = any(callable(getattr(optimizer, method, None)) for method in ("second_step", "fused_backward"))
    return len(steps - {Optimizer.step}) + others
