"""Clipping for libraries that construct the optimizer from a class."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from weightclip._bound_rules import FROZEN, NO_INPUTS, USE_CLIP_WEIGHTS, Bound
from weightclip._hooks import find_regularizer, owns_kappa
from weightclip._layer_ranges import with_ranges_by_shape
from weightclip._ranges import Graded, Kappa, RangeRule, needs_outputs, read_kappa, rule_from_state
from weightclip.bounds import Resolved, fan_in_bound
from weightclip.clipping import KEY, Clipper


def clipped(optimizer_class: type[Optimizer]) -> type[Any]:
    """Return a subclass of `optimizer_class` that clips after each step, with an additional required argument `kappa`.

    For libraries that construct the optimizer from a class and keyword arguments, such as Stable-Baselines3:
    `policy_kwargs={"optimizer_class": clipped(Adam), "optimizer_kwargs": {"kappa": 2.0}}`. Prefer `clip_weights` if
    you have the model, because this class only sees shapes. A tensor of two or more dimensions counts as a weight
    (embeddings as well). A one-dimensional tensor counts as the bias of the weight before it in its group if their
    sizes match; without a weight of its size it is skipped, and an ambiguous one raises a ValueError: see
    `bounds_from_shapes`. Two values that no layer is initialized to raise a ValueError as well: a matrix with equal
    entries (log-stds) and a vector of ones (the scale of a normalization layer). `print(optimizer.clipper)` shows the
    bounds.

    Copied and unpickled optimizers of such a class keep clipping.

    Examples:
        >>> import torch
        >>> optimizer = clipped(torch.optim.SGD)(torch.nn.Linear(4, 2).parameters(), lr=0.1, kappa=2.0)
        >>> optimizer.clipper
        Clipper(ClippedSGD, kappa=2: clips 2 of 2 tensors)
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise TypeError(f"optimizer_class: got {optimizer_class!r}, expected a subclass of torch.optim.Optimizer")
    if owns_kappa(optimizer_class):
        raise ValueError(f"optimizer_class: {optimizer_class.__name__} already has a hyper-parameter kappa")
    return cast(type[Any], _subclass(cast(Any, optimizer_class)))


@functools.cache
def _subclass(optimizer_class: Any) -> Any:
    class Clipped(optimizer_class):  # type: ignore[misc]
        clipper: Clipper
        kappa_belongs_to_clipping = True

        def __init__(self, params: ParamsT, *args: Any, kappa: Kappa, **kwargs: Any) -> None:
            _reject_shards(optimizer_class)
            number, rule = read_kappa(kappa)
            super().__init__(params, *args, **kwargs)
            self.clipper = Clipper(self, ShapeBounds(self), number, rule=rule).attach()

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            super().add_param_group(param_group)
            try:
                _reject_non_layers(self.param_groups[-1]["params"])
            except ValueError:
                del self.param_groups[-1]
                raise

        def __setstate__(self, state: dict[str, Any]) -> None:
            rule = rule_from_state(state.get(_RULE))
            super().__setstate__({key: value for key, value in state.items() if key != _RULE})
            # PyTorch drops the hooks of copied and unpickled optimizers.
            if find_regularizer(self, KEY) is None and "kappa" in self.defaults:
                bounds = ShapeBounds(self, warned=True)
                self.clipper = Clipper(self, bounds, self.defaults["kappa"], rule=rule).attach()

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            clipper = find_regularizer(self, KEY)
            rule = clipper.rule if isinstance(clipper, Clipper) else None
            state = cast(dict[str, Any], self.__getstate__())
            return _new, (optimizer_class,), state if rule is None else {**state, _RULE: rule.state()}

    Clipped.__name__ = f"Clipped{optimizer_class.__name__}"
    Clipped.__qualname__ = _reference(optimizer_class)
    Clipped.__init__.__qualname__ = f"{Clipped.__name__}.__init__"
    Clipped.__doc__ = f"{optimizer_class.__name__} that clips its weights to [-kappa s_l, kappa s_l] after each step."
    return Clipped


PREFIX = "Clipped"
_RULE = "_weightclip_rule"
"""Key of the range rule in the state of a copied or pickled optimizer."""


def _reference(optimizer_class: type[Optimizer]) -> str:
    """The name under which picklers find the class in this module; `__getattr__` creates the class from it."""
    if getattr(torch.optim, optimizer_class.__name__, None) is optimizer_class:
        return f"{PREFIX}{optimizer_class.__name__}"
    return f"{PREFIX}:{optimizer_class.__module__}|{optimizer_class.__qualname__}".replace(".", ":")


def __getattr__(name: str) -> Any:
    """The class `Clipped<Name>` for an optimizer of torch.optim, `Clipped:<package>:<module>|<Name>` for others."""
    module, _, own = name.removeprefix(PREFIX).removeprefix(":").rpartition("|")
    optimizer_class = None
    # Other processes cannot import a class of the running script by name, so picklers copy it instead.
    if name.startswith(PREFIX) and module != "__main__" and "<locals>" not in own:
        home: Any = import_module(module.replace(":", ".")) if module else torch.optim
        optimizer_class = functools.reduce(lambda found, part: getattr(found, part, None), own.split(":"), home)
    if optimizer_class is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return clipped(optimizer_class)


@dataclass
class ShapeBounds:
    """Resolves the bounds of an optimizer's parameters from their shapes; warns once of unknown output layers."""

    optimizer: Optimizer
    warned: bool = False

    def resolve(self, groups: Sequence[Sequence[Tensor]], rule: RangeRule | None) -> list[Resolved]:
        rows = [{tensor.shape[0] for tensor in group if tensor.dim() >= 2} for group in groups]
        bounds = [
            bound
            for i, group in enumerate(groups)
            for bound in bounds_from_shapes(group, set().union(*rows[:i], *rows[i + 1 :]))
        ]
        names = [name for group in self.optimizer.param_groups for name in group.get("param_names", group["params"])]
        names = [n if isinstance(n, str) else f"parameter {i}" for i, n in enumerate(names)]
        tensors = [tensor for group in groups for tensor in group]
        if not self.warned and isinstance(rule, Graded) and needs_outputs(rule, names):
            self.warned = True
            _warn_of_unknown_outputs(names, any("param_names" in group for group in self.optimizer.param_groups))
        ranged = with_ranges_by_shape(names, tensors, bounds, rule)
        return [Resolved(name, bound) for name, bound in zip(names, ranged, strict=True)]

    def absent(self, tensors: Sequence[Tensor]) -> dict[str, torch.Size]:
        return {}


def _warn_of_unknown_outputs(names: Sequence[str], named: bool) -> None:
    """Warn that all layers are graded the same way, with advice that works for the optimizer's names."""
    last = f"{names[-1].rpartition('.')[0] or names[-1]}.*" if named else "head.*"
    how = f"output_layers={last!r}" + ("" if named else " with model.named_parameters() as the parameters")
    warnings.warn(
        f"graded: shapes do not show the output layers, so all layers are graded the same way; {how} names them",
        UserWarning,
        stacklevel=6,
    )


def bounds_from_shapes(tensors: Sequence[Tensor], elsewhere: Collection[int] = ()) -> list[Bound]:
    """Fan-in bounds of the tensors of one parameter group from shapes and order, without knowledge of the layers.

    A tensor of two or more dimensions is a weight: 1/sqrt(fan_in). A one-dimensional tensor directly after a weight
    with as many rows is its bias. A one-dimensional tensor is skipped if no weight with as many rows precedes it in its
    group or is in another group. Any other (the scale of a normalization layer, the second bias of an RNN, a bias in
    another group than its weight) is ambiguous and raises a ValueError.

    Args:
        tensors: the tensors of one group, in order.
        elsewhere: the numbers of rows of the weights in other groups.

    Examples:
        >>> from torch import nn
        >>> log_std, layer = nn.Parameter(torch.zeros(2)), nn.Linear(4, 3)
        >>> [bound.s for bound in bounds_from_shapes([log_std, layer.weight, layer.bias])]
        [None, 0.5, 0.5]
    """
    bounds: list[Bound] = []
    rows: set[int] = set(elsewhere)
    for i, tensor in enumerate(tensors):
        shape = tuple(tensor.shape)
        before = tensors[i - 1] if i else None
        if tensor.dim() >= 2:
            rows.add(shape[0])
        if not tensor.requires_grad:
            bounds.append(Bound(None, reason=FROZEN))
        elif not tensor.is_floating_point():
            raise ValueError(f"parameter {i}: dtype {tensor.dtype} cannot be clipped to an interval")
        elif tensor.dim() >= 2:
            bounds.append(_bound_from_weight(tensor))
        elif tensor.dim() == 0 or shape[0] not in rows:
            bounds.append(Bound(None, reason="no weight with as many rows precedes it"))
        elif before is not None and before.dim() >= 2 and before.shape[0] == shape[0]:
            bounds.append(_bound_from_weight(before))
        else:
            raise ValueError(
                f"parameter {i}, shape {shape}: its shape may be that of a bias, of a normalization layer's scale "
                f"or of another parameter; {USE_CLIP_WEIGHTS}"
            )
    return bounds


def _bound_from_weight(weight: Tensor) -> Bound:
    inputs = math.prod(weight.shape[1:])
    return Bound(fan_in_bound(weight), "fan_in") if inputs else Bound(None, reason=NO_INPUTS)


def _reject_non_layers(tensors: Sequence[Tensor]) -> None:
    """Raise for tensors whose values cannot be the initial weights or biases of a layer."""
    for i, tensor in enumerate(tensors):
        if not tensor.requires_grad or tensor.is_meta or hasattr(tensor, "to_local") or tensor.numel() == 0:
            continue
        values = tensor.detach()
        matrix = tensor.dim() >= 2 and tensor.numel() > 1 and bool((values == values.flatten()[0]).all())
        ones = tensor.dim() == 1 and bool((values == 1).all())
        if matrix or ones:
            what = "its entries are all equal, like log-stds" if matrix else "its entries are 1, like a norm's scale"
            raise ValueError(
                f"parameter {i} of its group, shape {tuple(tensor.shape)}: {what}, so it is probably not the weight or "
                f"bias of a layer; {USE_CLIP_WEIGHTS}"
            )


def _reject_shards(optimizer_class: type[Optimizer]) -> None:
    """Raise inside a ZeroRedundancyOptimizer, on every process: if only some raised, the others would hang."""
    frame = sys._getframe(2)
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == "ZeroRedundancyOptimizer":
            raise ValueError(
                "optimizer_class: ZeroRedundancyOptimizer splits the parameters among processes, so a bias may be "
                f"separated from its weight; pass optimizer_class={optimizer_class.__name__}, and call "
                "weightclip.clip_weights(optimizer, model, kappa) on the ZeroRedundancyOptimizer"
            )
        frame = cast(Any, frame.f_back)


def _new(optimizer_class: Any) -> Any:
    cls = _subclass(optimizer_class)
    return cls.__new__(cls)
