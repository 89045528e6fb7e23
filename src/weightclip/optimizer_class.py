"""Clipping for libraries that take an optimizer's class and construct it themselves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from weightclip.bounds import Bound, bounds_from_shapes
from weightclip.clipping import KEY, Clipper
from weightclip.remedy import attach, find_remedy, owns_kappa


def clipped(optimizer_class: type[Optimizer]) -> type[Any]:
    """A subclass of `optimizer_class` with a further, required argument `kappa`, that clips after each step.

    For libraries that construct the optimizer from a class and keyword arguments, such as Stable-Baselines3:
    `policy_kwargs={"optimizer_class": clipped(Adam), "optimizer_kwargs": {"kappa": 2.0}}`. Wherever the model is at
    hand, prefer `clip_weights`: this class sees shapes only, so it takes every tensor of two or more dimensions for
    a weight (an embedding too), and a one-dimensional tensor for the bias of the weight before it if their sizes
    agree. One that follows no weight of its size is left alone; an ambiguous one is a ValueError: see
    `bounds_from_shapes`. `print(optimizer.clipper)` shows what was decided.

    A copied or unpickled optimizer of such a class goes on clipping.

    Examples:
        >>> import torch
        >>> optimizer = clipped(torch.optim.SGD)(torch.nn.Linear(4, 2).parameters(), lr=0.1, kappa=2.0)
        >>> optimizer.clipper
        Clipper(ClippedSGD, kappa=2: clips 2 of 2 tensors)
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise TypeError(f"optimizer_class: got {optimizer_class!r}, expected a subclass of torch.optim.Optimizer")
    if owns_kappa(optimizer_class):
        raise ValueError(f"optimizer_class: {optimizer_class.__name__} has a hyper-parameter kappa of its own")
    return cast(type[Any], _subclass(cast(Any, optimizer_class)))


@functools.cache
def _subclass(optimizer_class: Any) -> Any:
    class Clipped(optimizer_class):  # type: ignore[misc]
        clipper: Clipper
        kappa_is_of_clipping = True

        def __init__(self, params: ParamsT, *args: Any, kappa: float, **kwargs: Any) -> None:
            super().__init__(params, *args, **kwargs)
            self.clipper = attach(Clipper(self, functools.partial(_resolve, self), kappa))

        def __setstate__(self, state: dict[str, Any]) -> None:
            super().__setstate__(state)
            if (
                find_remedy(self, KEY) is None and "kappa" in self.defaults
            ):  # a copy or an unpickled one: PyTorch drops the hooks
                self.clipper = attach(Clipper(self, functools.partial(_resolve, self), self.defaults["kappa"]))

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            return _new, (optimizer_class,), self.__getstate__()

    Clipped.__name__ = Clipped.__qualname__ = f"Clipped{optimizer_class.__name__}"
    Clipped.__doc__ = f"{optimizer_class.__name__} that clips its weights to [-kappa s_l, kappa s_l] after each step."
    return Clipped


def __getattr__(name: str) -> Any:
    """The class `Clipped<Name>` for an optimizer `<Name>` of torch.optim: picklers look classes up by their name."""
    optimizer_class = getattr(torch.optim, name.removeprefix("Clipped"), None) if name.startswith("Clipped") else None
    if optimizer_class is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return clipped(optimizer_class)


def _resolve(optimizer: Optimizer, tensors: Sequence[Tensor]) -> list[tuple[str, Bound]]:
    names = [name for group in optimizer.param_groups for name in group.get("param_names", group["params"])]
    bounds = bounds_from_shapes(tensors)
    return [
        (n if isinstance(n, str) else f"parameter {i}", b) for i, (n, b) in enumerate(zip(names, bounds, strict=True))
    ]


def _new(optimizer_class: Any) -> Any:
    cls = _subclass(optimizer_class)
    return cls.__new__(cls)
