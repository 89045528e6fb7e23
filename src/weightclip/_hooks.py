"""Acting around `optimizer.step()`: the base class of clipping and all regularizers, their order and checkpoints.

All regularizers of one optimizer share one set of hooks. This fixes their order (gradient penalties and weight changes
in the order of attachment, then constraints: clipping) and gives the checkpoint a single entry,
`state_dict()["weightclip"]`. Entries in `optimizer.state` would be read by Adam as its own.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from weightclip._renamed import find_old_name
from weightclip._torch_private import (
    disable_dynamo,
    global_step_post_hooks,
    has_step_hooks,
    step_post_hooks,
    step_runs_hooks,
)
from weightclip._validation import as_number
from weightclip._wrappers import nested_optimizers, saving_optimizer, unwrap_optimizer

CHECKPOINT_KEY = "weightclip"
_ATTRIBUTE = "_weightclip"
_SETTINGS: dict[str, str] = {}
"""Key in `param_groups` -> `key` of the regularizer that put it there."""
_ATTACHED_BY: dict[str, str] = {}
"""`key` of a regularizer -> the function or class that attaches it."""

_R = TypeVar("_R", bound="Regularizer")


class Regularizer:
    """Base class: changes gradients or weights around each step of an optimizer, from `attach()` to `remove()`.

    A subclass sets `key`, the name of its entry in checkpoints, and overrides the methods that it needs. One step runs

        before_step();  g <- adjust_gradient(group, p, g) for every p with a gradient;  the optimizer's update;
        after_step();  enforce().

    `group_keys` names the hyper-parameters. `attach()` writes their values to the `optimizer.param_groups` that do not
    have them yet: a group may have its own value, schedulers can change it, and checkpoints save it.

    Args:
        optimizer: any `torch.optim.Optimizer`, or a wrapper around one.
        settings: a number for each of `group_keys`.

    Examples:
        L1 regularization, g <- g + lambda sign(w):

        >>> class L1(Regularizer):
        ...     key, group_keys = "l1", ("l1_decay",)
        ...
        ...     def adjust_gradient(self, group, p, gradient):
        ...         return gradient + group["l1_decay"] * p.sign()
        >>> w = torch.nn.Parameter(torch.tensor([2.0, -2.0]))
        >>> optimizer = torch.optim.SGD([w], lr=1.0)
        >>> regularizer = L1(optimizer, l1_decay=0.5).attach()
        >>> w.grad = torch.zeros(2)
        >>> optimizer.step()
        >>> w.tolist(), optimizer.param_groups[0]["l1_decay"]
        ([1.5, -1.5], 0.5)
    """

    key: ClassVar[str]
    group_keys: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "key"):  # an abstract subclass
            return
        for setting in cls.group_keys:
            _SETTINGS[setting] = cls.key
        _ATTACHED_BY[cls.key] = f"weightclip.{cls.key}" if cls.__module__.startswith("weightclip.") else cls.__name__

    def __init__(self, optimizer: Optimizer, **settings: float) -> None:
        self.optimizer = check_optimizer(optimizer, self.key)
        self.settings = settings

    def attach(self: _R) -> _R:
        """Start to act on the optimizer's steps and return self; an exception leaves the optimizer unchanged."""
        optimizer = self.optimizer
        hooks = _Hooks.of(optimizer)
        places = (optimizer.defaults, *optimizer.param_groups)
        before = [dict(place) for place in places]
        hooks.add(self)
        try:
            # Groups that are added later take their settings from the defaults, as they take their step size.
            optimizer.defaults.update(self.settings)
            for group in optimizer.param_groups:
                if self.key in group.get(CHECKPOINT_KEY, {}):
                    self.load_group_state(group, group[CHECKPOINT_KEY][self.key])
                self.write_settings(group)
            self.on_attach()
        except BaseException:
            hooks.discard(self)
            for place, values in zip(places, before, strict=True):
                place.clear()
                place.update(values)
            raise
        for group in optimizer.param_groups:
            group.get(CHECKPOINT_KEY, {}).pop(self.key, None)
            if not group.get(CHECKPOINT_KEY, True):
                del group[CHECKPOINT_KEY]
        return self

    def remove(self) -> None:
        """Detach from the optimizer and delete the settings from its groups."""
        if not self.is_attached():
            return
        _Hooks.of(self.optimizer).discard(self)
        for values in (self.optimizer.defaults, *self.optimizer.param_groups):
            for key in self.group_keys:
                values.pop(key, None)

    def write_settings(self, group: dict[str, Any]) -> None:
        """Write the settings to a group; by default, only missing settings are written."""
        group.update({key: value for key, value in self.settings.items() if key not in group})

    def kept_settings(self, group: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        """The settings that `group` keeps when it loads `saved`; by default, the settings missing in `saved`."""
        return {key: group[key] for key in self.group_keys if key in group and key not in saved}

    def on_attach(self) -> None:
        """Run after attaching, when the settings are in the groups; an exception undoes the attachment."""

    def before_step(self) -> None:
        """Run before the update."""

    def adjust_gradient(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of `p`, of the same shape, that the update uses; must not modify `gradient`."""
        return gradient

    def after_step(self) -> None:
        """Run after the update, once per step."""

    def enforce(self) -> None:
        """Enforce a constraint at the end of the step; must be idempotent, because it may run twice."""

    def group_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """Numbers that resuming needs, saved in the group: some hosts load the optimizer before attaching."""
        return {}

    def load_group_state(self, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Restore the result of `group_state`."""

    def on_load(self) -> None:
        """Run after loading a checkpoint that has the hyper-parameters in its groups, when the state is restored."""

    def state_dict(self) -> dict[str, Any]:
        """State that resuming needs: tensors, numbers and strings, per parameter keyed by position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""

    def needs_gradients(self) -> bool:
        """Whether it uses `before_step`, `adjust_gradient` or `after_step`; False saves time in every step."""
        return True

    def direct_hook(self) -> Callable[[Optimizer, Any, Any], None] | None:
        """One function with everything that runs after a step, used while no other regularizer is attached."""
        return None

    def is_attached(self) -> bool:
        """Whether it acts on the optimizer's steps."""
        return find_regularizer(self.optimizer, self.key) is self

    def step_skipped(self) -> bool:
        """Whether a fused optimizer skipped this step, because GradScaler found an infinite gradient."""
        found_inf = getattr(self.optimizer, "found_inf", None)
        return found_inf is not None and bool(found_inf)

    def parameters(self) -> list[Tensor]:
        """The optimizer's parameters in the order in which checkpoints number them."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def updated_parameters(self) -> list[tuple[dict[str, Any], Tensor]]:
        """The parameters with a gradient in this step, each with its group."""
        return _Hooks.of(self.optimizer).updated

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "attached": self.is_attached()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # PyTorch drops the hooks from copies of an optimizer; a regularizer that is copied with it adds them again.
        attached = state.pop("attached")
        self.__dict__.update(state)
        if attached:
            self.attach()

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value:g}" for key, value in self.settings.items())
        return f"{type(self).__name__}({type(self.optimizer).__name__}, {settings})"

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def find_regularizer(optimizer: Optimizer, key: str) -> Regularizer | None:
    """The regularizer attached to `optimizer` under `key`, or None."""
    hooks: _Hooks | None = getattr(unwrap_optimizer(optimizer)[-1], _ATTRIBUTE, None)
    return next((r for r in hooks.regularizers if r.key == key), None) if hooks else None


def check_optimizer(optimizer: Optimizer, key: str) -> Optimizer:
    """The optimizer, inside any wrappers, that a regularizer acts on; raises if the regularizer cannot be attached."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")
    *_, optimizer = unwrap_optimizer(optimizer)
    if not (step_runs_hooks(optimizer) and has_step_hooks(optimizer)) or saving_optimizer(optimizer) is None:
        raise TypeError(
            f"optimizer: {type(optimizer).__name__} does not call Optimizer.__init__, so its steps run no hooks; "
            "call weightclip.resolve_bounds(model) and clip by hand after each step"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError("optimizer: differentiable=True is not supported, the weights are changed in place")
    if find_regularizer(optimizer, key) is not None:
        raise ValueError(f"optimizer: {key} is already attached; call remove() on the object it returned")
    return optimizer


class _Hooks:
    """The hooks of one optimizer and its regularizers, in the order of attachment."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.regularizers: list[Regularizer] = []
        self.updated: list[tuple[dict[str, Any], Tensor]] = []
        self._adjusted: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self._pending = False
        self._loaded: dict[str, Any] = {}
        self._loaded_keys: set[str] = set()
        self._pre_step: RemovableHandle | None = None
        saving = saving_optimizer(optimizer)
        assert saving is not None, "check_optimizer was called first"
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
        # An attribute of the optimizer: it does not outlive the optimizer, and copies and pickles do not contain it.
        hooks: _Hooks | None = getattr(optimizer, _ATTRIBUTE, None)
        if hooks is None:
            hooks = _Hooks(optimizer)
            setattr(optimizer, _ATTRIBUTE, hooks)
        return hooks

    def add(self, regularizer: Regularizer) -> None:
        self._set([*self.regularizers, regularizer])

    def discard(self, regularizer: Regularizer) -> None:
        self._set([r for r in self.regularizers if r is not regularizer])
        if not self.regularizers:
            for handle in self._handles:
                handle.remove()
            _live.discard(self)
            if getattr(self.optimizer, _ATTRIBUTE, None) is self:
                delattr(self.optimizer, _ATTRIBUTE)

    def _set(self, regularizers: list[Regularizer]) -> None:
        self.regularizers = regularizers
        # On a small network, a few empty function calls cost one percent of a step.
        direct = regularizers[0].direct_hook() if len(regularizers) == 1 else None
        step_post_hooks(self.optimizer)[self.post_step.id] = direct or self._after_step
        if any(regularizer.needs_gradients() for regularizer in regularizers):
            self._pre_step = self._pre_step or self.optimizer.register_step_pre_hook(self._before_step)
        elif self._pre_step is not None:
            self._pre_step.remove()
            self._pre_step = None

    @disable_dynamo
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._pending = True
        for regularizer in self.regularizers:
            regularizer.before_step()
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
            # A step that calls the step of its base class runs this twice; the second time, the gradients are adjusted.
            if p in self._adjusted and p.grad is self._adjusted[p][1]:
                continue
            original = gradient = cast(Tensor, p.grad)
            for regularizer in self.regularizers:
                gradient = regularizer.adjust_gradient(group, p, gradient)
            if gradient is not original:
                p.grad = gradient
                self._adjusted[p] = original, gradient

    # A compiled step calls the hooks as ordinary Python: tracing them gains nothing, and they must not be lost.
    @disable_dynamo
    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._adjusted:
            self._restore_gradients()
        if self._pending:  # once per step
            self._pending = False
            for regularizer in self.regularizers:
                regularizer.after_step()
        for regularizer in self.regularizers:
            regularizer.enforce()
        move_behind_global_hooks()

    def _restore_gradients(self) -> None:
        for p, (original, ours) in self._adjusted.items():
            if p.grad is ours:
                p.grad = original
        self._adjusted.clear()

    @disable_dynamo
    def enforce_again(self) -> None:
        """Enforce once more after all hooks of the step, and move this hook to the end."""
        move_to_end(step_post_hooks(self.optimizer), self.post_step.id)
        for regularizer in self.regularizers:
            regularizer.enforce()

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        for regularizer in self.regularizers:
            for group in state_dict["param_groups"]:  # NumPy numbers do not load with weights_only=True
                numbers = {key: as_number(group[key]) for key in regularizer.group_keys if key in group}
                group.update({key: number for key, number in numbers.items() if number is not None})
        state_dict[CHECKPOINT_KEY] = {regularizer.key: regularizer.state_dict() for regularizer in self.regularizers}
        # An optimizer without our hooks loads the groups and drops the entry above.
        for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
            states = {regularizer.key: regularizer.group_state(group) for regularizer in self.regularizers}
            saved.pop(CHECKPOINT_KEY, None)
            if any(states.values()):
                saved[CHECKPOINT_KEY] = {key: state for key, state in states.items() if state}

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        # Applied in _after_load: PyTorch may still reject the checkpoint.
        self._loaded = state_dict.get(CHECKPOINT_KEY, {})
        self._loaded_keys = {key for group in state_dict["param_groups"] for key in group}
        groups = [dict(saved) for saved in state_dict["param_groups"]]
        for group, saved in zip(optimizer.param_groups, groups, strict=False):
            for regularizer in self.regularizers:
                saved.update(regularizer.kept_settings(group, saved))
        return {**state_dict, "param_groups": groups}

    def _after_load(self, optimizer: Optimizer) -> None:
        states = [group.pop(CHECKPOINT_KEY, {}) for group in optimizer.param_groups]
        for regularizer in self.regularizers:
            for group, state in zip(optimizer.param_groups, states, strict=True):
                if regularizer.key in state:
                    regularizer.load_group_state(group, state[regularizer.key])
            if regularizer.key in self._loaded:
                regularizer.load_state_dict(self._loaded[regularizer.key])
            if not self._loaded_keys.isdisjoint(regularizer.group_keys):
                regularizer.on_load()
        self._loaded = {}


def move_behind_global_hooks() -> None:
    """Move our global hook to the end; called from an optimizer's own hooks, which PyTorch runs first."""
    if len(global_step_post_hooks) > 1:
        move_to_end(global_step_post_hooks, _last_hook.id)


def move_to_end(hooks: dict[int, Any], hook: int) -> None:
    """Make `hook` the last of PyTorch's ordered hooks."""
    if hook in hooks and next(reversed(hooks)) != hook:
        hooks[hook] = hooks.pop(hook)


_live: weakref.WeakSet[_Hooks] = weakref.WeakSet()
_WARNED = "_weightclip_warned"


def _last(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Global hook: runs after each step of any optimizer, after its own hooks."""
    hooks: _Hooks | None = optimizer.__dict__.get(_ATTRIBUTE)
    if hooks is not None:
        others = len(global_step_post_hooks) > 1 or torch.compiler.is_compiling()
        if others or next(reversed(step_post_hooks(optimizer))) != hooks.post_step.id:
            hooks.enforce_again()
    elif not torch.compiler.is_compiling() and any(
        not _SETTINGS.keys().isdisjoint(group) for group in getattr(optimizer, "param_groups", ())
    ):
        _warn_of_lost_hooks(optimizer)


def _is_part(optimizer: Optimizer, other: Optimizer) -> bool:
    """Whether `optimizer` is part of `other`: one of its attributes, or with the same groups."""
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
        f"{', '.join(map(repr, found))}: it was copied or unpickled (PyTorch drops the hooks), or it loaded the "
        f"checkpoint of an optimizer with them. Call {' and '.join(_ATTACHED_BY[name] for name in lost)} on it again, "
        "or delete the entries from its param_groups",
        RuntimeWarning,
        stacklevel=4,
    )


def owns_kappa(optimizer_class: type[Optimizer]) -> bool:
    """Whether `kappa` is a hyper-parameter of the class itself (as in Madam), not one that clipping added."""
    return any(
        "kappa" in inspect.signature(vars(cls)["__init__"]).parameters
        for cls in optimizer_class.__mro__
        if "__init__" in vars(cls) and not vars(cls).get("kappa_belongs_to_clipping", False)
    )


_last_hook = register_optimizer_step_post_hook(_last)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return find_old_name(__name__, name)
