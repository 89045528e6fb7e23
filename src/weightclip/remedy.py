"""What clipping and its rivals share: acting around every `optimizer.step()`, and living in its checkpoints.

All remedies of one optimizer sit behind one set of hooks. That keeps their order (the rivals as they were attached,
and behind them what is enforced: clipping) and gives the checkpoint one entry, `state_dict()["weightclip"]`, beside
PyTorch's own: what stood in `optimizer.state` would be taken by Adam for its own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim import optimizer as _torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

CHECKPOINT_KEY = "weightclip"
_ATTRIBUTE = "_weightclip"

_R = TypeVar("_R", bound="Remedy")


class Remedy:
    """Something that acts on an optimizer's weights around each of its steps, until it is removed.

    Subclasses override the methods that they need. `key` names the entry in the checkpoint; `group_keys` are the
    hyper-parameters kept in `optimizer.param_groups`, which survive loading a checkpoint that lacks them.
    """

    key: ClassVar[str]
    group_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def before_step(self) -> None:
        """Before the update: the place to refuse what cannot be handled, while nothing has changed."""

    def adjust_gradients(self) -> None:
        """When the gradients are there: before the update, and after each call of a closure."""

    def after_step(self) -> None:
        """After the update, once for each step."""

    def enforce(self) -> None:
        """After everything else that a step does; must be idempotent."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors, numbers and strings only, keyed by position where per parameter."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` saved."""

    def remove(self) -> None:
        """Detach from the optimizer; a removed remedy does nothing more."""
        _Hooks.of(self.optimizer).discard(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "attached": find_remedy(self.optimizer, self.key) is self}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # PyTorch drops an optimizer's hooks from its copies; a remedy that is copied along brings them back.
        attached = state.pop("attached")
        self.__dict__.update(state)
        if attached:
            attach(self)

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def skipped(self) -> bool:
        """Whether a fused optimizer skipped this step, because GradScaler found an infinite gradient."""
        found_inf = getattr(self.optimizer, "found_inf", None)
        return found_inf is not None and bool(found_inf)

    def tensors(self) -> list[Tensor]:
        """The optimizer's parameters in the order that checkpoints number them."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def updated(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """The parameters that this step updates (those with a gradient), each with its group."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    yield group, p


def attach(remedy: _R) -> _R:
    """Put `remedy` to work on its optimizer."""
    _Hooks.of(remedy.optimizer).add(remedy)
    return remedy


def find_remedy(optimizer: Optimizer, key: str) -> Remedy | None:
    """The remedy attached to `optimizer` under `key`, if there is one."""
    hooks: _Hooks | None = getattr(_unwrap(optimizer), _ATTRIBUTE, None)
    return next((r for r in hooks.remedies if r.key == key), None) if hooks else None


def _unwrap(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside the wrappers of Lightning and Accelerate."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def check_optimizer(optimizer: Optimizer, key: str) -> Optimizer:
    """The optimizer that a remedy named `key` acts on, inside wrappers; raises where it cannot be attached."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")
    optimizer = _unwrap(optimizer)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError("optimizer: differentiable=True is not supported, the weights are changed in place")
    if find_remedy(optimizer, key) is not None:
        raise ValueError(f"optimizer: {key} is already attached; call remove() on what the first call returned")
    return optimizer


class _Hooks:
    """The hooks of one optimizer, and the remedies behind them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.remedies: list[Remedy] = []
        self._pending = False
        self._adjusted: _Mark | None = None
        self._loaded: dict[str, Any] = {}
        self._post_step = optimizer.register_step_post_hook(self._after_step)
        self._handles: list[RemovableHandle] = [
            self._post_step,
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    @staticmethod
    def of(optimizer: Optimizer) -> _Hooks:
        # An attribute of the optimizer, so that it neither outlives it nor follows into a copy or a pickle.
        hooks: _Hooks | None = getattr(optimizer, _ATTRIBUTE, None)
        if hooks is None:
            hooks = _Hooks(optimizer)
            setattr(optimizer, _ATTRIBUTE, hooks)
        return hooks

    def add(self, remedy: Remedy) -> None:
        self.remedies = [*self.remedies, remedy]

    def discard(self, remedy: Remedy) -> None:
        self.remedies = [r for r in self.remedies if r is not remedy]
        if not self.remedies:
            for handle in self._handles:
                handle.remove()
            if getattr(self.optimizer, _ATTRIBUTE, None) is self:
                delattr(self.optimizer, _ATTRIBUTE)

    # Compiled steps call the hooks as ordinary Python: what they do is not worth tracing, and must not be lost.
    @_disable_dynamo
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        _move_to_end(optimizer._optimizer_step_post_hooks, self._post_step.id)
        _move_to_end(_torch_optimizer._global_optimizer_post_hooks, _last_hook.id)
        self._pending = True
        for remedy in self.remedies:
            remedy.before_step()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._adjust_gradients()
            return None

        def adjusted() -> Any:
            loss = closure()
            self._adjust_gradients()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": adjusted}
        return (args[0], adjusted, *args[2:]), kwargs

    @torch.no_grad()
    def _adjust_gradients(self) -> None:
        # A step that calls the step of its base class runs the hooks twice; the same gradients are adjusted once.
        if self._adjusted is None or not self._adjusted.is_of(self.optimizer):
            for remedy in self.remedies:
                remedy.adjust_gradients()
            self._adjusted = _Mark.of(self.optimizer)

    @_disable_dynamo
    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._pending:  # not for the second time in one step
            for remedy in self.remedies:
                remedy.after_step()
        self._pending = False
        self._enforce()

    @_disable_dynamo
    @torch.no_grad()
    def enforce_again(self) -> None:
        self._enforce()

    def _enforce(self) -> None:
        for remedy in self.remedies:
            remedy.enforce()

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[CHECKPOINT_KEY] = {remedy.key: remedy.state_dict() for remedy in self.remedies}

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        # Taken over only in _after_load: PyTorch may still refuse the checkpoint.
        self._loaded = state_dict.get(CHECKPOINT_KEY, {})
        keys = [key for remedy in self.remedies for key in remedy.group_keys]
        kept = [{key: group[key] for key in keys if key in group} for group in optimizer.param_groups]
        kept += [{}] * (len(state_dict["param_groups"]) - len(kept))
        groups = [{**mine, **saved} for mine, saved in zip(kept, state_dict["param_groups"], strict=False)]
        return {**state_dict, "param_groups": groups}

    def _after_load(self, optimizer: Optimizer) -> None:
        for remedy in self.remedies:
            if remedy.key in self._loaded:
                remedy.load_state_dict(self._loaded[remedy.key])
        self._loaded = {}


@dataclass(frozen=True)
class _Mark:
    """The first gradient of an optimizer, and how often it had been changed."""

    gradient: Tensor | None
    version: int

    @staticmethod
    def of(optimizer: Optimizer) -> _Mark:
        gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        first = next(gradients, None)
        return _Mark(first, -1 if first is None else first._version)

    def is_of(self, optimizer: Optimizer) -> bool:
        now = _Mark.of(optimizer)
        return self.gradient is not None and now.gradient is self.gradient and now.version == self.version


def _move_to_end(hooks: dict[int, Any], hook: int) -> None:
    """Make `hook` the last of PyTorch's ordered hooks, whoever else registered since."""
    if hook in hooks and next(reversed(hooks)) != hook:
        hooks[hook] = hooks.pop(hook)


_TOLD = "_weightclip_told"


def _last(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Runs after each step of any optimizer: enforces once more behind other global hooks, and tells of lost hooks."""
    hooks: _Hooks | None = optimizer.__dict__.get(_ATTRIBUTE)
    if hooks is not None:
        if len(_torch_optimizer._global_optimizer_post_hooks) > 1:
            hooks.enforce_again()
    elif not torch.compiler.is_compiling() and any("kappa" in group for group in optimizer.param_groups):
        _tell_of_lost_hooks(optimizer)


def _tell_of_lost_hooks(optimizer: Optimizer) -> None:
    if owns_kappa(optimizer) or _TOLD in optimizer.__dict__:
        return
    setattr(optimizer, _TOLD, True)
    warnings.warn(
        f"nothing clips this {type(optimizer).__name__}, though its groups have a kappa: it was copied or unpickled "
        "(PyTorch drops the hooks then), or it loaded the checkpoint of a clipped one. weightclip.clip_weights("
        "optimizer, model, kappa) clips it again; without 'kappa' in its param_groups it is a plain optimizer",
        RuntimeWarning,
        stacklevel=4,
    )


def owns_kappa(optimizer: Optimizer) -> bool:
    """Whether `kappa` is a hyper-parameter of the optimizer's own class (Madam's, say)."""
    init: Callable[..., None] = type(optimizer).__init__
    return "kappa" in inspect.signature(init).parameters


_last_hook = register_optimizer_step_post_hook(_last)
