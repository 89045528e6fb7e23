"""Mean absolute inputs of the layers of a model, measured by forward hooks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from weightclip._torch_private import own_parameters

DORMANT = 0.025
"""A unit is dormant if its mean absolute activation is at most this fraction of the mean over its layer."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FROM_INPUTS: tuple[tuple[type[nn.Module], tuple[str, ...]], ...] = (
    (nn.RNNBase, ("weight_ih_l0", "weight_ih_l0_reverse")),
    (nn.RNNCellBase, ("weight_ih",)),
    (nn.MultiheadAttention, ("in_proj_weight", "q_proj_weight")),
    (nn.Bilinear, ()),
)
"""Parameters that are multiplied by the first input of their module."""


class LayerInputs:
    """Sums of |x| over the inputs x of each layer, except for inputs that are the data.

    The input of a layer is the data if no layer with weights ran before it in the outermost forward pass, unless it is
    an output of an earlier pass, or if it is a view of an input of that pass.

    Args:
        model: its modules get hooks while armed.
        names: names of the weights to measure.
    """

    _paused: ClassVar[int] = 0

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        self._model, self._names = model, names
        self._sums: dict[str, tuple[Tensor, int]] = {}
        self._handles: list[Any] = []
        self._measured: dict[nn.Module, str] = {}
        self._hidden: dict[int, weakref.ref[Tensor]] = {}
        self._data: set[int] = set()
        self._depth, self._ran = 0, False

    @staticmethod
    @contextlib.contextmanager
    def paused() -> Iterator[None]:
        """Ignore the forward passes inside, for all monitors."""
        LayerInputs._paused += 1
        try:
            yield
        finally:
            LayerInputs._paused -= 1

    def arm(
        self,
        before: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None],
        after: Callable[[nn.Module, Any], None],
    ) -> None:
        """Call `before(module, args, kwargs)` and `after(module, output)` in every forward pass of a module."""
        self._depth, self._measured = 0, {}
        for path, module in self._model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                continue
            for own in _multiplied(module):
                if (name := f"{path}.{own}" if path else own) in self._names:
                    self._measured[module] = name
            start, end = ModuleHook(module, before), ModuleHook(module, after, output=True)
            self._handles += [
                module.register_forward_pre_hook(start, with_kwargs=True),
                module.register_forward_hook(end, with_kwargs=True, always_call=True),
            ]

    def disarm(self) -> None:
        """Remove the hooks and forget the inputs."""
        while self._handles:
            self._handles.pop().remove()
        self._sums, self._hidden = {}, {}

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add the input of a layer that is called."""
        if self._paused:
            return
        if self._depth == 0:
            tensors = list(_tensors((args, kwargs)))
            self._ran = any(map(self._is_hidden, tensors))
            self._data = {_storage(x) for x in tensors if not self._is_hidden(x)}
        self._depth += 1
        x = args[0] if args else None
        if module not in self._measured or not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if not self._is_hidden(x) and (not self._ran or _storage(x) in self._data):
            self._data.add(_storage(x))  # other layers may get it as well
        elif module.training and _storage(x) >= 0:
            self._add(module, x.detach())

    def after(self, module: nn.Module, output: Any) -> None:
        """Note that a layer has run, and the outputs of an outermost forward pass."""
        if self._paused or not self._depth:
            return
        self._depth -= 1
        self._ran = self._ran or any(p is not None and p.dim() >= 2 for p in own_parameters(module).values())
        if self._depth == 0 and self._ran:
            found = [x for x in _tensors(output) if _storage(x) not in self._data]
            self._hidden |= {id(x): weakref.ref(x) for x in found}

    def dormant(self, name: str) -> float:
        """Fraction of dormant units among the inputs of a layer; NaN if they are the data or unknown."""
        if name not in self._sums:
            return float("nan")
        total, count = self._sums[name]
        mean = total / max(count, 1)
        return float((mean <= DORMANT * mean.mean()).double().mean())

    def _is_hidden(self, x: Tensor) -> bool:
        """Whether a tensor is an output of an earlier forward pass with layers."""
        known = self._hidden.get(id(x))
        return known is not None and known() is x

    def _add(self, module: nn.Module, x: Tensor) -> None:
        """Sum |x| per input unit: the channels of a convolution, with or without a batch, else the last dimension."""
        channels = x.dim() - 1
        if isinstance(module, _CONVOLUTIONS):
            channels -= len(module.kernel_size)
        size = x.abs().movedim(channels, -1).reshape(-1, x.shape[channels])
        name = self._measured[module]
        total, count = self._sums.get(name, (torch.zeros_like(size[0]), 0))
        if total.shape == size[0].shape:
            self._sums[name] = total + size.sum(0), count + len(size)


class ModuleHook:
    """A forward hook of one module, which does nothing for copies of the module.

    A copied or unpickled hook is a function of the standard library that ignores its arguments, so that loading a
    pickled model does not need weightclip.
    """

    def __init__(self, module: nn.Module, call: Callable[..., None], *, output: bool = False) -> None:
        self._module, self._call, self._output = weakref.ref(module), call, output

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *output: Any) -> None:
        if torch.compiler.is_compiling() or module is not self._module():
            return
        if self._output:
            self._call(module, *output)
        else:
            self._call(module, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _multiplied(module: nn.Module) -> tuple[str, ...]:
    """The parameters that are multiplied by the first input of a module: known ones, or the only matrix."""
    own = [name for name, p in own_parameters(module).items() if p is not None and p.dim() >= 2]
    for kind, names in _FROM_INPUTS:
        if isinstance(module, kind):
            return tuple(name for name in own if name in names)
    return tuple(own) if len(own) == 1 else ()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _storage(x: Tensor) -> int:
    """Address of the memory of a tensor; a number of its own for a tensor without memory, as inside torch.vmap."""
    try:
        return x.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return -id(x)
