"""What clipping and its rivals share: acting around every `optimizer.step()`, and living in its checkpoints.

All remedies of one optimizer sit behind one set of hooks. That keeps their order (the rivals as they were attached,
and behind them what is enforced: clipping) and gives the checkpoint one entry, `state_dict()["weightclip"]`, beside
PyTorch's own: what stood in `optimizer.state` would be taken by Adam for its own.
"""

from __future__ import annotations

import inspect
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim import optimizer as _torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from weightclip.checks import as_number

CHECKPOINT_KEY = "weightclip"
_ATTRIBUTE = "_weightclip"
_SETTINGS: dict[str, str] = {}
"""Key in `param_groups` -> the function that put it there."""

_R = TypeVar("_R", bound="Remedy")


class Remedy:
    """Something that acts on an optimizer's weights around each of its steps, until it is removed.

    Subclasses override the methods that they need. `key` names the entry in the checkpoint; `group_keys` are the
    hyper-parameters kept in `optimizer.param_groups`, which survive loading a checkpoint that lacks them. Their
    values are in `settings`; attaching puts them into the groups that lack them.
    """

    key: ClassVar[str]
    group_keys: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        for setting in cls.group_keys:
            _SETTINGS[setting] = cls.key

    def __init__(self, optimizer: Optimizer, **settings: float) -> None:
        self.optimizer = optimizer
        self.settings = settings

    def start(self) -> None:
        """Called after attaching, when the settings are in the groups; an exception undoes the attachment."""

    def looks_at_gradients(self) -> bool:
        """Whether it uses `before_step`, `adjusted`, `updated` or `after_step`; False saves time."""
        return True

    def direct_hook(self) -> Callable[[Optimizer, Any, Any], None] | None:
        """A hook that does in one function all that the remedy does after a step, for when it is the only one."""
        return None

    def before_step(self) -> None:
        """Before the update."""

    def adjusted(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        """The gradient that the update sees instead of `gradient`, which must stay as it is."""
        return gradient

    def after_step(self) -> None:
        """After the update, once for each step."""

    def enforce(self) -> None:
        """After everything else that a step does; must be idempotent."""

    def group_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """Numbers that a resumed run needs, for hosts that load the optimizer before the remedy can be attached."""
        return {}

    def load_group_state(self, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Take over what `group_state` saved."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors, numbers and strings only, keyed by position where per parameter."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` saved."""

    def remove(self) -> None:
        """Detach from the optimizer and take the settings out of its groups; a removed remedy does nothing more."""
        if not self.is_attached():
            return
        _Hooks.of(self.optimizer).discard(self)
        for values in (self.optimizer.defaults, *self.optimizer.param_groups):
            for key in self.group_keys:
                values.pop(key, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "attached": self.is_attached()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # PyTorch drops an optimizer's hooks from its copies; a remedy that is copied along brings them back.
        attached = state.pop("attached")
        self.__dict__.update(state)
        if attached:
            attach(self)

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value:g}" for key, value in self.settings.items())
        return f"{type(self).__name__}({type(self.optimizer).__name__}, {settings})"

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def is_attached(self) -> bool:
        """Whether it acts on its optimizer's steps."""
        return find_remedy(self.optimizer, self.key) is self

    def skipped(self) -> bool:
        """Whether a fused optimizer skipped this step, because GradScaler found an infinite gradient."""
        found_inf = getattr(self.optimizer, "found_inf", None)
        return found_inf is not None and bool(found_inf)

    def tensors(self) -> list[Tensor]:
        """The optimizer's parameters in the order that checkpoints number them."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def updated(self) -> list[tuple[dict[str, Any], Tensor]]:
        """The parameters that this step updated (those that had a gradient), each with its group."""
        return _Hooks.of(self.optimizer).updated


def attach(remedy: _R) -> _R:
    """Put `remedy` to work on its optimizer; if that fails, the optimizer is as it was before."""
    optimizer = remedy.optimizer
    hooks = _Hooks.of(optimizer)
    places = (optimizer.defaults, *optimizer.param_groups)
    before = [{key: place[key] for key in remedy.settings if key in place} for place in places]
    hooks.add(remedy)
    try:
        # New groups take their settings from the defaults, as they take their step size.
        optimizer.defaults.update(remedy.settings)
        for group in optimizer.param_groups:
            group.update({key: value for key, value in remedy.settings.items() if key not in group})
            if remedy.key in group.get(CHECKPOINT_KEY, {}):
                remedy.load_group_state(group, group[CHECKPOINT_KEY][remedy.key])
        remedy.start()
    except BaseException:
        hooks.discard(remedy)
        for place, values in zip(places, before, strict=True):
            for key in remedy.settings:
                place.pop(key, None)
            place.update(values)
        raise
    for group in optimizer.param_groups:
        group.get(CHECKPOINT_KEY, {}).pop(remedy.key, None)
        if not group.get(CHECKPOINT_KEY, True):
            del group[CHECKPOINT_KEY]
    return remedy


def find_remedy(optimizer: Optimizer, key: str) -> Remedy | None:
    """The remedy attached to `optimizer` under `key`, if there is one."""
    hooks: _Hooks | None = getattr(_unwrap(optimizer)[-1], _ATTRIBUTE, None)
    return next((r for r in hooks.remedies if r.key == key), None) if hooks else None


_DELEGATING = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}
"""Packages whose wrappers only call the step of the optimizer inside, and may be replaced by others during training."""


def _unwrap(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer, and those inside it, up to the first whose step runs hooks."""
    chain = [optimizer]
    while not getattr(type(chain[-1]).step, "hooked", False):
        inner = getattr(chain[-1], "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        chain.append(inner)
    return chain


def check_optimizer(optimizer: Optimizer, key: str) -> Optimizer:
    """The optimizer that a remedy named `key` acts on, inside wrappers; raises where it cannot be attached."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")
    *_, optimizer = _unwrap(optimizer)
    hooked = getattr(type(optimizer).step, "hooked", False) and "_optimizer_step_post_hooks" in optimizer.__dict__
    if not hooked or _saving(optimizer) is None:
        raise TypeError(
            f"optimizer: {type(optimizer).__name__} does not call Optimizer.__init__, so its steps run no hooks; "
            "call weightclip.resolve_bounds(model) and clip by hand after each step"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError("optimizer: differentiable=True is not supported, the weights are changed in place")
    if find_remedy(optimizer, key) is not None:
        raise ValueError(f"optimizer: {key} is already attached; call remove() on what the first call returned")
    return optimizer


def wrappers_that_act(optimizer: Optimizer) -> list[Optimizer]:
    """The wrappers around the optimizer whose hooks run, without those known to do no more than call its step."""
    return [wrapper for wrapper in _unwrap(optimizer)[:-1] if not _delegates(wrapper)]


def nested_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer and all that are inside it, from the outside in, without those that only call the next one."""
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
    """Make `owner.method()` end with `then()`, for methods without hooks; returns a function that undoes it."""
    replaced = owner.__dict__.get(method)  # schedulers replace an optimizer's step in the same way
    of = weakref.ref(owner)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not of():  # a copy
            return getattr(type(self), method)(self, *args, **kwargs)
        result = replaced(*args, **kwargs) if replaced else getattr(type(self), method)(self, *args, **kwargs)
        then()
        return result

    call.__name__ = method  # a pickled owner finds the method of its class under this name
    call.__dict__.update(getattr(replaced, "__dict__", {}))  # by which schedulers recognise a step that they replaced
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


def _saving(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer whose `state_dict` runs hooks: the one given, or the first inside it that does."""
    while "_optimizer_state_dict_post_hooks" not in optimizer.__dict__:
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            return None
        optimizer = inner
    return optimizer


class _Hooks:
    """The hooks of one optimizer, and the remedies behind them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.remedies: list[Remedy] = []
        self.updated: list[tuple[dict[str, Any], Tensor]] = []
        self._adjusted: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self._pending = False
        self._loaded: dict[str, Any] = {}
        self._pre_step: RemovableHandle | None = None
        saving = _saving(optimizer)
        assert saving is not None, "check_optimizer comes first"
        self.post_step = optimizer.register_step_post_hook(self._after_step)
        self._handles: list[RemovableHandle] = [
            self.post_step,
            saving.register_state_dict_post_hook(self._save),
            saving.register_load_state_dict_pre_hook(self._before_load),
            saving.register_load_state_dict_post_hook(self._after_load),
        ]
        _live.add(self)

    @staticmethod
    def of(optimizer: Optimizer) -> _Hooks:
        # An attribute of the optimizer, so that it neither outlives it nor follows into a copy or a pickle.
        hooks: _Hooks | None = getattr(optimizer, _ATTRIBUTE, None)
        if hooks is None:
            hooks = _Hooks(optimizer)
            setattr(optimizer, _ATTRIBUTE, hooks)
        return hooks

    def add(self, remedy: Remedy) -> None:
        self._set([*self.remedies, remedy])

    def discard(self, remedy: Remedy) -> None:
        self._set([r for r in self.remedies if r is not remedy])
        if not self.remedies:
            for handle in self._handles:
                handle.remove()
            _live.discard(self)
            if getattr(self.optimizer, _ATTRIBUTE, None) is self:
                delattr(self.optimizer, _ATTRIBUTE)

    def _set(self, remedies: list[Remedy]) -> None:
        self.remedies = remedies
        # On a small network, a few calls of functions that do next to nothing cost one percent of a step.
        direct = remedies[0].direct_hook() if len(remedies) == 1 else None
        self.optimizer._optimizer_step_post_hooks[self.post_step.id] = direct or self._after_step
        if any(remedy.looks_at_gradients() for remedy in remedies):
            self._pre_step = self._pre_step or self.optimizer.register_step_pre_hook(self._before_step)
        elif self._pre_step is not None:
            self._pre_step.remove()
            self._pre_step = None

    @_disable_dynamo
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
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
        self.updated = [(g, p) for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]
        for group, p in self.updated:
            # A step that calls the step of its base class comes here twice, with gradients that are ours already.
            if p in self._adjusted and p.grad is self._adjusted[p][1]:
                continue
            original = gradient = cast(Tensor, p.grad)
            for remedy in self.remedies:
                gradient = remedy.adjusted(group, p, gradient)
            if gradient is not original:
                p.grad = gradient
                self._adjusted[p] = original, gradient

    # A compiled step calls the hooks as ordinary Python: not worth tracing, and they must not be lost.
    @_disable_dynamo
    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._adjusted:
            self._restore_gradients()
        if self._pending:  # not for the second time in one step
            self._pending = False
            for remedy in self.remedies:
                remedy.after_step()
        for remedy in self.remedies:
            remedy.enforce()
        go_behind_global_hooks()

    def _restore_gradients(self) -> None:
        for p, (original, ours) in self._adjusted.items():
            if p.grad is ours:
                p.grad = original
        self._adjusted.clear()

    @_disable_dynamo
    def enforce_again(self) -> None:
        """Behind all hooks of the step: enforce once more, and go behind the others."""
        _move_to_end(self.optimizer._optimizer_step_post_hooks, self.post_step.id)
        for remedy in self.remedies:
            remedy.enforce()

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for remedy in self.remedies:
            for group in state_dict["param_groups"]:  # numbers of NumPy's do not load with weights_only=True
                numbers = {key: as_number(group[key]) for key in remedy.group_keys if key in group}
                group.update({key: number for key, number in numbers.items() if number is not None})
        state_dict[CHECKPOINT_KEY] = {remedy.key: remedy.state_dict() for remedy in self.remedies}
        # PyTorch loads the groups as they are, and nothing but them, into an optimizer without our hooks.
        for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
            states = {remedy.key: remedy.group_state(group) for remedy in self.remedies}
            saved.pop(CHECKPOINT_KEY, None)
            if any(states.values()):
                saved[CHECKPOINT_KEY] = {key: state for key, state in states.items() if state}

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        # Taken over only in _after_load: PyTorch may still refuse the checkpoint.
        self._loaded = state_dict.get(CHECKPOINT_KEY, {})
        keys = [key for remedy in self.remedies for key in remedy.group_keys]
        kept = [{key: group[key] for key in keys if key in group} for group in optimizer.param_groups]
        kept += [{}] * (len(state_dict["param_groups"]) - len(kept))
        groups = [{**mine, **saved} for mine, saved in zip(kept, state_dict["param_groups"], strict=False)]
        return {**state_dict, "param_groups": groups}

    def _after_load(self, optimizer: Optimizer) -> None:
        states = [group.pop(CHECKPOINT_KEY, {}) for group in optimizer.param_groups]
        for remedy in self.remedies:
            if remedy.key in self._loaded:
                remedy.load_state_dict(self._loaded[remedy.key])
                continue
            for group, state in zip(optimizer.param_groups, states, strict=True):
                if remedy.key in state:
                    remedy.load_group_state(group, state[remedy.key])
        self._loaded = {}


def go_behind_global_hooks() -> None:
    """Make our global hook the last; to be called from an optimizer's own hooks, which PyTorch goes through first."""
    if len(GLOBAL_HOOKS) > 1:
        _move_to_end(GLOBAL_HOOKS, _last_hook.id)


def _move_to_end(hooks: dict[int, Any], hook: int) -> None:
    """Make `hook` the last of PyTorch's ordered hooks, whoever else registered since."""
    if hook in hooks and next(reversed(hooks)) != hook:
        hooks[hook] = hooks.pop(hook)


_live: weakref.WeakSet[_Hooks] = weakref.WeakSet()
_WARNED = "_weightclip_warned"


def _last(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Runs after each step of any optimizer, behind its own hooks."""
    hooks: _Hooks | None = optimizer.__dict__.get(_ATTRIBUTE)
    if hooks is not None:
        others = len(GLOBAL_HOOKS) > 1 or torch.compiler.is_compiling()
        if others or next(reversed(optimizer._optimizer_step_post_hooks)) != hooks.post_step.id:
            hooks.enforce_again()
    elif not torch.compiler.is_compiling() and any(
        not _SETTINGS.keys().isdisjoint(group) for group in getattr(optimizer, "param_groups", ())
    ):
        _warn_of_lost_hooks(optimizer)


def _is_part(optimizer: Optimizer, other: Optimizer) -> bool:
    """Whether `optimizer` works inside `other`: it is one of its attributes, or shares its groups."""
    own = {id(group) for group in optimizer.param_groups}
    return any(one is optimizer for one in nested_optimizers(other)) or any(
        id(group) in own for group in other.param_groups
    )


def _warn_of_lost_hooks(optimizer: Optimizer) -> None:
    if _WARNED in optimizer.__dict__:
        return
    found = [key for key in _SETTINGS if any(key in group for group in optimizer.param_groups)]
    if owns_kappa(type(optimizer)):
        found = [key for key in found if key != "kappa"]
    if not found or any(_is_part(optimizer, hooks.optimizer) for hooks in _live):
        return
    setattr(optimizer, _WARNED, True)
    lost = list(dict.fromkeys(_SETTINGS[key] for key in found))
    verb = "acts" if len(lost) == 1 else "act"
    warnings.warn(
        f"{' and '.join(lost)} no longer {verb} on this {type(optimizer).__name__}, although its param_groups have "
        f"{', '.join(map(repr, found))}: it was copied or unpickled (PyTorch drops the hooks then), or it loaded the "
        f"checkpoint of an optimizer with it. Call {' and '.join(f'weightclip.{name}' for name in lost)} on it again, "
        "or delete the entries from its param_groups",
        RuntimeWarning,
        stacklevel=4,
    )


def owns_kappa(optimizer_class: type[Optimizer]) -> bool:
    """Whether `kappa` is a hyper-parameter of the class itself (Madam's, say), and not one that clipping brought."""
    return any(
        "kappa" in inspect.signature(vars(cls)["__init__"]).parameters
        for cls in optimizer_class.__mro__
        if "__init__" in vars(cls) and not vars(cls).get("kappa_is_of_clipping", False)
    )


GLOBAL_HOOKS = _torch_optimizer._global_optimizer_post_hooks
_last_hook = register_optimizer_step_post_hook(_last)
