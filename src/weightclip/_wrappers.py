"""Optimizers around other optimizers (Lookahead, SAM, Accelerate, ...): which one runs hooks, which one saves."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from weightclip._torch_private import has_state_dict_hooks, step_runs_hooks

_DELEGATING = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}
"""Packages whose wrappers only call the inner optimizer's step, and may be replaced by others during training."""


def unwrap_optimizer(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer and those inside it, up to the first one whose step runs hooks."""
    chain = [optimizer]
    while not step_runs_hooks(chain[-1]):
        inner = getattr(chain[-1], "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        chain.append(inner)
    return chain


def saving_optimizer(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer whose `state_dict` runs hooks: the given one, or the first one inside it."""
    while not has_state_dict_hooks(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            return None
        optimizer = inner
    return optimizer


def acting_wrappers(optimizer: Optimizer) -> list[Optimizer]:
    """The wrappers around the hooked optimizer that may change the weights themselves."""
    return [wrapper for wrapper in unwrap_optimizer(optimizer)[:-1] if not _delegates(wrapper)]


def nested_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer and all optimizers inside it, outermost first, without wrappers that only delegate."""
    found: dict[int, Optimizer] = {}
    unread = [optimizer]
    while unread:
        one = unread.pop()
        if id(one) not in found:
            found[id(one)] = one
            unread += [value for value in vars(one).values() if isinstance(value, Optimizer)]
    return [one for one in found.values() if not _delegates(one)]


def _delegates(wrapper: Optimizer) -> bool:
    return any(cls.__module__.partition(".")[0] in _DELEGATING for cls in type(wrapper).__mro__)


def call_after(owner: Any, method: str, then: Callable[[], None]) -> Callable[[], None]:
    """Make `owner.method()` end with `then()`, for methods without hooks; return a function that undoes it."""
    return call_around(owner, method, after=then)


def _nothing() -> None:
    pass


def call_around(
    owner: Any, method: str, *, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing
) -> Callable[[], None]:
    """Make `owner.method()` start with `before()` and end with `after()`; return a function that undoes it."""
    replaced = owner.__dict__.get(method)  # learning-rate schedulers replace an optimizer's step in the same way
    owner_reference = weakref.ref(owner)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not owner_reference():  # a copy
            return getattr(type(self), method)(self, *args, **kwargs)
        before()
        result = replaced(*args, **kwargs) if replaced else getattr(type(self), method)(self, *args, **kwargs)
        after()
        return result

    call.__name__ = method  # an unpickled owner looks up the method of its class under this name
    call.__dict__.update(getattr(replaced, "__dict__", {}))  # schedulers recognize a step that they replaced by it
    ours = types.MethodType(call, owner)
    setattr(owner, method, ours)

    def undo() -> None:
        if owner.__dict__.get(method) is not ours:
            return
        if replaced is None:
            delattr(owner, method)
        else:
            setattr(owner, method, replaced)

    return undo
